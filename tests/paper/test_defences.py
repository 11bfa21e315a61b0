"""The table of defences: who is judged by what, and what the published numbers say of themselves."""

from pathlib import Path

import pytest

from paper import Rows, load_studies
from paper.clean import CLOSE
from paper.defences import defended, lines_of
from paper.published import Published

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PUBLISHED = Published.read(EXPERIMENTS)

ATTACK = {"attack": "backdoor", "adversaries": 2, "accuracy": 0.9, "replica_accuracy": 0.7}


def test_a_defence_is_judged_by_one_model(measured_row, attacked):
    row = measured_row(attacked(ATTACK), values={"aggregation.rule": "geometric-median"})
    [one] = defended([row], PUBLISHED)
    assert (one.ours, one.theirs) == (70.0, 87.94)


def test_user_dp_is_judged_by_its_ensemble(measured_row, attacked):
    result = attacked(ATTACK, epsilon={"paper": 0.648})
    [one] = defended([measured_row(result, values={"mechanism.noise_multiplier": "2.6"})], PUBLISHED)
    assert (one.ours, one.theirs) == (90.0, 87.9)


@pytest.fixture(scope="module")
def lines():
    rows = Rows(EXPERIMENTS / "results" / "rows.jsonl").under("robust-accuracy/defences-updates")
    found = lines_of(rows, PUBLISHED)
    assert {(one.attack, one.size) for one in found} == {
        (attack, size) for attack in ("min-max", "min-sum") for size in (2, 3, 5, 10)
    }
    return found


def test_published_optimised_attacks_leave_rules_a_difference_only_in_honest_cohorts(lines):
    """The reason the page gives: one line for all rules, its slope the chance of an honest cohort."""
    for one in lines:
        assert one.theirs == pytest.approx(one.honest, abs=0.075)
        assert one.away < 0.05


def test_the_page_says_that_the_attack_does_little_here_only_if_the_rows_say_so(lines):
    """More of the differences is left than the explanation would leave, and nobody loses much."""
    reason = next(one.reason for one in load_studies(EXPERIMENTS) if one.name == "robust-accuracy")
    little = all(one.fall < CLOSE and one.ours > (1 + one.honest) / 2 for one in lines if one.size < 10)
    assert little == ("moves no rule far" in reason)


def test_lines_are_those_of_the_cells(measured_row, attacked):
    rows = [
        measured_row(
            attacked(
                {
                    "attack": "min-max",
                    "adversaries": 2,
                    "clean_replica_accuracy": clean,
                    "replica_accuracy": 0.5 + 0.3 * (clean - 0.5),
                }
            ),
            values={"aggregation.rule": rule},
        )
        for rule, clean in (("mean", 0.9), ("krum", 0.8), ("median", 0.7))
    ]
    [one] = lines_of(rows, PUBLISHED)
    assert one.ours == pytest.approx(0.3)
    assert one.fall == pytest.approx(28)
    assert one.honest == pytest.approx(0.8**2, abs=0.002)
    assert lines_of(rows[:2], PUBLISHED) == []
