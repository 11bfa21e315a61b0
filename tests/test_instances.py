"""Instance level on data so small that every poisoning can be trained: no certificate is ever beaten."""

import itertools
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch
from scipy.special import ndtr
from scipy.stats import binom

from fedproof.accounting import tradeoff
from fedproof.certificates import certify, certify_means
from fedproof.ensemble import Task, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.federation import Federation
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, LocalTraining, Partition, Poisson
from fedproof.models import build
from fedproof.threat import ThreatModel

VALUES = list(itertools.product((-1.0, 1.0), (0, 1)))  # all instances there are
INPUTS = np.array([[-1.0], [-0.2], [0.4], [1.0]], dtype=np.float32)


def federation(instances):
    features, labels = zip(*instances, strict=True)
    return Federation(
        features=np.array(features, dtype=np.float32)[:, None],
        labels=np.array(labels),
        offsets=np.unique([0, 1, len(labels)]),
        test_features=INPUTS,
        test_labels=np.array([0, 0, 1, 1]),
        class_names=("low", "high"),
        name="tiny",
    )


@cache
def trained(mechanism, instances, replicas):
    data = federation(instances)
    local = LocalTraining(epochs=3, batch_size=2, learning_rate=1.0)
    task = Task(federation=data, model=build("linear", data), mechanism=mechanism, local=local)
    return train_replicas(task, range(replicas)).scores


def poisonings(clean, size, relation):
    if relation == "join":
        for extra in itertools.product(VALUES, repeat=size):
            yield (*clean, *extra)
        return
    for chosen in itertools.combinations(range(len(clean)), size):
        for values in itertools.product(VALUES, repeat=size):
            poisoned = list(clean)
            for place, value in zip(chosen, values, strict=True):
                poisoned[place] = value
            yield tuple(poisoned)


CLEAN = tuple((sign, int(sign > 0)) for sign in (-1.0, 1.0, 1.0, -1.0, -1.0, 1.0))


@pytest.mark.parametrize("relation", ["replace", "join"])
def test_no_poisoned_instances_beat_a_deep_partition(relation):
    mechanism = Partition(groups=3, pooled=True, unit="instance")
    threat = ThreatModel(unit="instance", relation=relation)
    scores = trained(mechanism, CLEAN, 3)
    certificate = certify(scores, mechanism=mechanism, threat=threat, method="vote")
    assert 1 in certificate.certified_size
    changed = 0
    for poisoned in poisonings(CLEAN, 1, relation):
        again = trained(mechanism, poisoned, 3)
        assert (again != scores).any(axis=(1, 2)).sum() <= 1
        found = certify(again, mechanism=mechanism, threat=threat, method="vote").prediction
        for before, after, size in zip(
            certificate.prediction, found, certificate.certified_size, strict=True
        ):
            assert before == after or size < 1
            changed += before != after
    assert changed or set(certificate.certified_size) == {1}


def votes(instances, cohort):
    """Exact vote probabilities `(inputs, classes)` of bagging: every cohort is trained once."""
    everyone = FixedSize(cohort=cohort, users=cohort)
    shares = np.zeros((len(INPUTS), 2))
    drawn = list(itertools.combinations(instances, cohort))
    for members in drawn:
        mechanism = Bagging(rounds=1, sampling=everyone, pooled=True, unit="instance")
        shares += np.eye(2)[trained(mechanism, members, 1)[0].argmax(axis=1)]
    return shares / len(drawn)


def test_no_poisoned_instance_beats_bagging():
    clean = (*CLEAN, (-1.0, 0), (1.0, 1))
    mechanism = Bagging(
        rounds=1, sampling=FixedSize(cohort=2, users=len(clean)), pooled=True, unit="instance"
    )
    threat = ThreatModel(unit="instance")
    certificate = certify_means(votes(clean, 2), mechanism=mechanism, threat=threat, method="vote")
    assert max(certificate.certified_size) >= 1
    for poisoned in poisonings(clean, 1, "replace"):
        top = votes(poisoned, 2).argmax(axis=1)
        for before, after, size in zip(certificate.prediction, top, certificate.certified_size, strict=True):
            assert before == after or not size


# --- with noise: one step on drawn instances, whose votes are integrated exactly ---------------------------

CHANCE, NOISE, DIVISOR = 0.25, 0.7, 2.0
HYBRID = CohortOnce(
    rounds=1,
    sampling=Poisson(probability=CHANCE),
    noise_multiplier=NOISE,
    pooled=True,
    unit="instance",
)


def one_step(instances, mechanism):
    data = federation(instances)
    return Task(
        federation=data,
        model=build("linear", data),
        mechanism=mechanism,
        local=LocalTraining(learning_rate=1.0),
        dtype=torch.float64,
    )


def leads(task, params):
    """By how much the logit of class one is above that of class zero, on each input."""
    logits = task.model.logits(params, torch.from_numpy(INPUTS).double()[None])[0]
    return (logits[:, 1] - logits[:, 0]).numpy()


@cache
def moved(members):
    """What a step on exactly these instances does to the leads, without noise and not divided by anything."""
    everyone = FixedSize(cohort=len(members), users=len(members))
    task = one_step(members, replace(HYBRID, sampling=everyone, noise_multiplier=1e-12))
    return len(members) * leads(task, train_replicas(task, range(1)).params - start_of(task, 0))


def noisy_votes(instances):
    """Exact vote probabilities `(inputs, classes)` of the hybrid: every sample, its noise integrated."""
    task = one_step(instances, HYBRID)
    start = leads(task, start_of(task, 0)[None])
    spread = NOISE / DIVISOR * np.sqrt(2 * (INPUTS[:, 0].astype(float) ** 2 + 1))  # two weights, two biases
    high = np.zeros(len(INPUTS))
    for drawn in itertools.product((False, True), repeat=len(instances)):
        members = tuple(sorted(itertools.compress(instances, drawn)))
        weight = CHANCE ** len(members) * (1 - CHANCE) ** (len(instances) - len(members))
        high += weight * ndtr((start + (moved(members) if members else 0) / DIVISOR) / spread)
    return np.stack([1 - high, high], axis=1)


def test_the_exact_votes_are_those_of_the_executed_hybrid():
    clean = (*CLEAN, (-1.0, 0), (1.0, 1))
    assert CHANCE * len(clean) == DIVISOR
    replicas = 20_000
    counts = train_replicas(one_step(clean, HYBRID), range(replicas)).scores.argmax(axis=2).sum(axis=0)
    low, high = binom.interval(1 - 1e-6, replicas, noisy_votes(clean)[:, 1])
    assert np.all((low <= counts) & (counts <= high))


@pytest.mark.parametrize("relation", ["replace", "join"])
def test_no_poisoned_instances_beat_the_hybrid(relation):
    clean = (*CLEAN, (-1.0, 0), (1.0, 1))
    threat = ThreatModel(unit="instance", relation=relation)
    votes_now = noisy_votes(clean)
    certificate = certify_means(votes_now, mechanism=HYBRID, threat=threat, method="vote")
    curve = tradeoff(HYBRID, threat, 1)
    assert max(certificate.certified_size) >= 1
    furthest = 0.0
    for poisoned in poisonings(clean, 1, relation):
        after = noisy_votes(poisoned)
        assert np.all(curve.lower(votes_now) <= after + 1e-9)
        assert np.all(after <= curve.upper(votes_now) + 1e-9)
        furthest = max(furthest, np.abs(after - votes_now).max())
        for before, top, size in zip(
            certificate.prediction, after.argmax(axis=1), certificate.certified_size, strict=True
        ):
            assert before == top or not size
    # Were ten times the noise accounted, a poisoned instance would be further than the bound allows.
    wrong = tradeoff(replace(HYBRID, noise_multiplier=10 * NOISE), threat, 1)
    assert furthest > np.max(votes_now - wrong.lower(votes_now))


def test_a_planted_dependence_on_content_is_caught():
    """Numbers given out by content, the mistake of groups that hash an instance: one touches two models."""
    mechanism = Partition(groups=3, pooled=True, unit="instance")

    def sorted_first(instances):
        return trained(mechanism, tuple(sorted(instances)), 3)

    clean = sorted_first(VALUES)
    touched = [
        (sorted_first(poisoned) != clean).any(axis=(1, 2)).sum()
        for poisoned in poisonings(VALUES, 1, "replace")
    ]
    assert max(touched) > 1
