"""The README's examples run as they are printed, and their certificates verify."""

import contextlib
import io
import json
import re
from pathlib import Path

from tests.commands import fedproof
from tests.guide import run_command
from tests.tiny import by_accountant

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def run(script, folder):
    """What the commands of a block print, one after the other; none of them may fail."""
    printed = ""
    for command in filter(str.strip, script.replace("\\\n", " ").splitlines()):
        done = run_command(command, folder)
        assert done.returncode == 0, done.stderr
        printed += done.stdout
    return printed


def execute(code, folder):
    """What Python prints, and the names it leaves behind."""
    names, printed = {}, io.StringIO()
    with contextlib.chdir(folder), contextlib.redirect_stdout(printed):
        exec(code, names)
    return printed.getvalue(), names


def test_certifying_ones_own_models_works_as_printed(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    assert "every number holds" in run(blocks("bash")[0], tmp_path)
    assert "True ()" in execute(blocks("python")[1], tmp_path)[0]


def test_one_round_works_as_printed(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "once.toml").write_text(text)
    run(re.match(r"\$ (.*)", blocks("console")[0])[1], tmp_path)
    summary = json.loads((tmp_path / "runs" / "once" / "summary.json").read_text())
    printed = re.search(r"ε is ([\d.]+) for one user added or removed, ([\d.]+) for one replaced", README)
    joined, replaced = (
        by_accountant(summary["privacy"], "release", relation=relation)["pld"]
        for relation in ("join", "replace")
    )
    # Rounded up to three digits.
    assert 0 <= float(printed[1]) - joined < 0.01
    assert 0 <= float(printed[2]) - replaced < 0.01
    assert summary["sound"]
    assert summary["certified_accuracy"]["10"] > 0.6  # noise is fresh; 76 to 84 % in three releases


def test_planning_works_as_printed(tmp_path):
    printed = run(blocks("bash")[1], tmp_path)
    assert "noise multiplier 1.891 certifies 10 poisoned users" in printed


def test_every_command_the_readme_names_exists():
    listed = fedproof("--help").stdout
    named = set(re.findall(r"^fedproof (\w+)", "\n".join(blocks("bash")), re.M))
    assert named
    assert all(re.search(rf"^\s+{name}\s", listed, re.M) for name in named)


def test_a_network_of_ones_own_works_as_printed(tmp_path):
    code = blocks("python")[0]
    assert len([line for line in code.splitlines() if line]) <= 15
    printed, names = execute(code, tmp_path)
    assert re.fullmatch(r"\d: safe against \d+ of 300 users", printed.splitlines()[-1])
    assert names["certificate"].sound
    assert names["certificate"].certified_accuracy([5])[0] > 0.6
