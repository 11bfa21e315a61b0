"""How many labels change at once: every choice of groups is tried, and every vote of theirs."""

import itertools

import numpy as np
import pytest

from fedproof.certificates import Rule, collective
from fedproof.certificates.rules import counted_sizes
from tests.certificates.test_rules import unbeaten


def label(votes, classes):
    return int(np.bincount(votes, minlength=classes).argmax())


def scores_of(votes, classes):
    """Scores (groups, inputs, classes) of votes (groups, inputs)."""
    return np.eye(classes)[votes] * 0.8 + 0.2 / classes


def most_changed(votes, classes, size):
    """Every choice of groups, and for each input every vote of the chosen ones."""
    groups, inputs = votes.shape
    before = [label(votes[:, i], classes) for i in range(inputs)]
    best = 0
    for chosen in itertools.combinations(range(groups), size):
        changed = 0
        for i in range(inputs):
            for ballot in itertools.product(range(classes), repeat=size):
                after = votes[:, i].copy()
                after[list(chosen)] = ballot
                if label(after, classes) != before[i]:
                    changed += 1
                    break
        best = max(best, changed)
    return best


@pytest.mark.parametrize(("groups", "inputs", "classes"), [(5, 6, 2), (5, 5, 3), (6, 8, 3), (7, 4, 4)])
def test_it_equals_trying_every_choice_of_groups(groups, inputs, classes):
    generator = np.random.default_rng(0)
    for _ in range(6):
        leaning = generator.dirichlet(np.ones(classes), size=inputs)
        votes = np.array([[generator.choice(classes, p=p) for p in leaning] for _ in range(groups)])
        found = collective(scores_of(votes, classes), range(4))
        assert found == {size: most_changed(votes, classes, size) for size in range(4)}


def test_it_is_often_less_than_what_is_not_certified_one_by_one_and_never_more():
    generator = np.random.default_rng(1)
    votes = (generator.random((15, 60)) < 0.35).astype(int)
    scores = scores_of(votes, 2)
    _, sizes = counted_sizes(Rule.PLURALITY, scores, 15)
    found = collective(scores, range(1, 6))
    alone = {size: int(np.sum(sizes < size)) for size in range(1, 6)}
    assert all(found[size] <= alone[size] for size in found)
    assert found[2] < alone[2]


def test_pairs_that_are_lost_are_bounded():
    """Rule pairwise: at most so many inputs keep no class that beats all others, over all weak orders."""
    orders = [order for order in itertools.product(range(3), repeat=3) if 0 in order]
    generator = np.random.default_rng(2)
    groups, inputs = 4, 3
    for _ in range(5):
        ballots = [[orders[generator.integers(len(orders))] for _ in range(inputs)] for _ in range(groups)]
        scores = (np.array(ballots) - np.mean(ballots, axis=2, keepdims=True)) / 20 + 1 / 3
        before = [unbeaten([row[i] for row in ballots]) for i in range(inputs)]
        found = collective(scores, [1, 2], rule=Rule.PAIRWISE)
        for size in (1, 2):
            best = 0
            for chosen in itertools.combinations(range(groups), size):
                best = max(best, sum(loses(ballots, i, chosen, orders, before[i]) for i in range(inputs)))
            assert found[size] == best


def loses(ballots, i, chosen, orders, before):
    if before is None:
        return True
    for others in itertools.product(orders, repeat=len(chosen)):
        after = [row[i] for row in ballots]
        for group, ballot in zip(chosen, others, strict=True):
            after[group] = ballot
        if unbeaten(after) != before:
            return True
    return False


def test_a_search_that_is_cut_short_gives_a_bound():
    votes = (np.random.default_rng(3).random((41, 300)) < 0.42).astype(int)
    scores = scores_of(votes, 2)
    _, sizes = counted_sizes(Rule.PLURALITY, scores, 41)
    short, hurried = (collective(scores, [4], seconds=seconds)[4] for seconds in (1.0, 1e-3))
    greedy = chosen_greedily(votes, 4)
    assert greedy <= short <= hurried <= np.sum(sizes < 4)


def chosen_greedily(votes, size):
    """Labels that change if the groups are chosen that vote with the winner of most close inputs."""
    winner = np.array([label(column, 2) for column in votes.T])
    lead = np.abs(2 * votes.sum(axis=0) - len(votes)) + (winner == 0)
    close = lead <= 2 * size
    order = np.argsort(-((votes == winner) & close).sum(axis=1))[:size]
    return int(np.sum(2 * (votes[order] == winner).sum(axis=0) >= lead))


def test_more_units_than_groups_change_everything_and_none_nothing():
    scores = scores_of(np.zeros((5, 3), dtype=int), 2)
    assert collective(scores, [0, 2, 3, 5, 9]) == {0: 0, 2: 0, 3: 3, 5: 3, 9: 3}


def test_newcomers_with_votes_of_their_own_change_all_that_is_not_certified_one_by_one():
    votes = np.random.default_rng(4).integers(0, 3, (9, 40))
    scores = scores_of(votes, 3)
    for rule in (Rule.PLURALITY, Rule.PAIRWISE):
        _, sizes = counted_sizes(rule, scores, 9, own_votes=(True,))
        found = collective(scores, range(1, 6), rule=rule, own_vote=True)
        assert found == {size: int(np.sum(sizes < size)) for size in range(1, 6)}


def test_mistakes_are_named():
    scores = scores_of(np.zeros((5, 3), dtype=int), 2)
    with pytest.raises(ValueError, match="collective needs rule plurality or pairwise"):
        collective(scores, [1], rule=Rule.RUN_OFF)
    with pytest.raises(ValueError, match="seconds = 0"):
        collective(scores, [1], seconds=0)
    with pytest.raises(ValueError, match="size = -1"):
        collective(scores, [-1])
