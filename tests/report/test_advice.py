"""Where little is certified, console and page say what limits it, and what they advise works."""

import re
import shlex
from dataclasses import replace

import numpy as np
import pytest

from fedproof.cli.training import show
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.report.run_data import read_run
from fedproof.report.run_page import write_report
from fedproof.report.sections import advice

DATA = """
[data]
name = "digits"
users = 60
"""
LITTLE = f"""{DATA}
[mechanism]
cohort = 10
noise_multiplier = 3.0
[ensemble]
replicas = 100
seed = 1
"""


@pytest.fixture(scope="module")
def little(tmp_path_factory):
    return run(parse_config(LITTLE, "little"), tmp_path_factory.mktemp("little") / "run")


def test_the_limits_are_named_with_numbers(little, capsys):
    found = " ".join(advice(read_run(little.folder, pictures=False))).replace("\u00a0", " ")
    assert "abstains on 359 of 359 inputs" in found
    assert "One model alone is right on" in found
    assert "(guessing: 10.0 %)" in found
    show(little.summary, little.folder)
    said = capsys.readouterr().out
    assert "why so little is certified, and what to try:" in said
    assert "359 of 359 inputs" in said
    assert "Why so little?" in write_report(little.folder).read_text()


def test_what_is_advised_is_a_command_that_helps(little, tmp_path):
    (groups,) = (text for text in advice(read_run(little.folder, pictures=False)) if "disjoint" in text)
    changes = re.findall(r"--set (\S+?)\.?(?= |$)", groups)
    better = run(parse_config(LITTLE, "little", changes), tmp_path / "groups")
    assert better.summary.certified_accuracy["1"] > 0.5
    assert advice(read_run(better.folder, pictures=False)) == ()
    (weak,) = (text for text in advice(read_run(little.folder, pictures=False)) if "One model" in text)
    for change in re.findall(r"--set (\S+?)[,.]?(?= )", weak):
        assert parse_config(LITTLE, "little", shlex.split(change))


def test_one_upload_is_advised_by_a_section_that_helps(little, tmp_path):
    (once,) = (text for text in advice(read_run(little.folder, pictures=False)) if "one upload" in text)
    section = once.partition("replace [mechanism] by ")[2].rstrip(".").replace(", ", "\n")
    public = ["data.public=300", "data.project=16", "data.projection=spectral"]  # digits need no encoder
    better = run(parse_config(f"{DATA}[mechanism]\n{section}", "once", public), tmp_path / "once")
    assert better.summary.method == "exact"
    assert better.summary.accuracy > little.summary.accuracy + 0.2
    assert better.summary.certified_accuracy["1"] > 0.3


@pytest.mark.parametrize(("users", "groups"), [(2, None), (3, 3), (20, 5), (60, 12)])
def test_groups_are_advised_where_they_can_outvote_one_user(little, users, groups):
    data = read_run(little.folder, pictures=False)
    fewer = replace(data, summary=replace(data.summary, users=users))
    found = re.findall(r"mechanism\.groups=(\d+)", " ".join(advice(fewer)))
    assert found == ([] if groups is None else [str(groups)])


def test_models_that_agree_without_being_sure_are_better_counted(little):
    scores = np.full((20, 5, 10), 0.099, dtype=np.float32)
    scores[:, :, 3] = 1 - 9 * 0.099
    data = replace(read_run(little.folder, pictures=False), scores=scores)
    assert any("certificate.method=vote" in text and "Models agree" in text for text in advice(data))
