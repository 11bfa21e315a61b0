import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """Tests are small and run side by side: a second thread would only wait for its core."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def pytest_terminal_summary(terminalreporter):
    """How many trainings with each planted mistake were caught."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.stats.get(outcome, []):
            found = dict(report.user_properties)
            if report.when == "call" and "planted" in found:
                line = f"{found['planted']}: {found['caught']} of {found['trained']} trainings caught"
                terminalreporter.write_line(line)
