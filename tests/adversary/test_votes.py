"""Groups, cohorts without noise, one release: all adversaries, where they are few enough to try them all."""

from itertools import combinations, combinations_with_replacement, product

import numpy as np
import pytest

from fedproof.certificates import certify, certify_means
from fedproof.certificates.tight import partition_costs
from fedproof.mechanisms import Bagging, FixedSize, OneRound, Partition, Poisson
from fedproof.mechanisms.uploads import Anchors
from fedproof.release import Release, summed
from fedproof.threat import Relation, ThreatModel
from tests.tiny import with_noise

SEED = 19
INPUTS = 300


# --- disjoint groups ----------------------------------------------------------------------------------------


def compositions(total, parts):
    """All ways to write `total` as `parts` numbers, `(ways, parts)`."""
    if parts == 1:
        return np.array([[total]])
    rows = [
        np.hstack([np.full((len(rest), 1), first), rest])
        for first in range(total + 1)
        for rest in [compositions(total - first, parts - 1)]
    ]
    return np.vstack(rows)


def scores_of(counts):
    """Models `(groups, inputs, classes)` whose votes are `counts` (inputs, classes)."""
    classes = counts.shape[1]
    votes = np.stack([np.repeat(np.arange(classes), row) for row in counts], axis=1)
    return np.eye(classes, dtype=np.float32)[votes] * 0.8 + 0.2 / classes


@pytest.mark.parametrize("unit", ["user", "instance"])
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (5, 3), (9, 3), (7, 4), (13, 2)])
def test_no_k_votes_change_a_certified_prediction(groups, classes, relation, unit):
    counts = compositions(groups, classes)
    mechanism = Partition(groups=groups, unit=unit, pooled=unit == "instance")
    threat = ThreatModel(unit=unit, relation=relation)
    certificate = certify(scores_of(counts), mechanism=mechanism, threat=threat, method="vote")
    assert certificate.sound
    tight = 0
    for row, prediction, size in zip(counts, certificate.prediction, certificate.certified_size, strict=True):
        assert prediction is not None
        for k in range(1, groups + 1):
            taken = compositions(k, classes)
            left = row - taken[(taken <= row).all(axis=1)]
            after = (left[:, None, :] + taken[None, :, :]).reshape(-1, classes)
            flipped = (after.argmax(axis=1) != prediction).any()
            assert not (flipped and k <= size)
            tight += flipped and k == size + 1
    if relation is Relation.REPLACE:
        assert tight == len(counts)  # with one unit more every prediction falls


def test_no_k_models_cost_more_or_less_than_is_said():
    rng = np.random.default_rng(SEED)
    for groups, bound in ((4, 1.0), (6, 2.5)):
        costs = rng.uniform(0, bound, groups)
        for size in range(groups + 1):
            lower, upper = partition_costs(costs, bound, size)
            for who in combinations(range(groups), size):
                for values in product((0.0, bound), repeat=size):
                    after = costs.copy()
                    after[list(who)] = values
                    assert lower - 1e-12 <= after.mean() <= upper + 1e-12


# --- cohorts drawn once -------------------------------------------------------------------------------------


def cohorts(sampling, users):
    """Members `(cohorts, users)` and the chance of each cohort."""
    members = np.array(list(product((0, 1), repeat=users)))
    size = members.sum(1)
    if isinstance(sampling, FixedSize):
        members = members[size == sampling.cohort]
        return members, np.full(len(members), 1 / len(members))
    q = sampling.probability
    return members, q**size * (1 - q) ** (users - size)


def some_scores(rng, count, *, votes):
    """Confidences `(cohorts, inputs, classes)`, those of one input more alike than those of two."""
    lean = rng.dirichlet(np.full(3, 0.4), INPUTS)
    drawn = np.stack([rng.dirichlet(0.05 + 4 * row, count) for row in lean], axis=1)
    return np.eye(3)[drawn.argmax(axis=2)] if votes else drawn


def worst_means(chances, scores, touched, prediction):
    """Means `(inputs, classes)` when touched cohorts give all to the class that comes nearest."""
    kept = np.einsum("c,cik->ik", chances * ~touched, scores)
    rivals = np.where(np.arange(3) == prediction[:, None], -np.inf, kept)
    rows = np.arange(len(kept))
    kept[rows, rivals.argmax(axis=1)] += chances[touched].sum()
    return kept


def claimed(means, mechanism, threat, method):
    certificate = certify_means(
        means / means.sum(axis=1, keepdims=True),
        mechanism=mechanism,
        threat=threat,
        method=method,
        max_size=4,
    )
    assert certificate.sound
    found = zip(certificate.prediction, certificate.certified_size, strict=True)
    return np.array([(0, -1) if size is None else (top, size) for top, size in found]).T


CASES = [
    (FixedSize(cohort=1, users=8), Relation.REPLACE),
    (FixedSize(cohort=2, users=9), Relation.REPLACE),
    (FixedSize(cohort=1, users=8), Relation.JOIN),
    (FixedSize(cohort=2, users=7), Relation.JOIN),
    (Poisson(probability=0.1), Relation.REPLACE),
    (Poisson(probability=0.15), Relation.JOIN),
]


@pytest.mark.parametrize("method", ["mean", "vote"])
@pytest.mark.parametrize(("sampling", "relation"), CASES, ids=str)
def test_no_k_members_change_a_certified_prediction(sampling, relation, method, record_property):
    rng, users = np.random.default_rng(SEED), getattr(sampling, "users", 7)
    mechanism = Bagging(rounds=1, sampling=sampling)
    threat = ThreatModel(relation=relation)
    trials = 0
    for _ in range(4):
        members, chances = cohorts(sampling, users)
        scores = some_scores(rng, len(members), votes=method == "vote")
        predictions, sizes = claimed(np.einsum("c,cik->ik", chances, scores), mechanism, threat, method)
        for k in (1, 2):
            chosen = np.flatnonzero(sizes >= k)
            if not len(chosen):
                continue
            for weights, given, touched in attacked(sampling, users, k, relation, scores, chances):
                means = worst_means(weights, given[:, chosen], touched, predictions[chosen])
                assert (means.argmax(axis=1) == predictions[chosen]).all()
                trials += len(chosen)
    record_property("trials", trials)
    assert trials > 500


def attacked(sampling, users, size, relation, scores, chances):
    """Chances, scores and which cohorts the adversaries are in, for every choice of adversaries."""
    members, _ = cohorts(sampling, users)
    if relation is Relation.REPLACE:
        for who in combinations(range(users), size):
            yield chances, scores, members[:, who].any(axis=1)
        return
    # Adversaries that join: cohorts without them are those there were before.
    grown = (
        sampling if isinstance(sampling, Poisson) else FixedSize(cohort=sampling.cohort, users=users + size)
    )
    more, more_chances = cohorts(grown, users + size)
    touched = more[:, users:].any(axis=1)
    index = {tuple(row): number for number, row in enumerate(members.tolist())}
    rows = [0 if bad else index[tuple(row[:users])] for row, bad in zip(more.tolist(), touched, strict=True)]
    yield more_chances, scores[rows], touched


def test_one_unit_more_than_certified_is_too_many():
    # The curve of sampling alone is the best there is: an adversary takes the share that is given up.
    mechanism, users = Bagging(rounds=1, sampling=FixedSize(cohort=1, users=10)), 10
    shares = np.linspace(0.55, 1.0, 46)
    means = np.stack((shares, 1 - shares), axis=1)
    certificate = certify_means(means, mechanism=mechanism, threat=ThreatModel(), method="vote", max_size=9)
    for share, size in zip(shares, certificate.certified_size, strict=True):
        assert share - size / users > 0.5
        assert share - (size + 1) / users <= 0.5 + 1e-9


# --- one release --------------------------------------------------------------------------------------------


def changed_uploads(honest, anything, size, relation):
    """What is sent once `size` units are replaced, or some leave and others join, in every possible way."""
    for leave in range(size, size + 1) if relation is Relation.REPLACE else range(size + 1):
        join = size if relation is Relation.REPLACE else size - leave
        for gone in combinations(range(len(honest)), leave):
            for come in combinations_with_replacement(anything, join):
                yield np.array([*np.delete(honest, gone, axis=0), *come])


@pytest.mark.parametrize("relation", Relation)
def test_no_k_uploads_change_a_certified_prediction(relation, record_property):
    rng = np.random.default_rng(SEED)
    upload = Anchors(anchors=2, classes=3, sharpness=1.0)
    mechanism, threat = OneRound(upload=upload, noise_multiplier=0.3), ThreatModel(relation=relation)
    public, inputs = rng.normal(size=(2, 3)).astype(np.float32), rng.normal(size=(INPUTS, 3))
    anything = np.array(list(product(range(-1, 3), repeat=2)))  # -1 abstains
    trials = fallen = last = 0  # predictions that one unit more than certified changed, or might have
    for _ in range(4):
        honest = np.where(rng.random((7, 2)) < 0.8, rng.integers(3, size=2), rng.integers(-1, 3, size=(7, 2)))
        noise = rng.normal(size=upload.shape)

        def scores(sent, noise=noise):
            total = with_noise(mechanism, summed(mechanism, sent), noise)
            return Release(mechanism=mechanism, total=total, anchors=public).scores(inputs)

        certificate = certify(scores(honest)[None], mechanism=mechanism, threat=threat, method="exact")
        assert certificate.sound
        before = scores(honest).argmax(axis=1)
        sizes = np.array([-1 if size is None else size for size in certificate.certified_size])
        for k in (1, 2):
            fell = np.zeros(INPUTS, dtype=bool)
            for sent in changed_uploads(honest, anything, k, relation):
                fell |= scores(sent).argmax(axis=1) != before
                trials += INPUTS
            assert not fell[sizes >= k].any()
            fallen, last = fallen + fell[sizes == k - 1].sum(), last + np.sum(sizes == k - 1)
    record_property("trials", trials)
    assert fallen > 100
    assert fallen == last or relation is Relation.REPLACE  # who is replaced may have said little before
