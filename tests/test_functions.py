"""Functions that a configuration names: where they are found, and what is said if they are not."""

import sys

import pytest

from fedproof.functions import load_function
from tests.patience import finished


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The current folder, which is not on the path."""
    monkeypatch.chdir(tmp_path)
    yield tmp_path
    for name in ("my_own_module", "my_broken_module"):
        sys.modules.pop(name, None)


def test_functions_are_found_in_the_current_folder(folder):
    (folder / "my_own_module.py").write_text("def answer(): return 42")
    before = list(sys.path)
    assert load_function("model", "my_own_module:answer")() == 42
    assert sys.path == before


def test_the_current_folder_hides_nothing_that_is_installed(folder):
    (folder / "wave.py").write_text("def open(): return 'mine'")
    assert "wave" not in sys.modules
    found = load_function("data", "wave:open")
    assert found.__module__ == "wave"
    assert str(folder) not in found.__code__.co_filename


def test_the_command_finds_them_as_python_does(folder):
    (folder / "my_own_module.py").write_text("def load(): return 3")
    # As an installed command, and unlike `python -m`, -P leaves the folder off the path.
    command = "from fedproof.cli import main; main()"
    (folder / "it.toml").write_text(
        '[data]\nname = "my_own_module:load"\n[mechanism]\ncohort = 2\nnoise_multiplier = 3.0\n'
    )
    done = finished([sys.executable, "-P", "-c", command, "run", "it.toml", "--out", "out"])
    assert "my_own_module:load returned int; it must return" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nowhere.at_all:f", "rule = 'nowhere.at_all:f' cannot be imported: module 'nowhere' is not found"),
        ("my_broken_module:f", "rule = 'my_broken_module:f' cannot be imported: no such thing"),
        ("math:nothing", "rule = 'math:nothing': module 'math' has no function 'nothing'"),
        ("math:pi", "rule = 'math:pi': module 'math' has no function 'pi'"),
        (":f", "rule = ':f' must look like 'my_package.module:function'"),
        ("..up:f", r"rule = '\.\.up:f' must look like 'my_package.module:function'"),
    ],
)
def test_what_cannot_be_loaded_is_named(folder, name, message):
    (folder / "my_broken_module.py").write_text("raise ImportError('no such thing')")
    with pytest.raises(ValueError, match=message):
        load_function("rule", name)
