"""Rows of attacks as files: what is written is read back, and what is no row is said."""

import json

import pytest

from fedproof.mechanisms import Caveat
from fedproof.robustness import AttackRow, document, read_rows, write_rows

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
WHY = tuple(Caveat(code="stated", sentence=one) for one in ("no noise is added", "something else"))
ROWS = [
    AttackRow(**MEASURED, caveats=WHY),
    AttackRow(**MEASURED, **CERTIFIED),
]


def test_rows_come_back_from_their_files(tmp_path):
    write_rows(ROWS, tmp_path / "attacks.csv")
    (tmp_path / "attacks.json").write_text(json.dumps(document(ROWS)))
    assert read_rows(tmp_path / "attacks.csv") == ROWS
    assert read_rows(tmp_path / "attacks.json") == ROWS


def test_what_a_row_says_about_its_bounds():
    without, certified = ROWS
    assert (without.certified_cost, without.holds) == (None, None)
    assert (certified.certified_cost, certified.holds) == ((0.1, 0.7), False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "holds no rows of attacks"),
        ("[1]", "holds no rows of attacks"),
        ('{"rows": [3]}', "holds no rows of attacks"),
        ('{"rows": [{"attack": "x", "adversaries": 1}]}', r"rows\[0\]\.replicas: Field required"),
        (json.dumps({"rows": [MEASURED, MEASURED | {"cost": "dear"}]}), r"rows\[1\]\.cost: .* number"),
    ],
)
def test_what_is_no_row_is_said(tmp_path, text, message):
    (tmp_path / "attacks.json").write_text(text)
    with pytest.raises(ValueError, match=message):
        read_rows(tmp_path / "attacks.json")
