"""Instance level on data so small that every poisoning can be trained: no certificate is ever beaten."""

import itertools
from functools import cache

import numpy as np
import pytest

from fedproof.certificates import certify, certify_means
from fedproof.ensemble import Task, train_replicas
from fedproof.federation import Federation
from fedproof.models import build
from fedproof.protocol import CohortOnce, FixedSize, LocalTraining, Partition
from fedproof.threat import ThreatModel

VALUES = list(itertools.product((-1.0, 1.0), (0, 1)))  # all instances there are
INPUTS = np.array([[-1.0], [-0.2], [0.4], [1.0]], dtype=np.float32)


def federation(instances):
    features, labels = zip(*instances, strict=True)
    return Federation(
        features=np.array(features, dtype=np.float32)[:, None],
        labels=np.array(labels),
        offsets=np.array([0, 1, len(labels)]),
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
        mechanism = CohortOnce(rounds=1, sampling=everyone, pooled=True, unit="instance")
        shares += np.eye(2)[trained(mechanism, members, 1)[0].argmax(axis=1)]
    return shares / len(drawn)


def test_no_poisoned_instance_beats_bagging():
    clean = (*CLEAN, (-1.0, 0), (1.0, 1))
    mechanism = CohortOnce(
        rounds=1, sampling=FixedSize(cohort=2, users=len(clean)), pooled=True, unit="instance"
    )
    threat = ThreatModel(unit="instance")
    certificate = certify_means(votes(clean, 2), mechanism=mechanism, threat=threat, method="vote")
    assert max(certificate.certified_size) >= 1
    for poisoned in poisonings(clean, 1, "replace"):
        top = votes(poisoned, 2).argmax(axis=1)
        for before, after, size in zip(certificate.prediction, top, certificate.certified_size, strict=True):
            assert before == after or not size


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
