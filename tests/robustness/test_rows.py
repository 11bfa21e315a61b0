"""Rows of attacks as files: all that a row says is written, and nothing else."""

import csv
import json

from fedproof.robustness import AttackRow, document, write_rows
from fedproof.statements import Statement, sentences

MEASURED = {
    "attack": "label-flip",
    "adversaries": 2,
    "replicas": 60,
    "clean_replica_accuracy": 0.9,
    "replica_accuracy": 1 / 3,
    "clean_accuracy": 1.0,
    "accuracy": 0.75,
    "clean_cost": 0.1 + 0.2,
    "cost": 0.25,
    "clipped_share": 0.0,
}
CERTIFIED = {
    "certified_accuracy": 0.5,
    "certified_inputs": 30,
    "kept_on_certified": 1.0,
    "holds_on_certified": True,
    "certified_lower": 0.1,
    "certified_upper": 0.7,
    "paper_lower": 0.0,
    "paper_upper": 4.0,
    "holds_on_cost": False,
    "sound": True,
}
WHY = (Statement.of("no-noise"), Statement.of("unmet-as-stated", text="something else"))
ROWS = [
    AttackRow(**MEASURED, unmet=WHY),
    AttackRow(**MEASURED, **CERTIFIED),
]


def test_rows_are_written_as_they_are(tmp_path):
    write_rows(ROWS, tmp_path / "attacks.csv")
    with (tmp_path / "attacks.csv").open(newline="") as file:
        written = list(csv.DictReader(file))
    printed = json.loads(json.dumps(document(ROWS)))["rows"]
    for row, values, shown in zip(ROWS, written, printed, strict=True):
        known = MEASURED | (CERTIFIED if row.sound else {}) | {"unmet": "; ".join(sentences(row.unmet))}
        assert {name: value for name, value in values.items() if value} == {
            name: str(value) for name, value in (known | {"sound": row.sound}).items() if value != ""
        }
        assert {name: shown[name] for name in known} == known
        assert shown["empirical"] == row.cost


def test_what_a_row_says_about_its_bounds():
    without, certified = ROWS
    assert (without.certified_cost, without.holds) == (None, None)
    assert (certified.certified_cost, certified.holds) == ((0.1, 0.7), False)
