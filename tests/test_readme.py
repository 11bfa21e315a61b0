"""The README's examples run as they are printed, and their certificates verify."""

import json
import os
import re
import sys
from pathlib import Path

from tests.patience import finished

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language):
    return re.findall(rf"```{language}\n(.*?)```", README, re.S)


def environment():
    return {**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}


def shell(script, folder):
    return finished(["bash", "-euc", script], cwd=folder, env=environment())


def test_certifying_ones_own_models_works_as_printed(tmp_path):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    done = shell(blocks("bash")[0], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "every number holds" in done.stdout
    python = finished([sys.executable, "-c", blocks("python")[1]], cwd=tmp_path)
    assert python.returncode == 0, python.stderr
    assert "True ()" in python.stdout


def test_one_round_works_as_printed(tmp_path):
    (text,) = blocks("toml")
    (tmp_path / "once.toml").write_text(text)
    done = shell(re.match(r"\$ (.*)", blocks("console")[0])[1], tmp_path)
    assert done.returncode == 0, done.stderr
    summary = json.loads((tmp_path / "runs" / "once" / "summary.json").read_text())
    printed = re.search(r"ε is ([\d.]+) for one user added or removed, ([\d.]+) for one replaced", README)
    # Rounded up to three digits.
    assert 0 <= float(printed[1]) - summary["epsilon"]["pld"] < 0.01
    assert 0 <= float(printed[2]) - summary["epsilon_if_replaced"] < 0.01
    assert summary["sound"]
    assert summary["certified_accuracy"]["10"] > 0.6  # noise is fresh; 76 to 84 % in three releases


def test_planning_works_as_printed(tmp_path):
    done = shell(blocks("bash")[1], tmp_path)
    assert done.returncode == 0, done.stderr
    assert "noise multiplier 1.891 certifies 10 poisoned users" in done.stdout


def test_every_command_the_readme_names_exists():
    done = shell("fedproof --help", ROOT)
    named = set(re.findall(r"^fedproof (\w+)", "\n".join(blocks("bash")), re.M))
    assert named
    assert all(re.search(rf"^\s+{name}\s", done.stdout, re.M) for name in named)


def test_a_network_of_ones_own_works_as_printed(tmp_path):
    code = blocks("python")[0]
    assert len([line for line in code.splitlines() if line]) <= 15
    shown = "print(certificate.sound, certificate.certified_accuracy([5])[0] > 0.6)"
    done = finished([sys.executable, "-c", f"{code}\n{shown}"], cwd=tmp_path)
    _, sentence, good = done.stdout.splitlines()
    assert re.fullmatch(r"\d: safe against \d+ of 300 users", sentence), done.stderr
    assert good == "True True"
