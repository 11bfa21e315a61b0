import hashlib
import os
import sys
from importlib.util import find_spec

import pytest


def _has_gpu() -> bool:
    if find_spec("torch") is None:  # see test_without_torch.py
        return False
    import torch

    return torch.cuda.is_available()


if not _has_gpu():
    # Before anything imports Triton: its interpreter runs the GPU kernels on the host.
    os.environ.setdefault("TRITON_INTERPRET", "1")


@pytest.fixture(autouse=True)
def one_thread():
    """A second thread would only wait for its core; a test that asks for more asks for itself alone."""
    torch = sys.modules.get("torch")
    before = torch.get_num_threads() if torch else 1
    if torch:
        torch.set_num_threads(1)
    yield
    if torch:
        torch.set_num_threads(before)


@pytest.fixture
def known_bits(monkeypatch):
    """`known_bits(key)` makes `os.urandom` start a sequence that the key decides; gives the counts asked."""

    def install(key):
        asked = []

        def known(count):
            asked.append(count)
            return hashlib.shake_256(f"{key} {len(asked)}".encode()).digest(count)

        monkeypatch.setattr(os, "urandom", known)
        return asked

    return install


@pytest.fixture
def first_trained(monkeypatch):
    """Whose first updates runs that share them have computed, one after the other."""
    from fedproof.ensemble import train

    found, original = [], train.first_updates

    def watched(task, sizes=None, users=None):
        found.extend(range(task.federation.num_users) if users is None else users.tolist())
        return original(task, sizes, users)

    monkeypatch.setattr("fedproof.experiment.first_updates", watched)
    return found
