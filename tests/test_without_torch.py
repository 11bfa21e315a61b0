"""The half that guarantees rest on, in an environment where torch is not installed."""

import os
import sys
import sysconfig
from pathlib import Path

import pytest

from tests.patience import finished

ROOT = Path(__file__).parents[1]
MISSING = (
    "torch",
    "safetensors",
    "sklearn",
    "scikit_learn",
    "flwr",
    "ray",
    "triton",
    "torchgen",
    "functorch",
)
TESTED = [
    *(f"tests/accounting/test_{name}.py" for name in ("ledger", "loss", "sampling")),
    *(f"tests/certificates/test_{name}.py" for name in ("certificate", "forgery", "confidence", "rounding")),
    "tests/mechanisms/test_in_words.py",
]


@pytest.fixture(scope="module")
def packages(tmp_path_factory):
    """Everything that is installed but what training needs, by links."""
    folder = tmp_path_factory.mktemp("installed")
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        name = entry.name.lower().split("-")[0].split(".")[0]
        if name not in MISSING and not entry.name.endswith(".pth") and "editable" not in entry.name:
            (folder / entry.name).symlink_to(entry)
    return folder


def python(packages, *arguments):
    paths = (str(ROOT / "src"), str(ROOT), str(packages))
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "PYTHONNOUSERSITE": "1"}
    base = Path(sys.base_prefix) / "bin" / f"python{sys.version_info.major}.{sys.version_info.minor}"
    return finished([str(base), "-S", *arguments], env=environment, cwd=ROOT)


def test_there_is_no_torch(packages):
    assert "No module named 'torch'" in python(packages, "-c", "import torch").stderr


@pytest.mark.slow
def test_guarantees_are_tested_without_torch(packages):
    options = ("-m", "not slow", "-p", "no:cacheprovider", "--hypothesis-profile=few")
    done = python(packages, "-m", "pytest", *options, *TESTED)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-1000:]
