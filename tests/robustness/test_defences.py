"""Without noise, model replacement takes FedAvg over and robust rules withstand it."""

from dataclasses import replace

import numpy as np
import pytest

from fedproof.aggregation import RULES, build_rule
from fedproof.arrays import ensemble_accuracy
from fedproof.attacks import build_attack, choose_adversaries
from fedproof.ensemble import first_updates, train_replicas
from fedproof.mechanisms import FedAvg, FixedSize
from fedproof.robustness.poisoned import attacked_first_updates, under_attack
from tests.attacks.conftest import demo_task

COHORT, REPLICAS = 40, 20
ADVERSARIES = choose_adversaries(96, 8, seed=0)


@pytest.fixture(scope="module")
def clean():
    sampling = FixedSize(cohort=COHORT, users=96)
    task = replace(demo_task(), mechanism=FedAvg(rounds=1, sampling=sampling))
    return task, first_updates(task)


def accuracies(clean, rule, kind, **options):
    """Of the ensemble, and the mean of its replicas."""
    task, first = clean
    if kind is not None:
        attack = build_attack(kind, adversaries=ADVERSARIES, **options)
        task = under_attack(task, attack)
        first = attacked_first_updates(task, ADVERSARIES, first)
    scores = train_replicas(replace(task, aggregation=rule), range(REPLICAS), first_updates=first).scores
    labels = task.federation.test_labels
    return ensemble_accuracy(scores, labels), float(np.mean(scores.argmax(2) == labels))


@pytest.mark.parametrize("kind", ["backdoor", "label-flip"])
def test_model_replacement_takes_the_mean_over(clean, kind):
    assert accuracies(clean, build_rule("mean"), None)[0] > 0.95
    assert accuracies(clean, build_rule("mean"), kind, scale=100.0)[0] < 0.6


@pytest.mark.parametrize("kind", [None, "backdoor", "label-flip", "worst-case"])
@pytest.mark.parametrize("name", RULES)
def test_robust_rules_withstand_it(clean, name, kind):
    # No cohort of 40 can hold more than the 8 adversaries; Bulyan needs 4 * 8 + 3 = 35 users.
    rule = build_rule(name, num_adversaries=8, cohort=COHORT)
    options = {} if kind in (None, "worst-case") else {"scale": 100.0}
    together, alone = accuracies(clean, rule, kind, **options)
    assert together > 0.9
    assert alone > 0.8
