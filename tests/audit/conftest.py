import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tests are small and run side by side: a second thread would only wait for its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
