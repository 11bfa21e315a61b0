"""Votes of disjoint groups: the certificate equals exhaustive enumeration, and files verify."""

import itertools

import numpy as np
import pytest
from dp_accounting import UnsupportedEventError

from fedproof.accounting import account, tradeoff
from fedproof.certificates import certify, certify_means, dumps, loads, rules, verify
from fedproof.certificates.comparison import compare
from fedproof.certificates.tight import partition_costs, partition_sizes
from fedproof.mechanisms import Partition
from fedproof.seeds import groups_of
from fedproof.statements import sentences
from fedproof.threat import ThreatModel


def winner(votes, classes):
    return int(np.bincount(votes, minlength=classes).argmax())


@pytest.mark.parametrize(("groups", "classes"), [(2, 2), (5, 2), (4, 3), (5, 3)])
def test_the_certificate_equals_enumerating_every_change_of_votes(groups, classes):
    outcomes = [np.array(votes) for votes in itertools.product(range(classes), repeat=groups)]
    for votes in outcomes:
        (top,), (size,) = partition_sizes(np.bincount(votes, minlength=classes)[None])
        assert top == winner(votes, classes)
        changing = [int((votes != other).sum()) for other in outcomes if winner(other, classes) != top]
        assert size == min(changing) - 1


def count_vectors(voters, classes):
    """All ways in which so many voters may vote, as votes of each class."""
    for cuts in itertools.combinations(range(voters + classes - 1), classes - 1):
        yield np.diff([-1, *cuts, voters + classes - 1]) - 1


@pytest.mark.parametrize("classes", [2, 3])
@pytest.mark.parametrize("voters", range(1, 7))
def test_with_a_vote_of_ones_own_the_size_is_what_any_mix_of_coming_and_going_needs(voters, classes):
    for counts in count_vectors(voters, classes):
        (top,), (size,) = partition_sizes(counts[None], own_vote=True)
        assert top == counts.argmax()
        assert size == fewest_to_change(counts) - 1
        assert size >= partition_sizes(counts[None])[1][0]


def fewest_to_change(counts):
    """By trying: any leavers among the votes that are there, any joiners, k of them together."""
    return next(
        k for k in itertools.count(1) if any(after.argmax() != counts.argmax() for after in moved(counts, k))
    )


def moved(counts, k):
    for leavers in range(k + 1):
        for left in count_vectors(leavers, len(counts)):
            for came in count_vectors(k - leavers, len(counts)):
                if (left <= counts).all():
                    yield counts - left + came


@pytest.mark.parametrize("relation", ["replace", "join"])
def test_one_user_one_vote_is_certified_for_what_happens_to_users(scores, relation):
    threat, mechanism = ThreatModel(relation=relation), Partition(pooled=True)
    certificate = certify(scores, [0] * 5, mechanism=mechanism, threat=threat, method="vote")
    counts = (scores.argmax(2)[..., None] == np.arange(3)).sum(0)
    expected = partition_sizes(counts, own_vote=relation == "join")[1]
    assert certificate.sound
    assert certificate.certified_size == tuple(expected.tolist())
    assert certificate.assumptions[-1].code == "group-of-one"
    text = dumps(certificate)
    assert '"groups": null' in text
    assert loads(text) == certificate
    assert verify(text, scores) == ()
    curves = compare(scores, np.zeros(5, dtype=np.int64), mechanism=mechanism, delta=1e-5)
    assert [curve.relation for curve in curves] == ["replace", "join"]
    same = certificate.certified_accuracy(range(3))
    assert list(curves[relation == "join"].accuracy[:3]) == same


@pytest.mark.parametrize(("rule", "counts"), [("plurality", "vote_counts"), ("run-off", "duels")])
def test_votes_are_counted_once_for_both_relations(scores, monkeypatch, rule, counts):
    asked, real = [], getattr(rules, counts)
    monkeypatch.setattr(rules, counts, lambda given: asked.append(1) or real(given))
    labels = np.zeros(5, dtype=np.int64)
    curves = compare(scores, labels, mechanism=Partition(pooled=True), delta=1e-5, rule=rules.Rule(rule))
    assert (len(curves), len(asked)) == (2, 1)


@pytest.mark.parametrize("relation", ["replace", "join"])
def test_no_poisoning_of_a_tiny_federation_beats_the_certificate(relation):
    """Users hold one of three values, a model is any function of its group: every poisoning is tried."""
    groups, users, classes = 3, 5, 3
    generator = np.random.default_rng(0)
    own = groups_of(groups, np.arange(users + 2), seed=1)

    def vote(function, group, values):
        members = tuple(value for value, home in zip(values, own, strict=False) if home == group)
        return function.setdefault((group, members), int(generator.integers(classes)))

    for _ in range(30):
        function: dict[tuple[int, tuple[int, ...]], int] = {}
        clean = tuple(generator.integers(0, 3, users).tolist())
        votes = np.array([vote(function, group, clean) for group in range(groups)])
        (top,), (size,) = partition_sizes(np.bincount(votes, minlength=classes)[None])
        for poisoned in poisonings(clean, int(size), relation):
            again = np.array([vote(function, group, poisoned) for group in range(groups)])
            assert winner(again, classes) == top


def poisonings(clean, size, relation):
    if relation == "join":
        for extra in range(size + 1):
            for values in itertools.product(range(3), repeat=extra):
                yield (*clean, *values)
        return
    for chosen in itertools.combinations(range(len(clean)), size):
        for values in itertools.product(range(3), repeat=size):
            poisoned = list(clean)
            for user, value in zip(chosen, values, strict=True):
                poisoned[user] = value
            yield tuple(poisoned)


def test_groups_are_balanced_and_do_not_depend_on_who_joins():
    few, many = groups_of(7, np.arange(25), seed=3), groups_of(7, np.arange(60), seed=3)
    assert np.array_equal(few, many[:25])
    assert np.ptp(np.bincount(many)) <= 1
    assert not np.array_equal(few, groups_of(7, np.arange(25), seed=4))
    with pytest.raises(ValueError, match="groups = 26 must be at most the number of units = 25"):
        groups_of(26, np.arange(25), seed=0)


@pytest.fixture(scope="module")
def scores():
    return np.random.default_rng(0).dirichlet([6, 1, 1], size=(21, 5)).astype(np.float32)


@pytest.mark.parametrize("unit", ["user", "instance"])
@pytest.mark.parametrize("relation", ["replace", "join"])
def test_certificates_are_certain_and_verify(scores, relation, unit):
    threat = ThreatModel(relation=relation, unit=unit)
    mechanism = Partition(groups=21, pooled=True, unit=unit)
    certificate = certify(scores, [0] * 5, mechanism=mechanism, threat=threat, method="vote")
    assert f"which group one {unit} belongs to" in certificate.assumptions[-1].sentence
    assert certificate.sound
    assert certificate.failure_probability == 0
    counts = (scores.argmax(2)[..., None] == np.arange(3)).sum(0)
    assert certificate.certified_size == tuple(partition_sizes(counts)[1].tolist())
    assert any("no privacy is claimed" in line for line in sentences(certificate.assumptions))
    text = dumps(certificate)
    assert loads(text) == certificate
    assert verify(text, scores) == ()
    assert any(
        "certified_size" in line
        for line in verify(text.replace('"certified_size": [', '"certified_size": [9'), scores)
    )


def test_bad_questions_are_refused(scores):
    with pytest.raises(ValueError, match="groups = 1 must be at least 2"):
        Partition(groups=1)
    with pytest.raises(ValueError, match="groups = None must be a number for unit = 'instance'"):
        Partition(unit="instance", pooled=True)
    with pytest.raises(ValueError, match="scores are of 21 models, must be of groups = 20"):
        certify(scores, mechanism=Partition(groups=20), method="vote")
    with pytest.raises(ValueError, match="method = 'mean' must be vote for a partition"):
        certify(scores, mechanism=Partition(groups=21), method="mean")
    with pytest.raises(ValueError, match="give the scores of the models themselves"):
        certify_means([[0.9, 0.1]], mechanism=Partition(groups=21), method="vote")
    with pytest.raises(ValueError, match=r"threat\.unit = 'instance' must be 'user'"):
        certify(scores, mechanism=Partition(groups=21), threat=ThreatModel(unit="instance"), method="vote")
    with pytest.raises(UnsupportedEventError, match="Partition adds no noise"):
        account(Partition(groups=3), 1e-5)
    with pytest.raises(UnsupportedEventError, match="Partition adds no noise"):
        tradeoff(Partition(groups=3), ThreatModel(), 1)


@pytest.mark.parametrize("size", [0, 1, 2, 5])
def test_cost_bounds_equal_the_worst_of_all_changes_of_that_many_models(size):
    costs, bound = np.array([0.3, 0.0, 0.25, 0.5, 0.1]), 0.5
    reached = [
        float(np.where(np.isin(range(5), chosen), value, costs).mean())
        for chosen in itertools.combinations(range(5), size)
        for value in (0.0, bound)
    ]
    np.testing.assert_allclose(partition_costs(costs, bound, size), (min(reached), max(reached)))
