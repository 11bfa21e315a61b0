"""Certificates against real adversaries on digits: predictions stand, costs stay above their bounds."""

from dataclasses import replace
from functools import cache
from itertools import cycle

import numpy as np
import pytest

from fedproof import data
from fedproof.aggregation import build_rule
from fedproof.arrays import ensemble_accuracy
from fedproof.attacks import Instances, LabelFlip, build_attack, build_series, choose_adversaries
from fedproof.certificates import certify
from fedproof.ensemble import first_updates
from fedproof.mechanisms import CohortOnce, FedAvg, FixedSize, InstanceFedAvg, LocalTraining, Poisson
from fedproof.models import build
from fedproof.robustness.evaluate import evaluate, evaluate_all
from fedproof.robustness.outcome import run_attack, train, verdict
from fedproof.robustness.poisoned import under_attack
from fedproof.statements import Statement
from fedproof.threat import Relation, ThreatModel, Unit
from tests.attacks.conftest import demo_task

FALSE_ALARM = 1e-6
REPLICAS = 300
COST_BOUND = 4.0
DELTA = 0.005
SIZES = (1, 6, 13)
ATTACKS = {
    "backdoor": {"kind": "backdoor"},
    "backdoor x50": {"kind": "backdoor", "scale": 50.0},
    "half backdoor x50": {"kind": "backdoor", "scale": 50.0, "poison_fraction": 0.5},
    "distributed x50": {"kind": "distributed-backdoor", "scale": 50.0},
    "flip": {"kind": "label-flip"},
    "flip x50": {"kind": "label-flip", "source": 1, "scale": 50.0},
    "min-max std": {"kind": "min-max"},
    "min-max unit x50": {"kind": "min-max", "direction": "inverse-unit-vector", "scale": 50.0},
    "min-max sign": {"kind": "min-max", "direction": "inverse-sign"},
    "min-sum std": {"kind": "min-sum"},
    "min-sum unit": {"kind": "min-sum", "direction": "inverse-unit-vector"},
    "min-sum sign": {"kind": "min-sum", "direction": "inverse-sign"},
    "worst case": {"kind": "worst-case"},
    "worst case to 0": {"kind": "worst-case", "target": 0},
}


def made(name, size, **more):
    options = dict(ATTACKS[name]) | more
    kind = options.pop("kind")
    return build_attack(kind, adversaries=choose_adversaries(96, size, seed=1), **options)


def certified(task, scores, *, threat=None, method="margin"):
    return certify(
        scores,
        task.federation.test_labels,
        mechanism=task.mechanism,
        threat=threat or ThreatModel(),
        method=method,
        failure_probability=FALSE_ALARM,
    )


class Clean:
    """The clean ensemble with its certificate, trained once for the whole file."""

    def __init__(self, replicas):
        self.task, self.replicas = demo_task(), replicas
        self.first = first_updates(self.task)
        self.names = list(ATTACKS)
        goals = [made(name, 1).goal(self.task.federation) for name in self.names]
        self.outcome = train(self.task, replicas, goals, first=self.first)
        self.certificate = certified(self.task, self.outcome.scores)
        assert self.certificate.sound

    def row(self, name, attack, *, losses=None):
        clean = self.outcome.losses[self.names.index(name)] if losses is None else losses
        attacked = run_attack(self.task, attack, self.replicas, clean_first=self.first)
        return evaluate(
            name,
            attack,
            task=self.task,
            certificate=self.certificate,
            clean=replace(self.outcome, losses=(clean,), answers=()),
            attacked=attacked,
            cost_bound=COST_BOUND,
            delta=DELTA,
            failure_probability=FALSE_ALARM,
        )


@pytest.fixture(scope="module")
def clean():
    return Clean(REPLICAS)


def check(row):
    assert row.sound
    assert row.unmet == ()
    assert row.holds_on_certified
    assert row.kept_on_certified in (None, 1.0)
    assert row.holds_on_cost
    assert row.cost >= row.certified_lower  # even without the allowance for Monte-Carlo error
    assert row.certified_lower >= row.paper_lower
    assert row.certified_upper <= row.paper_upper


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", ATTACKS)
def test_no_attack_breaks_a_sound_certificate(clean, name, size):
    row = clean.row(name, made(name, size))
    assert row.certified_inputs > 0
    check(row)


@pytest.mark.parametrize("name", ["backdoor x50", "worst case to 0"])
def test_attacks_bite_where_nothing_is_certified(clean, name):
    # The same code with a majority of adversaries: the test above is not blind.
    row = clean.row(name, made(name, 60))
    assert row.certified_inputs == 0
    assert row.certified_accuracy == 0
    assert row.accuracy < 0.6 < 0.9 < row.clean_accuracy
    assert row.cost < row.clean_cost / 10
    check(row)


def test_a_wrong_certificate_is_caught(clean):
    sizes = tuple(None if size is None else 60 for size in clean.certificate.certified_size)
    claim = replace(clean.certificate, certified_size=sizes)
    attacked = run_attack(clean.task, made("worst case", 60), clean.replicas, clean_first=clean.first)
    found = verdict(attacked.scores, claim, 60, failure_probability=FALSE_ALARM)
    assert found.certified > 60
    assert found.contradicted > found.certified / 2
    assert found.kept < found.certified / 2


@pytest.mark.parametrize("rank", [0, 0.5, 1])
def test_the_worst_direction_for_one_input_does_not_break_its_certificate(clean, rank):
    # Aimed at one input with as many adversaries as it is certified for: the strongest attack there is.
    sizes = [-1 if size is None else size for size in clean.certificate.certified_size]
    order = [index for index in np.argsort(sizes, kind="stable").tolist() if sizes[index] >= 1]
    index = order[int(rank * (len(order) - 1))]
    size = sizes[index]
    row = clean.row("worst case", made("worst case", size, inputs=(index,)))
    assert row.holds_on_certified
    attacked = run_attack(clean.task, made("worst case", size, inputs=(index,)), clean.replicas)
    assert attacked.scores[:, index].mean(axis=0).argmax() == clean.certificate.prediction[index]


@pytest.mark.parametrize("method", ["mean", "vote", "paper"])
def test_other_certificates_hold_too(clean, method):
    settings = {"delta": DELTA} if method == "paper" else {}
    certificate = certify(
        clean.outcome.scores,
        clean.task.federation.test_labels,
        mechanism=clean.task.mechanism,
        method=method,
        failure_probability=FALSE_ALARM,
        **settings,
    )
    largest = max(size for size in certificate.certified_size if size is not None)
    attacked = run_attack(
        clean.task, made("worst case to 0", largest), clean.replicas, clean_first=clean.first
    )
    found = verdict(attacked.scores, certificate, largest, failure_probability=FALSE_ALARM)
    assert found.certified == found.kept > 0
    assert found.contradicted == 0


def test_users_who_join_do_not_break_a_certificate_for_join():
    task = demo_task()
    ((_, attack),) = build_series("worst-case", [15], num_users=96, relation=Relation.JOIN, target=0)
    outcome = train(task, REPLICAS, [attack.goal(task.federation)])
    threat = ThreatModel(relation=Relation.JOIN)
    certificate = certified(task, outcome.scores, threat=threat)
    assert under_attack(task, attack).federation.num_users == 111
    row = evaluate(
        "worst case",
        attack,
        task=task,
        certificate=certificate,
        clean=outcome,
        attacked=run_attack(task, attack, REPLICAS),
        cost_bound=COST_BOUND,
        delta=DELTA,
        failure_probability=FALSE_ALARM,
    )
    assert row.certified_inputs > 0
    check(row)


INSTANCE_LEVEL = [
    InstanceFedAvg(rounds=1, local_steps=12, noise_multiplier=4.0, batch_probability=12 / 96, clip_norm=0.5),
    CohortOnce(
        rounds=2, sampling=Poisson(probability=0.1), noise_multiplier=2.0, pooled=True, unit=Unit.INSTANCE
    ),
]


POISONED = [
    ("backdoor", {}),
    ("label-flip", {}),
    ("worst-case", {}),
    ("worst-case", {"spread": 3}),
    ("hostile", {"spread": 3}),
    ("hostile", {"relation": Relation.JOIN}),
    ("worst-case", {"relation": Relation.JOIN, "spread": 2}),
    ("leave", {"relation": Relation.JOIN}),
]


def instance_level(mechanism):
    federation = data.load("digits", classes=[0, 1], users=3)
    return demo_task(
        federation=federation,
        model=build("linear", federation),
        mechanism=mechanism,
        local=LocalTraining(batch_size=12, learning_rate=2.0),
    )


def poisoning(kind, how):
    ((_, attack),) = build_series(kind, [3], num_users=3, unit=Unit.INSTANCE, **how)
    return attack


def wanted_by(outcome, place):
    """What is kept of an ensemble for one attack among several."""
    kept = {name: (getattr(outcome, name)[place],) for name in ("losses", "answers", "missed")}
    return replace(outcome, **kept)


@pytest.fixture(scope="module")
def unpoisoned():
    """`unpoisoned(mechanism)`: the task, and the clean ensemble with what all attacks want of it."""

    @cache
    def trained(mechanism):
        task = instance_level(mechanism)
        goals = [poisoning(*one).goal(task.federation) for one in POISONED]
        return task, train(task, 300, goals)

    return trained


@pytest.mark.parametrize("mechanism", INSTANCE_LEVEL, ids=["fedavg", "hybrid"])
@pytest.mark.parametrize(("kind", "how"), POISONED, ids=str)
def test_poisoned_instances_do_not_break_an_instance_level_certificate(unpoisoned, kind, how, mechanism):
    task, outcome = unpoisoned(mechanism)
    attack = poisoning(kind, how)
    assert isinstance(attack, Instances)
    threat = ThreatModel(unit="instance", relation=how.get("relation", Relation.REPLACE))
    certificate = certified(task, outcome.scores, threat=threat)
    row = evaluate(
        kind,
        attack,
        task=task,
        certificate=certificate,
        clean=wanted_by(outcome, POISONED.index((kind, how))),
        attacked=run_attack(task, attack, 300),
        cost_bound=COST_BOUND,
        delta=DELTA,
        failure_probability=FALSE_ALARM,
    )
    assert row.adversaries == 3
    assert row.certified_inputs > 0
    check(row)


def test_the_worst_instances_do_more_than_flipped_labels():
    task = instance_level(replace(INSTANCE_LEVEL[0], noise_multiplier=1.0))
    federation = task.federation

    def attacked(kind, count, **options):
        ((_, attack),) = build_series(kind, [count], num_users=3, unit=Unit.INSTANCE, spread=3, **options)
        outcome = run_attack(task, attack, 60)
        return float(outcome.losses[0].mean()), ensemble_accuracy(outcome.scores, federation.test_labels)

    flipped, crafted = (attacked(kind, 60, target=0) for kind in ("label-flip", "worst-case"))
    assert crafted[0] < 0.7 * flipped[0]  # to have all inputs answered with one class
    assert crafted[1] < flipped[1]
    assert attacked("worst-case", 120)[1] < 0.2  # to have all of them answered wrongly


def test_what_a_certificate_does_not_cover_is_said(clean):
    def rows(task, attack):
        return evaluate_all(
            task,
            [("it", attack)],
            num_replicas=50,
            certifier=lambda scores: None if isinstance(task.mechanism, FedAvg) else certified(task, scores),
            cost_bound=COST_BOUND,
            delta=DELTA,
        )[0]

    fixed = FixedSize(cohort=24, users=96)
    mechanism = replace(clean.task.mechanism, sampling=fixed, rule="median", adversaries=3)
    robust = replace(clean.task, aggregation=build_rule("median", num_adversaries=3), mechanism=mechanism)
    row = rows(robust, made("flip", 3))
    assert not row.sound
    assert Statement.of("rule", rule="median") in row.unmet
    federation = clean.task.federation
    user = int(np.argmax([np.sum(federation.labels[3 * u : 3 * u + 3] == 1) for u in range(96)]))
    row = rows(clean.task, Instances(base=LabelFlip(adversaries=(user,)), count=1))
    assert not row.sound
    assert row.unmet[0] == Statement.of("attack-unit", attack="instance", certificate="user")
    plain = replace(clean.task, mechanism=FedAvg(rounds=1, sampling=Poisson(probability=0.25)))
    row = rows(plain, made("flip", 3))
    assert row.certified_lower is None
    assert not row.sound
    assert row.unmet == (Statement.of("no-noise"),)


@pytest.mark.parametrize("relation", Relation)
def test_rows_of_many_attacks_repeat(relation):
    task = demo_task(rounds=1)
    attacks = build_series("label-flip", (0, 2, 4), num_users=96, relation=relation, scale=50.0)
    threat = ThreatModel(relation=relation)
    seen = []
    found = [
        evaluate_all(
            task,
            attacks,
            num_replicas=40,
            certifier=lambda scores: certified(task, scores, threat=threat),
            cost_bound=COST_BOUND,
            delta=DELTA,
            progress=lambda *told: seen.append(told),
        )
        for _ in range(2)
    ]
    assert found[0] == found[1]
    assert [row.adversaries for row in found[0]] == [0, 2, 4]
    assert found[0][0].cost == pytest.approx(found[0][0].clean_cost)  # nobody attacks
    assert {stage for stage, _, _ in seen} == {"clean", *(f"label-flip, k = {k}" for k in (0, 2, 4))}
    assert found[0][0].replica_accuracy == pytest.approx(found[0][0].clean_replica_accuracy)
    assert found[0][2].replica_accuracy < found[0][0].replica_accuracy


@pytest.mark.slow
def test_no_attack_breaks_a_sound_certificate_at_any_size(clean):
    largest = max(size for size in clean.certificate.certified_size if size is not None)
    assert largest == max(SIZES)
    others = sorted({*range(1, largest + 1)} - {*SIZES})  # all attacks try those, and each of the others one
    for name, size in zip(ATTACKS, cycle(others), strict=False):
        check(clean.row(name, made(name, size)))
    assert len(ATTACKS) >= len(others)
