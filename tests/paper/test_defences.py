"""The table of defences: who is judged by what, and what the published numbers say of themselves."""

from pathlib import Path

import numpy as np
import pytest

from paper.defences import defended
from paper.published import Published

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PUBLISHED = Published.read(EXPERIMENTS)
RULES = ("fedavg", "median", "trimmed-mean", "krum", "multi-krum", "bulyan", "rfa")


ATTACK = {"attack": "backdoor", "adversaries": 2, "accuracy": 0.9, "replica_accuracy": 0.7}


def test_a_defence_is_judged_by_one_model(measured_row, attacked):
    row = measured_row(attacked(ATTACK), values={"aggregation.rule": "geometric-median"})
    [one] = defended([row], PUBLISHED)
    assert (one.ours, one.theirs) == (70.0, 87.94)


def test_user_dp_is_judged_by_its_ensemble(measured_row, attacked):
    result = attacked(ATTACK, epsilon={"paper": 0.648})
    [one] = defended([measured_row(result, values={"mechanism.noise_multiplier": "2.6"})], PUBLISHED)
    assert (one.ours, one.theirs) == (90.0, 87.9)


@pytest.mark.parametrize("size", [2, 3, 5, 10])
@pytest.mark.parametrize("column", [1, 2])
def test_published_optimised_attacks_leave_rules_a_difference_only_in_honest_cohorts(size, column):
    """The reason the page gives: one line for all rules, its slope the chance of an honest cohort, 0.8^k."""
    table = PUBLISHED.values["robust_accuracy_cifar"][f"k={size}"]
    clean, attacked = (np.array([table[rule][at] for rule in RULES]) for at in (0, column))
    slope, level = np.polyfit(clean, attacked, 1)
    assert slope == pytest.approx(0.8**size, abs=0.075)
    np.testing.assert_allclose(level + slope * clean, attacked, atol=0.05)
