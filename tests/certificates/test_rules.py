"""Rules of election: exhaustive search over what groups may say, the exact law of replicas, and files."""

import itertools
import json
from functools import cache

import numpy as np
import pytest

from fedproof.certificates import Rule, certify, certify_means, dumps, loads, verify
from fedproof.certificates.rules import counted_sizes, rule_share
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, Partition, Poisson

PAIRED = [Rule.PAIRWISE, Rule.RUN_OFF]


# --- the rules once more, in plain loops --------------------------------------------------------------------


def beats(ballots, a, b):
    lead = sum((ballot[a] > ballot[b]) - (ballot[b] > ballot[a]) for ballot in ballots)
    return lead > 0 or (lead == 0 and a < b)


def by_votes(ballots):
    """Classes by number of votes, the lower of equal ones first."""
    votes = [max(range(len(ballot)), key=lambda c: (ballot[c], -c)) for ballot in ballots]
    return sorted(range(len(ballots[0])), key=lambda c: (-votes.count(c), c))


def unbeaten(ballots):
    classes = range(len(ballots[0]))
    found = [a for a in classes if all(beats(ballots, a, b) for b in classes if b != a)]
    return found[0] if found else None


def winner(rule, ballots):
    first, second, *_ = by_votes(ballots)
    if rule is Rule.PLURALITY:
        return first
    if rule is Rule.PAIRWISE:
        return first if unbeaten(ballots) is None else unbeaten(ballots)
    return first if beats(ballots, first, second) else second


def weak_orders(classes):
    """All ways to rank classes with ties, as numbers that are larger for better ones."""
    every = itertools.product(range(classes), repeat=classes)
    return [order for order in every if set(order) == set(range(max(order) + 1))]


@cache
def elections(groups, classes):
    """Every election of so many groups: (elections, groups) indices of ballots."""
    orders = weak_orders(classes)
    return np.array(list(itertools.product(range(len(orders)), repeat=groups)))


@cache
def outcomes(rule, groups, classes):
    orders = weak_orders(classes)
    return np.array([winner(rule, [orders[i] for i in row]) for row in elections(groups, classes)])


def scores_of(rows, classes):
    """Scores (groups, elections, classes) of ballots; the certificate looks at their order alone."""
    orders = np.array(weak_orders(classes), dtype=np.float64)
    orders = 1 / classes + (orders - orders.mean(axis=1, keepdims=True)) / 20
    return orders[rows].transpose(1, 0, 2)


def changed_groups(rows, wrong):
    """For each of `rows` the fewest groups in which it differs from one of its own `wrong` elections."""
    return [int((target != row).sum(axis=1).min()) for row, target in zip(rows, wrong, strict=True)]


def sampled(groups, classes, most=400):
    every = elections(groups, classes)
    chosen = np.random.default_rng(0).choice(len(every), min(most, len(every)), replace=False)
    return every[chosen], chosen


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(("groups", "classes"), [(3, 2), (5, 2), (2, 3), (3, 3), (4, 3), (2, 4)])
def test_no_change_of_so_many_groups_changes_the_label(rule, groups, classes):
    every, labels = elections(groups, classes), outcomes(rule, groups, classes)
    rows, chosen = sampled(groups, classes)
    top, sizes = counted_sizes(rule, scores_of(rows, classes), groups)
    assert np.array_equal(top, labels[chosen])
    reached = changed_groups(rows, [every[labels != label] for label in labels[chosen]])
    assert np.all(sizes < reached)
    assert np.all(sizes >= 0)


@pytest.mark.parametrize(("groups", "classes"), [(3, 2), (2, 3), (3, 3), (4, 3), (2, 4)])
def test_one_group_more_makes_some_class_beat_the_winner_of_all_pairs(groups, classes):
    orders, every = weak_orders(classes), elections(groups, classes)
    best = np.array([unbeaten([orders[i] for i in row]) for row in every], dtype=object)
    rows, chosen = sampled(groups, classes)
    _, sizes = counted_sizes(Rule.PAIRWISE, scores_of(rows, classes), groups)
    known = [i for i, index in enumerate(chosen) if best[index] is not None]
    reached = changed_groups(rows[known], [every[best != best[chosen[i]]] for i in known])
    assert (sizes[known] + 1).tolist() == reached
    undecided = np.setdiff1d(np.arange(len(rows)), known)
    assert np.all(sizes[undecided] == 0)


@pytest.mark.parametrize(("groups", "classes"), [(3, 3), (4, 3), (5, 2)])
def test_run_off_is_close_to_what_groups_can_do(groups, classes):
    every, labels = elections(groups, classes), outcomes(Rule.RUN_OFF, groups, classes)
    rows, chosen = sampled(groups, classes)
    _, sizes = counted_sizes(Rule.RUN_OFF, scores_of(rows, classes), groups)
    reached = np.array(changed_groups(rows, [every[labels != label] for label in labels[chosen]]))
    assert np.mean(sizes + 1 == reached) > 0.9


def test_two_classes_get_ahead_of_the_winner_with_as_many_groups_as_said():
    """Run-off, first way to lose: A has 4 votes, b and c have 2 and 3, and nobody beats A."""
    ballots = np.array([[3, 2, 1, 0]] * 4 + [[2, 3, 1, 0]] * 2 + [[2, 1, 3, 0]] * 3) / 10.0
    (top,), (size,) = counted_sizes(Rule.RUN_OFF, ballots[:, None], 9)
    assert (top, size) == (0, 1)  # g = 3 and 2: three groups give 9, two give 6, one gives 3 < 5
    ballots[0], ballots[1] = np.array([0, 3, 2, 1]) / 10, np.array([0, 2, 3, 1]) / 10
    assert winner(Rule.RUN_OFF, ballots.tolist()) != 0


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(
    ("groups", "classes", "most"), [(3, 2, 3), (5, 2, 2), (2, 3, 2), (3, 3, 2), (4, 3, 1)]
)
def test_nobody_who_comes_or_goes_with_an_own_vote_changes_the_label(rule, groups, classes, most):
    orders = weak_orders(classes)
    rows, _ = sampled(groups, classes, 60)
    top, sizes = counted_sizes(rule, scores_of(rows, classes), most, own_votes=(True,))
    broken = 0
    for row, label, size in zip(rows, top, sizes, strict=True):
        ballots = [orders[i] for i in row]
        for gone, come in itertools.product(range(groups), range(most + 2)):
            if gone + come > min(size + 1, most):
                continue
            for left in itertools.combinations(ballots, groups - gone):
                for added in itertools.combinations_with_replacement(orders, come):
                    after = winner(rule, [*left, *added])
                    assert after == label or gone + come > size
                    broken += after != label
    assert broken > 0


def test_wrong_certificates_are_caught_by_the_search():
    """One unit more than certified changes labels, for every rule: the search is not blind."""
    for rule in Rule:
        every, labels = elections(3, 3), outcomes(rule, 3, 3)
        rows, chosen = sampled(3, 3)
        _, sizes = counted_sizes(rule, scores_of(rows, 3), 3)
        reached = changed_groups(rows, [every[labels != label] for label in labels[chosen]])
        assert np.mean(sizes + 1 >= reached) > 0.5


def test_larger_federations_are_attacked_greedily_in_vain():
    generator = np.random.default_rng(1)
    for rule in PAIRED:
        scores = generator.dirichlet([3, 2.5, 2, 1], size=(31, 40))
        top, sizes = counted_sizes(rule, scores, 31)
        for column, (label, size) in enumerate(zip(top, sizes, strict=True)):
            for rival, third in itertools.permutations([c for c in range(4) if c != label], 2):
                order = np.argsort(-(scores[:, column, label] - scores[:, column, rival]))
                mine = (scores[:, column].argmax(1) == label)[order]
                for chosen in (order[:size], np.r_[order[mine], order[~mine]][:size]):
                    for share in range(size + 1):
                        ballots = scores[:, column].copy()
                        ballots[chosen[:share]] = np.eye(4)[rival] * 0.9 + np.eye(4)[third] * 0.1
                        ballots[chosen[share:]] = np.eye(4)[third] * 0.9 + np.eye(4)[rival] * 0.1
                        assert winner(rule, ballots.tolist()) == label


# --- expectations over replicas -----------------------------------------------------------------------------


def law(generator, cells, classes):
    """A model's law: the chance of each of several models, and their scores (models, classes)."""
    return generator.dirichlet(np.full(cells, 0.7)), generator.integers(0, 4, (cells, classes)) / 10


def expected_winner(rule, chance, models, votes):
    classes = range(models.shape[1])
    lead = [[chance @ np.sign(models[:, a] - models[:, b]) for b in classes] for a in classes]
    one_hot = np.array([np.eye(len(classes))[model.argmax()] for model in models])
    first = chance @ (one_hot if votes else models)
    order = sorted(classes, key=lambda c: (-first[c], c))
    if rule is Rule.PAIRWISE:
        found = [a for a in classes if all(lead[a][b] > 0 for b in classes if b != a)]
        return found[0] if found else None
    (a, b), slack = order[:2], 1e-9
    return a if lead[a][b] > slack else b if lead[a][b] < -slack else None


@pytest.mark.parametrize(("rule", "method"), [("pairwise", "vote"), ("run-off", "vote"), ("run-off", "mean")])
@pytest.mark.parametrize("sampling", [FixedSize(cohort=2, users=40), Poisson(probability=0.05)])
def test_no_model_law_within_reach_contradicts_the_replicas(rule, method, sampling):
    """Replace: with chance 1 - w_0 a replica becomes whatever the adversary wants, else it stays."""
    generator = np.random.default_rng(0)
    mechanism, replicas = Bagging(rounds=1, sampling=sampling), 3000
    broken = tried = 0
    for _ in range(25):
        chance, models = law(generator, 6, 3)
        models = models / 10 + (1 - models.sum(1, keepdims=True) / 10) / 3  # rows add up to one
        drawn = generator.choice(len(chance), replicas, p=chance)
        found = certify(
            models[drawn][:, None], mechanism=mechanism, method=method, rule=rule, failure_probability=1e-6
        )
        (label,), (size,) = found.prediction, found.certified_size
        if label is None:
            continue
        for extra, wrong in ((0, False), (6, True)):
            none = chance_of_none(sampling, size + extra)
            for swapped in attacks(chance, 1 - none):
                for target in itertools.permutations((0.05, 0.25, 0.7)):
                    law_after = np.append(chance - swapped, swapped.sum())
                    after = expected_winner(
                        Rule(rule), law_after, np.vstack([models, target]), method == "vote"
                    )
                    if not wrong:
                        tried += 1
                        assert after == label
                    elif after != label:
                        broken += 1
    assert tried > 500
    assert broken > 100  # six units more change labels: the attacks have power


def chance_of_none(sampling, size):
    if isinstance(sampling, Poisson):
        return (1 - sampling.probability) ** size
    users, cohort = sampling.users, sampling.cohort
    return float(np.prod([(users - size - i) / (users - i) for i in range(cohort)]))


def attacks(chance, mass):
    """Which models are lost: those of each order, as much of the law as the adversary is drawn into."""
    for order in itertools.permutations(range(len(chance)), 2):
        left, lost = mass, np.zeros(len(chance))
        for cell in (*order, *[c for c in range(len(chance)) if c not in order]):
            lost[cell] = min(left, chance[cell])
            left -= lost[cell]
        yield lost
    yield chance * mass


@pytest.mark.parametrize(
    ("rule", "method", "law"),
    [
        ("pairwise", "vote", "duel"),
        ("run-off", "vote", "duel"),
        ("run-off", "mean", "duel"),
        ("run-off", "vote", "second"),
    ],
)
@pytest.mark.parametrize("bound", ["betting", "hoeffding", None])
def test_false_claims_are_as_rare_as_promised(rule, method, bound, law):
    """Near ties: a claim for a class that is not elected in truth may happen with chance ψ = 20 % at most.

    Of 400 inputs more than 125 false ones have probability below 1e-6 if each has 20 %.
    """
    generator = np.random.default_rng(3)
    models = np.array([[0.5, 0.4, 0.1], [0.4, 0.5, 0.1], [0.45, 0.45, 0.1]])
    chance = np.array([0.455, 0.445, 0.1])
    if law == "second":  # class 1 would beat class 0, and is second by a hair; class 2 would not
        models = np.array([[0.5, 0.3, 0.2], [0.3, 0.5, 0.2], [0.2, 0.3, 0.5]])
        chance = np.array([0.45, 0.28, 0.27])
    truth = expected_winner(Rule(rule), chance, models, method == "vote")
    scores = models[generator.choice(3, (60, 400), p=chance)]
    found = certify(
        scores,
        mechanism=CohortOnce(rounds=1, sampling=Poisson(probability=0.1), noise_multiplier=2.0),
        method=method,
        rule=rule,
        bound=bound,
        failure_probability=0.2,
    )
    false = sum(label not in (None, truth) for label in found.prediction)
    assert false <= 125
    exact = certify(scores, mechanism=found.mechanism, method=method, rule=rule, bound="none")
    assert sum(label not in (None, truth) for label in exact.prediction) > 125


def test_the_failure_probability_is_shared_among_the_bounds_that_may_be_used():
    assert rule_share(Rule.PAIRWISE, 0.01, 10, "sound") == pytest.approx(0.001)
    assert rule_share(Rule.RUN_OFF, 0.03, 10, "sound") == pytest.approx(0.001)
    assert rule_share(Rule.RUN_OFF, 0.01, 2, "sound") == pytest.approx(0.005)
    assert rule_share(Rule.PLURALITY, 0.012, 10, "sound") == pytest.approx(0.001)


# --- files, and mistakes ------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", list(Rule))
@pytest.mark.parametrize(
    "mechanism", [Partition(groups=21), Bagging(rounds=1, sampling=FixedSize(cohort=2, users=99))]
)
def test_files_hold_the_rule_and_verify(rule, mechanism):
    scores = np.random.default_rng(0).dirichlet([6, 3, 1], size=(21, 5)).astype(np.float32)
    certificate = certify(scores, [0] * 5, mechanism=mechanism, method="vote", rule=rule)
    text = dumps(certificate)
    assert certificate.sound
    assert loads(text) == certificate
    assert verify(text, scores) == ()
    assert json.loads(text)["rule"] == rule
    if rule is not Rule.PLURALITY:
        other = text.replace(f'"{rule}"', '"plurality"')
        assert any("rule" in line for line in verify(other, scores))


def test_a_rule_that_is_none_is_named():
    scores = np.random.default_rng(0).dirichlet([6, 3, 1], size=(21, 5)).astype(np.float32)
    document = json.loads(dumps(certify(scores, mechanism=Partition(groups=21), method="vote")))
    document["rule"] = "dictator"
    assert any("must be one of plurality" in line for line in verify(json.dumps(document), scores))


def test_mistakes_are_named():
    scores = np.random.default_rng(0).dirichlet([6, 3, 1], size=(21, 5))
    sampled_once = Bagging(rounds=1, sampling=FixedSize(cohort=2, users=99))
    with pytest.raises(ValueError, match="rule = 'pairwise' compares votes: use method vote"):
        certify(scores, mechanism=sampled_once, method="mean", rule="pairwise")
    with pytest.raises(ValueError, match="rule = 'run-off' is not defined for method margin"):
        certify(scores, mechanism=sampled_once, rule="run-off")
    with pytest.raises(ValueError, match="rule = 'dictator' must be one of plurality, pairwise, run-off"):
        certify(scores, mechanism=sampled_once, method="vote", rule="dictator")
    with pytest.raises(ValueError, match="needs rule plurality, not pairwise"):
        certify(
            scores, mechanism=sampled_once, method="vote", bound="betting", rule="pairwise", sequential=True
        )
    means = certify_means([[0.9, 0.1]], mechanism=sampled_once)
    document = json.loads(dumps(means)) | {"rule": "run-off"}
    assert any(
        "needs the scores of every replica" in line for line in verify(json.dumps(document), [[0.9, 0.1]])
    )
