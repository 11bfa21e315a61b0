"""Bounds on an attacker's cost as a file: exact both ways, and no field can be changed unnoticed."""

import json

import numpy as np
import pytest

from fedproof.certificates import (
    ApproximateDP,
    CostMethod,
    certify,
    dumps,
    inefficacy,
    loads,
    loads_inefficacy,
    verify,
)
from fedproof.certificates.document import checksum
from fedproof.mechanisms import Poisson, UserFedAvg

COSTS = np.random.default_rng(0).uniform(0.1, 0.3, size=400)
MECHANISM = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
GIVEN = {
    "mean": {"mechanism": MECHANISM},
    "distribution": {"mechanism": MECHANISM, "method": CostMethod.DISTRIBUTION},
    "paper": {"mechanism": MECHANISM, "method": CostMethod.PAPER, "delta": 0.0029},
    "epsilon": {
        "privacy": ApproximateDP(epsilon=0.3, delta=0.001, relation="replace"),
        "method": CostMethod.PAPER,
    },
    "hoeffding": {"mechanism": MECHANISM, "bound": "hoeffding", "failure_probability": 0.05},
    "negative": {"mechanism": MECHANISM, "negative": True},
}


def bounds(kind="mean"):
    costs = -COSTS if kind == "negative" else COSTS
    return inefficacy(costs, cost_bound=0.5, sizes=range(4), tau=2, **GIVEN[kind]), costs


@pytest.mark.parametrize("kind", GIVEN)
def test_a_file_says_all_and_verifies(kind):
    made, costs = bounds(kind)
    text = dumps(made)
    assert loads_inefficacy(text) == made
    assert verify(text, costs) == ()


def test_every_altered_field_is_noticed():
    text = dumps(bounds()[0])
    document = json.loads(text)
    others = {"schema": "fedproof/certificate", "needed": 9, "tau": 3, "sound": False}
    for name, value in document.items():
        if name == "checksums":
            continue
        document[name] = others.get(name, ["x"] if isinstance(value, list) else 0.25)
        altered = json.dumps(document)
        with pytest.raises(ValueError, match=r"altered|missing or unknown|version"):
            loads_inefficacy(altered)
        document[name] = value


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("lower", [0.3, 0.3, 0.3, 0.3], "lower: the file says 0.3 at index 0, the costs give 0.19"),
        ("needed", 60, "needed: the file says 60, the costs give 4"),
        ("sound", False, "sound: the file says False"),
        ("cost_bound", 0.25, "cost: the file says 0.2"),
        ("failure_probability", 0.4, "lower: the file says 0.19"),
        ("max_size", 3, "needed: the file says 4, the costs give None"),
    ],
)
def test_a_forger_who_renews_the_checksums_is_caught_by_the_numbers(name, value, said):
    document = json.loads(dumps(bounds()[0])) | {name: value}
    document["checksums"][name] = checksum(value)
    found = verify(json.dumps(document), COSTS)
    assert any(line.startswith(said) for line in found), found


def test_other_costs_are_told_from_those_of_the_file():
    [found] = verify(dumps(bounds()[0]), COSTS + 0.001)
    assert found.startswith("costs_sha256: the file says ")


def test_each_reader_names_the_kind_it_reads():
    scores = np.full((20, 2, 2), 0.5)
    certificate = certify(scores, mechanism=MECHANISM, method="mean")
    with pytest.raises(ValueError, match="schema = 'fedproof/certificate' must be 'fedproof/inefficacy'"):
        loads_inefficacy(dumps(certificate))
    with pytest.raises(ValueError, match="schema = 'fedproof/inefficacy' must be 'fedproof/certificate'"):
        loads(dumps(bounds()[0]))


@pytest.mark.parametrize("costs", [np.zeros((2, 2)), np.array([0.1, np.nan]), np.array(["a", "b"])])
def test_costs_that_are_none_are_refused(costs):
    with pytest.raises(ValueError, match="costs"):
        verify(dumps(bounds()[0]), costs)


def test_a_file_that_asks_for_sizes_without_end_is_answered_at_once():
    document = json.loads(dumps(bounds()[0])) | {"max_size": 2**63}
    found = verify(json.dumps(document), COSTS)
    assert found == ("max_size: does not match its checksum, the file was altered",)
    document = json.loads(dumps(bounds()[0])) | {"sizes": [0, 1, 2, 2**63]}
    assert verify(json.dumps(document), COSTS)[-1] == f"sizes = {2**63} must be at most 10000000"


def test_a_goal_beyond_the_bound_needs_more_units_than_there_are():
    made = inefficacy(-COSTS, cost_bound=0.5, mechanism=MECHANISM, negative=True, tau=6, max_size=10**9)
    assert made.needed is None


@pytest.mark.parametrize("bound", ["betting", "hoeffding"])
def test_the_order_of_the_costs_does_not_matter(bound):
    """Bets that knew what comes made the upper end the mean itself, at ψ = 0.4; these know nothing."""
    shuffled = inefficacy(COSTS, cost_bound=0.5, mechanism=MECHANISM, bound=bound)
    for costs in (np.sort(COSTS), np.sort(COSTS)[::-1]):
        found = inefficacy(costs, cost_bound=0.5, mechanism=MECHANISM, bound=bound)
        assert found.lower == pytest.approx(shuffled.lower, rel=1e-12)
        assert found.upper == pytest.approx(shuffled.upper, rel=1e-12)
