"""Layers that nobody checks dissolve: what may import what, and what must never be there."""

import os
import re
import shutil
import sys
from pathlib import Path

import pytest

from tests.patience import finished

TRAINING = ("Task", "Trained", "run", "train")
PACKAGE = Path(__file__).parents[1] / "src" / "fedproof"

NO_TORCH = """
import importlib.abc, sys

class Refuse(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError(f"No module named {{name!r}}", name=name)

sys.meta_path.insert(0, Refuse())
"""


# Each by itself, as if it were the first that is imported; other libraries stay, which take a second to load.
IMPORTS = """
from importlib import import_module
for module in {modules!r}:
    for name in [name for name in sys.modules if name.split(".")[0] == "fedproof"]:
        del sys.modules[name]
    import_module("fedproof." + module)
"""


def run_without(blocked, code):
    script = NO_TORCH.format(blocked=blocked) + code
    return finished([sys.executable, "-c", script])


def test_guarantees_do_not_need_torch():
    modules = ["threat", "accounting", "certificates", "config", "data", "encoders", "cli"]
    done = run_without(["torch", "safetensors", "sklearn"], IMPORTS.format(modules=modules))
    assert done.returncode == 0, done.stderr


def test_every_public_name_works_without_torch():
    code = "import fedproof as fp; [getattr(fp, name) for name in fp.__all__ if name not in {names!r}]"
    done = run_without(["torch"], code.format(names=TRAINING))
    assert done.returncode == 0, done.stderr


def test_what_trains_says_what_to_install():
    code = f"""
import fedproof
for name in {TRAINING!r}:
    try:
        getattr(fedproof, name)
    except ImportError as error:
        print(error)
"""
    said = run_without(["torch"], code).stdout.splitlines()
    assert said == [
        f"fedproof.{name} needs torch: install it with pip install 'fedproof[train]'" for name in TRAINING
    ]


def test_training_needs_torch_and_numpy_alone():
    blocked, modules = ["dp_accounting", "pydantic", "rich", "typer"], ["models", "rounds", "ensemble"]
    done = run_without(blocked, IMPORTS.format(modules=modules))
    assert done.returncode == 0, done.stderr


def test_importing_the_package_is_quick():
    code = "import fedproof, time; print(time.process_time())"  # of one core: others may be busy
    assert min(float(finished([sys.executable, "-c", code]).stdout) for _ in range(3)) < 1.5


def test_what_takes_long_to_import_is_not_imported_for_help():
    code = """
import sys
from fedproof.cli import main
sys.argv[1:] = ["--help"]
try:
    main()
finally:
    print(*(name for name in sys.modules if name.count(".") < 2), file=sys.stderr)
"""
    done = finished([sys.executable, "-c", code])
    assert (done.returncode, "certify" in done.stdout, "scipy.special" in done.stderr) == (0, True, True)
    dear = {"torch", "dp_accounting", "scipy.stats", "scipy.signal", "scipy.optimize", "sklearn", "flwr"}
    assert not dear & set(done.stderr.split())


def test_training_without_torch_says_what_to_install():
    code = "import sys; from fedproof.cli import main; sys.argv = ['fedproof', 'demo']; main()"
    done = run_without(["torch"], code)
    assert done.returncode == 1
    assert "training needs torch: install it with pip install 'fedproof[train]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("command", [["bench"], ["reproduce", "all"], ["records"]], ids=" ".join)
def test_what_serves_a_checkout_says_so_where_there_is_none(tmp_path, command):
    shutil.copytree(
        PACKAGE, tmp_path / "installed" / "fedproof", ignore=shutil.ignore_patterns("__pycache__")
    )
    done = finished(
        [sys.executable, "-m", "fedproof", *command],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(tmp_path / "installed")},
    )
    said = f"error: fedproof {command[0]} needs a checkout of the repository: run it in its root folder\n"
    assert (done.returncode, done.stdout, done.stderr) == (1, "", said)


def test_nothing_that_is_loaded_can_run_code():
    tensors_alone = r"(?![^()]*\bweights_only=True\))"
    forbidden = re.compile(
        rf"^\s*(import|from) pickle|torch\.load\({tensors_alone}|yaml\.load\(|[^.\w]eval\(|allow_pickle=True",
        re.M,
    )
    found = [str(path) for path in PACKAGE.rglob("*.py") if forbidden.search(path.read_text())]
    assert found == []
    for text in (
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "torch.load(f(weights_only=True))",
    ):
        assert forbidden.search(text)


LAYERS = [
    {"arrays", "check", "digests", "files", "functions", "progress", "projection", "threat"},
    {"exact"},
    {"statements"},
    {"mechanisms"},
    {"seeds"},
    {"release"},
    {"accounting", "vault"},
    {"certificates", "summary"},
    {"federation"},
    {"data"},
    {"models"},
    {"encoders"},
    {"aggregation"},
    {"rounds"},
    {"ensemble"},
    {"attacks", "audit"},
    {"config"},
    {"folder"},
    {"training"},
    {"experiment", "pretrain"},
    {"serving", "sweep", "robustness"},
    {"report"},
    {"integrations"},
    {"cli"},
]


def test_imports_only_point_up():
    level = {name: i for i, names in enumerate(LAYERS) for name in names}
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in PACKAGE.rglob("*.py")
        if (own := path.relative_to(PACKAGE).parts[0].removesuffix(".py")) not in ("__init__", "__main__")
        for name in re.findall(r"^\s*from fedproof\.(\w+)", path.read_text(), re.M)
        if level[name] > level[own]
    ]
    assert wrong == []


def test_files_that_are_begun_first_are_there():
    root = PACKAGE.parents[1]
    names = (root / "tests" / "longest.txt").read_text().split()
    assert [name for name in names if not (root / name).is_file()] == []
