"""Flower is needed by its integration alone, and in the version it was tested with."""

import sys
from importlib.metadata import PackageNotFoundError

import pytest

from fedproof import integrations
from tests.patience import finished


def test_nothing_else_imports_flower_or_ray():
    code = (
        "import sys, fedproof as fp, fedproof.integrations, fedproof.integrations.server\n"
        "training = ('Task', 'Trained', 'run', 'train')\n"
        "[getattr(fp, name) for name in fp.__all__ if name not in training]\n"
        "without_torch = 'torch' not in sys.modules\n"
        "[getattr(fp, name) for name in training]\n"
        "sys.exit(not without_torch or bool({'flwr', 'ray'} & set(sys.modules)))"
    )
    done = finished([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


def test_a_node_loads_nothing_that_only_its_server_needs():
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    code = (
        "import sys\n"
        "from fedproof.integrations.flower import answer_partition, replicas_mod\n"
        "sys.exit(' '.join({'dp_accounting', 'pydantic', 'scipy', 'torch'} & set(sys.modules)) or None)"
    )
    done = finished([sys.executable, "-c", code])
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (None, "needs flwr 1.41, found none; install it with: pip install 'fedproof"),
        ("1.42.0", "tested with flwr 1.41, found 1.42.0"),
        ("2.41.0", "tested with flwr 1.41, found 2.41.0"),
    ],
)
def test_a_missing_or_other_flower_is_one_clear_line(monkeypatch, found, message):
    def version(name):
        if found is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(integrations, "version", version)
    with pytest.raises(ImportError, match=message) as caught:
        integrations.require_flower()
    assert "\n" not in str(caught.value)


def test_the_package_is_not_imported_with_another_major_version():
    pretend = "import importlib.metadata as m; m.version = lambda name: '2.0.0'"
    code = f"{pretend}; import fedproof.integrations.flower"
    done = finished([sys.executable, "-c", code])
    assert done.returncode == 1
    assert "ImportError: fedproof.integrations.flower was tested with flwr 1.41, found 2.0.0" in done.stderr


@pytest.mark.parametrize("found", ["1.41.0", "1.41.3"])
def test_any_patch_of_the_tested_version_will_do(monkeypatch, found):
    monkeypatch.setattr(integrations, "version", lambda name: found)
    integrations.require_flower()
