"""The ledger: saved, continued, and a budget that is never exceeded."""

import json
from dataclasses import replace

import pytest

from fedproof.accounting import account, ensemble_account
from fedproof.accounting.ledger import Ledger, load_ledger, resumed_ledger, save_ledger
from fedproof.mechanisms import FixedSize, InstanceFedSGD, NoisyPartition, Poisson, UserFedAvg

MECHANISM = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))


def test_a_saved_ledger_is_continued(tmp_path):
    path = tmp_path / "ledger.json"
    save_ledger(Ledger.of(MECHANISM, delta=0.0029).spend(40), path)
    continued = load_ledger(path).spend(60)
    assert continued == Ledger.of(MECHANISM, delta=0.0029).spend(100)
    assert json.loads(path.read_text())["epsilon"]["pld"] < continued.epsilon["pld"]


def test_a_resumed_run_counts_on_from_its_file(tmp_path):
    path, empty = tmp_path / "ledger.json", Ledger.of(MECHANISM, delta=0.0029)
    assert resumed_ledger(empty, path) == empty
    save_ledger(empty.spend(40), path)
    assert resumed_ledger(empty, path) == empty.spend(40)
    for other in (Ledger.of(MECHANISM, delta=0.01), Ledger.of(replace(MECHANISM, rounds=4), delta=0.0029)):
        with pytest.raises(ValueError, match="counts another mechanism or δ"):
            resumed_ledger(other, path)


@pytest.mark.parametrize(
    "mechanism",
    [
        UserFedAvg(rounds=2, noise_multiplier=2.0, sampling=FixedSize(cohort=4, users=20)),
        InstanceFedSGD(
            rounds=2, noise_multiplier=2.0, sampling=FixedSize(cohort=4, users=20), batch_probability=0.1
        ),
    ],
)
def test_every_sampling_survives_the_file(tmp_path, mechanism):
    path = tmp_path / "ledger.json"
    save_ledger(Ledger.of(mechanism, delta=1e-5).spend(1), path)
    assert load_ledger(path) == Ledger.of(mechanism, delta=1e-5).spend(1)


def test_the_budget_is_used_up_but_never_exceeded():
    ledger = Ledger.of(MECHANISM, delta=0.0029)
    budget = 1.0
    most = ledger.affordable(budget, wanted=1000)
    assert 0 < most < 1000
    assert ledger.spend(most).epsilon["pld"] <= budget < ledger.spend(most + 1).epsilon["pld"]
    assert ledger.affordable(100.0, wanted=10) == 10
    assert ledger.affordable(1e-9, wanted=10) == 0


def test_nothing_spent_costs_nothing():
    assert Ledger.of(MECHANISM, delta=0.0029).epsilon == {"paper": 0.0, "pld": 0.0}


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 2}', '{"version": 1, "delta": 0.1}'])
def test_a_file_that_is_no_ledger_is_named(tmp_path, text):
    path = tmp_path / "ledger.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"ledger\.json is not a ledger"):
        load_ledger(path)


def test_models_of_disjoint_units_cost_what_one_costs_once_for_each_training(tmp_path):
    mechanism, path = NoisyPartition(groups=50, rounds=3, noise_multiplier=4.0), tmp_path / "ledger.json"
    one = account(mechanism, 0.0029)
    ledger = Ledger.of(mechanism, delta=0.0029).spend(50)
    assert (
        ledger.epsilon
        == ensemble_account(mechanism, 0.0029, 50)
        == {name: one[name] for name in ("paper", "pld")}
    )
    save_ledger(ledger, path)
    assert load_ledger(path) == resumed_ledger(Ledger.of(mechanism, delta=0.0029), path) == ledger
    again = replace(mechanism, rounds=6)  # two trainings of three rounds
    assert ledger.spend(50).epsilon["pld"] == pytest.approx(account(again, 0.0029)["pld"])
    assert ledger.affordable(one["pld"], 120) == 50
    assert ledger.affordable(one["pld"] / 2, 120) == 0
    alone = Ledger(queries=ledger.queries, delta=0.0029).spend(50)
    assert alone.epsilon["pld"] > 5 * one["pld"]
    assert alone.document()["parallel"] == 1
    with pytest.raises(ValueError, match="counts another mechanism or δ"):
        resumed_ledger(alone, path)
