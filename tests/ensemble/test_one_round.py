"""One round, one release, from a configuration to what lies in the folder."""

import csv
import json

import pytest

from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.report import write_report
from tests.commands import fedproof

ANCHORS = """
[data]
name = "digits"
users = 30
public = 60
test_limit = 50
[mechanism]
kind = "one-round"
noise_multiplier = 1.0
anchors = 40
solver = "ridge"
[ensemble]
seed = 1
[certificate]
max_size = 30
observed = true
"""


def rows_of(path):
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["mechanism.upload=rows", "mechanism.anchors=256"],
        ["data.users=6", "mechanism.upload=pairs", "mechanism.anchors=256"],
    ],
)
def test_observed_influence_lies_in_private_and_is_never_below_the_certificate(changes, tmp_path):
    result = run(parse_config(ANCHORS, "test", changes), tmp_path / "run")
    rows = rows_of(tmp_path / "run" / "private" / "observed.csv")
    assert {(row["method"], row["relation"]) for row in rows} == {("observed", "replace")}
    curve = {row["size"]: float(row["certified_accuracy"]) for row in rows}
    for size, share in result.summary.certified_accuracy.items():
        assert curve.get(size, 0.0) >= share
    assert sum(curve.values()) > sum(result.summary.certified_accuracy.values())


def test_nothing_else_knows_of_observed_influence(tmp_path):
    """What may be published is the same, byte for byte, whether the server looked or not."""
    for name, said in (("with", "true"), ("without", "false")):
        run(parse_config(ANCHORS, "test", [f"certificate.observed={said}"]), tmp_path / name)
        write_report(tmp_path / name)
    for name in ("certificate.json", "metrics.csv", "release.npz", "ledger.json"):
        assert (tmp_path / "with" / name).read_bytes() == (tmp_path / "without" / name).read_bytes()
    assert not (tmp_path / "without" / "private" / "observed.csv").exists()
    assert "observed.csv" not in (tmp_path / "with" / "report.html").read_text()
    assert "private/observed.csv" in (tmp_path / "with" / "PUBLISH.txt").read_text()


def test_the_terminal_says_what_it_is(tmp_path):
    (tmp_path / "one.toml").write_text(ANCHORS)
    told = fedproof("run", tmp_path / "one.toml", "--out", tmp_path / "run")
    assert "by what each unit was seen to send: " in told.stdout
    assert "ε does not cover these numbers, they are not in the certificate, and must not be" in told.stdout
    told = fedproof("run", tmp_path / "one.toml", "--out", tmp_path / "run", "--resume", "--json")
    assert "observed" not in json.dumps(json.loads(told.stdout))


@pytest.mark.parametrize(
    "changes",
    [
        ["threat.relation=join"],
        ["mechanism.kind=partition", "mechanism.solver=sgd"],
        ["mechanism.kind=fedavg", "mechanism.solver=sgd"],
    ],
)
def test_observed_influence_belongs_to_replaced_users_of_one_release(changes):
    changes = [*changes, "mechanism.cohort=5"] if "mechanism.kind=fedavg" in changes else changes
    with pytest.raises(
        ValueError, match=r"certificate.observed = true belongs to kind = 'one-round' and thr"
    ):
        parse_config(ANCHORS, "test", changes)
