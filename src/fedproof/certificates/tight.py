"""Tight certificates from means and votes: how far a trade-off curve lets confidences move.

The sizes are nested hypotheses: poisoning k + 1 units includes poisoning k. Each input walks up from size 0
and stops at the first size it cannot prove, so the failure probability is not shared among sizes.
"""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.accounting.tradeoff import LARGEST, Tradeoff
from fedproof.arrays import Bools, Floats, Integers, votes_of
from fedproof.certificates.confidence import MIXTURE, Bets, Bound, mean_lower, mean_upper
from fedproof.certificates.scores import Array, input_parts
from fedproof.release import ERROR, SHARE_ERROR, Release
from fedproof.threat import Relation

TradeoffBySize = Callable[[int], Tradeoff]
Holds = Callable[[int, Integers], Bools]

SLACK = 1e-12  # a strict inequality must hold by more than float error


@dataclass(frozen=True, kw_only=True)
class ClassBounds:
    """Per input: the top class, its mean, and bounds on its confidence and on that of all its rivals."""

    top: Integers
    tied: Bools
    top_lower: Floats
    rival_upper: Floats


@dataclass(frozen=True, kw_only=True)
class CertifiedSizes:
    """Per input: the class tested, the class that leads, a tie, the size (-1: none), the bounds used.

    `real` are the paper's real-valued sizes. The class tested leads, unless it was chosen by fewer replicas.
    """

    top: Integers
    leader: Integers
    tied: Bools
    sizes: Integers
    bounds: ClassBounds | None = None
    real: Floats | None = None


def walk(num_inputs: int, holds: Holds, max_size: int) -> Integers:
    """Largest size per input up to which `holds(size, inputs)` is true at 0, 1, ..., size; -1 if not at 0.

    >>> walk(2, lambda size, inputs: size < 3 * inputs, max_size=10).tolist()
    [-1, 2]
    """
    sizes = np.full(num_inputs, -1, dtype=np.int64)
    alive = np.arange(num_inputs)
    for size in range(max_size + 1):
        alive = alive[holds(size, alive)]
        sizes[alive] = size
        if not alive.size:
            break
    return sizes


def mean_sizes(
    top_lower: Floats, rival_upper: Floats, curve: TradeoffBySize, max_size: int, *, gap: float = 0.0
) -> Integers:
    """Certified sizes of the mean certificate, -1 where the prediction itself is open.

    Guarantee: with `size` poisoned units the top class's mean confidence still exceeds every other's by more
    than `gap`, because L_k(F_A) > max_B U_k(F_B) + gap.
    Assumes: `curve(k)` bounds the mechanism's trade-off for the threat at size k.
    Reference: theory.md, section 3.

    >>> from fedproof.accounting.tradeoff import GaussianTradeoff
    >>> mean_sizes(np.array([0.97]), np.array([0.03]), lambda k: GaussianTradeoff(shift=k / 4), 60).tolist()
    [7]
    """

    def holds(size: int, inputs: Integers) -> Bools:
        tradeoff = curve(size)
        low, high = tradeoff.lower(top_lower[inputs]), tradeoff.upper(rival_upper[inputs])
        return np.asarray(low > high + gap + SLACK)

    # Saturated replicas are certain, and noise leaves a certain event certain at every size: the last one
    # includes all others, of which each may take a tenth of a second.
    certain = np.flatnonzero((top_lower == 1) & (rival_upper == 0))
    if not certain.size or not holds(max_size, certain).all():
        return walk(len(top_lower), holds, max_size)
    sizes = np.full(len(top_lower), max_size, dtype=np.int64)
    rest = np.flatnonzero((top_lower < 1) | (rival_upper > 0))
    sizes[rest] = walk(len(rest), lambda size, inputs: holds(size, rest[inputs]), max_size)
    return sizes


def class_bounds(
    scores: Array, bound: Bound, failure_probability: float, *, votes: bool = False, bets: Bets = MIXTURE
) -> ClassBounds:
    """Top class and bounds per input from `scores` (replicas, inputs, classes), read in parts.

    `failure_probability` is spent on each one-sided bound (see `confidence.share`). With `votes` every
    replica counts for its most confident class only, the first of equal ones.
    """
    parts = []
    for _, part in input_parts(scores, votes=votes):
        values = votes_of(part) if votes else part
        parts.append(_part_bounds(values, bound, failure_probability, bets))
    top, tied, lower, upper = (np.concatenate(column) for column in zip(*parts, strict=True))
    return ClassBounds(top=top, tied=tied, top_lower=lower, rival_upper=upper)


def ranking(means: Floats) -> tuple[Integers, Integers, Bools]:
    """Top class, runner-up and whether the two are tied, for means (inputs, classes)."""
    order = np.argsort(-means, axis=1, kind="stable")
    rows = np.arange(len(means))
    top, second = order[:, 0], order[:, 1]
    return top, second, means[rows, top] == means[rows, second]


def _part_bounds(
    values: Floats, bound: Bound, failure_probability: float, bets: Bets
) -> tuple[Integers, Bools, Floats, Floats]:
    means = values.mean(axis=0)
    top, second, tied = ranking(means)
    rows = np.arange(len(means))
    lower = mean_lower(values[:, rows, top], bound, failure_probability, bets=bets)
    upper = mean_upper(values[:, rows, second], bound, failure_probability, bets=bets)
    others = np.ones(means.shape, dtype=bool)
    others[rows, top] = others[rows, second] = False
    if others.any():
        upper = _raise_to_others(values, others, upper, bound, failure_probability, bets)
    return top, tied, lower, upper


def _raise_to_others(
    values: Floats, others: Bools, upper: Floats, bound: Bound, failure_probability: float, bets: Bets
) -> Floats:
    """The largest upper bound of an input's rivals, given that of the runner-up.

    A bet that rejects the runner-up's bound for another rival shows in one evaluation that its own bound is
    lower; only the rest need a root search.
    """
    inputs, classes = np.nonzero(others)
    columns = values[:, inputs, classes]
    if bound is Bound.BETTING:
        lower_than = bets.rejects(1 - columns, 1 - upper[inputs], failure_probability)
        inputs, columns = inputs[~lower_than], columns[:, ~lower_than]
    raised = upper.copy()
    if inputs.size:
        bounds = mean_upper(columns, bound, failure_probability, bets=bets)
        np.maximum.at(raised, inputs, bounds)
    return raised


# --- an ensemble of few replicas that is itself retrained under attack --------------------------------------


def served_gap(num_replicas: int, num_classes: int, failure_probability: float) -> float:
    """The lead in expected confidence with which a class also leads in the mean over the replicas.

    Guarantee: if the expected lead of A over each rival, given the data and given all earlier replicas, is at
    least this gap, then the mean confidence of A over `num_replicas` replicas is above that of every rival
    with probability at least 1 - `failure_probability`; votes are confidences of 0 and 1.
    Proof: let X_i in [-1, 1] be the lead over one rival in replica i, with mean at least g. By convexity
    E exp(-λ X_i) <= cosh λ - g sinh λ, whose least value over λ is sqrt(1 - g²). So the mean of n of them is
    zero or less with probability at most (1 - g²)^(n/2), which is ψ₂/(C - 1) for each of C - 1 rivals at
    g = sqrt(1 - (ψ₂/(C - 1))^(2/n)).
    Reference: Hoeffding 1963, Theorem 1; Azuma 1967 for replicas one after another; theory.md, section 4.

    >>> round(served_gap(1000, 2, 0.01), 4), round(served_gap(10, 10, 0.01), 4)
    (0.0957, 0.8622)
    """
    check.count(num_replicas=num_replicas)
    check.open_probability(failure_probability=failure_probability)
    exponent = 2 * math.log(failure_probability / (num_classes - 1)) / num_replicas
    return min(1.0, math.sqrt(-math.expm1(exponent)) * (1 + 1e-12))


# --- disjoint groups: votes are counted, nothing is estimated -----------------------------------------------


def vote_counts(scores: Array) -> Integers:
    """Votes `(inputs, classes)` of the models in `scores` (models, inputs, classes)."""
    classes, counted = scores.shape[2], []
    for _, part in input_parts(scores, votes=True):
        cells = part.argmax(axis=2) + classes * np.arange(part.shape[1])
        counted.append(np.bincount(cells.ravel(), minlength=classes * part.shape[1]).reshape(-1, classes))
    return np.concatenate(counted)


def partition_sizes(counts: Integers, *, own_vote: bool = False) -> tuple[Integers, Integers]:
    """The class with most votes, the first of equal ones, and how many units cannot change it.

    Guarantee: the winner A stays for every k <= floor((n_A - n_B - [B < A]) / 2), B any other class, with
    certainty: a poisoned or an added unit touches one group, whose vote may move from A to B. With `own_vote`
    units come or go, each a group of its own, and A stays for every k <= n_A - n_B - [B < A].
    Proof: A wins if and only if n_A - n_B >= [B < A] for every B. A vote that moves lowers n_A - n_B by two
    at most, one that is added or taken away by one, and all other models vote as before. Both are exact: one
    vote more that moves from A to B, or that is added to B, and A does not win over B.
    Assumes: training on a group is a function of that group alone; of `own_vote`, that the model of a unit
    does not depend on who else takes part, and whoever is silent has no vote.
    Reference: Levine, Feizi 2021, arXiv:2006.14768v2, Theorem 1; theory.md, section 3.

    >>> counts = np.array([[6, 3, 0], [3, 6, 0], [3, 3, 2]])
    >>> top, sizes = partition_sizes(counts)
    >>> top.tolist(), sizes.tolist(), partition_sizes(counts, own_vote=True)[1].tolist()
    ([0, 1, 0], [1, 1, 0], [3, 2, 0])
    """
    top = counts.argmax(axis=1)
    rows, classes = np.arange(len(counts)), np.arange(counts.shape[1])
    lead = counts[rows, top][:, None] - counts - (classes < top[:, None])
    lead[rows, top] = np.iinfo(np.int64).max
    return top, lead.min(axis=1) // (1 if own_vote else 2)


def exact_sizes(scores: Floats, relation: Relation, max_size: int = LARGEST) -> tuple[Integers, Integers]:
    """The class with the highest of scores (inputs, classes) in units, and how many units cannot change it.

    Guarantee: with certainty, for all inputs at once. The winner A leads B by `s_A - s_B`; each of k units
    moves that by at most c, one if it joins or leaves and two if it is replaced. So A stays for every
    k < (s_A - s_B) / c. -1 where not even the winner is beyond the error of the scores.
    Assumes: a score is within `ERROR` of the exact one, before and after; a lead holds two scores, twice.

    >>> top, sizes = exact_sizes(np.array([[9.5, 2.5], [1.0, 1.0]]), Relation.REPLACE)
    >>> top.tolist(), sizes.tolist()
    ([0, 0], [3, -1])
    """
    top = scores.argmax(axis=1)
    rows = np.arange(len(scores))
    others = scores.copy()
    others[rows, top] = -np.inf
    lead = scores[rows, top] - others.max(axis=1) - 4 * ERROR
    moved = 1 if relation is Relation.JOIN else 2
    return top, np.clip(np.ceil(lead / moved) - 1, -1, max_size).astype(np.int64)


def observed_sizes(
    release: Release, added: Integers, features: NDArray[np.generic], max_size: int
) -> tuple[Integers, Integers]:
    """The class that a release gives to each input, and how many replaced units cannot change it.

    Not private: sizes follow from what every single unit sent, and no noise hides that. They are for the
    server's eyes. `added` (units, width, classes) are the vectors that the sum was made of.

    Guarantee: with certainty, for all inputs at once, against units that are replaced. Proof: let g_i be what
    unit i added to the lead of A over B. Of a set I of replaced units the g_i disappear, which are known, and
    what comes instead is -1 or more each (`mechanisms.uploads`). So lead' >= lead - Σ_I (g_i + 1), whose
    least value over sets of k units is that of the k largest g_i. As g_i + 1 lies in [0, 2], it falls with k,
    and no size is smaller than that of `exact_sizes`. Where all units may be replaced, so may any number.
    Assumes: `added` is exactly what was added; fewer than 2^22 units; errors as in `exact_sizes`, and of what
    one unit added `SHARE_ERROR`, of which a lead holds two, and adding up numbers of at most two loses less.
    """
    found = [
        _observed(scores, shares, max_size)
        for scores, shares in _with_scores(release.shares(added, features), release.scores(features))
    ]
    top, sizes = (np.concatenate(column) for column in zip(*found, strict=True))
    return top, sizes


def _with_scores(parts: Iterable[Floats], scores: Floats) -> Iterator[tuple[Floats, Floats]]:
    begin = 0
    for part in parts:
        yield scores[begin : begin + len(part)], part
        begin += len(part)


def _observed(scores: Floats, shares: Floats, max_size: int) -> tuple[Integers, Integers]:
    """Top class and size for scores (inputs, classes) and their shares (inputs, classes, units)."""
    rows, units = np.arange(len(scores)), shares.shape[2]
    top, most = scores.argmax(axis=1), min(max_size, units)
    lead = scores[rows, top][:, None] - scores - 4 * ERROR
    lead[rows, top] = np.inf
    shares -= shares[rows, top][:, None] + 4 * SHARE_ERROR  # -g_i, smallest first
    np.maximum(shares, -1, out=shares)
    if most < units:
        shares.partition(most - 1, axis=2)
    gone = np.sort(shares[:, :, :most], axis=2)
    np.subtract(1, gone, out=gone)
    held = (np.cumsum(gone, axis=2, out=gone) < lead[:, :, None]).sum(axis=2)
    held[held == units] = max_size
    return top, np.where(lead > 0, held, -1).min(axis=1)


def exact_costs(scores: Floats, costs: Floats, relation: Relation, size: int) -> tuple[float, float]:
    """Bounds on the mean cost of a released model's answers once `size` units are poisoned.

    `costs` (inputs,), each 0 or 1, are what the answers cost that follow from `scores` (inputs, classes).

    Guarantee: with certainty. The answer to an input whose exact size reaches `size` stays, and so does its
    cost; that of any other input may become 0 or 1.

    >>> scores, costs = np.array([[9.0, 0.0], [5.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.0, 1.0])
    >>> exact_costs(scores, costs, Relation.JOIN, 0), exact_costs(scores[:2], costs[:2], Relation.JOIN, 4)
    ((0.6666666666666666, 0.6666666666666666), (0.5, 1.0))
    """
    kept = exact_sizes(scores, relation)[1] >= size
    return float(np.where(kept, costs, 0.0).mean()), float(np.where(kept, costs, 1.0).mean())


def partition_costs(costs: Floats, cost_bound: float, size: int) -> tuple[float, float]:
    """Bounds on the mean cost of a partition's models once `size` units are poisoned.

    `costs` (groups,) are the attacker's cost of each model, in [0, `cost_bound`].

    Guarantee: with certainty. Of the models at most `size` change, in the worst case the dearest to 0, or the
    cheapest to the bound; all others cost what they cost before. It also holds where units are groups of
    their own and l of n leave, j join, l + j = k: the sum s of the n - k cheapest is at most (n - k)/(n - l)
    times that of the n - l cheapest, and (n - k)(n - l + j) = (n - l)² - j² <= n (n - l), so the mean, at
    least the latter over n - l + j, is at least s/n; likewise from above.

    >>> partition_costs(np.array([0.5, 0.25, 0.25, 0.0]), 1.0, 1)
    (0.125, 0.5)
    """
    ordered, touched = np.sort(costs), min(size, len(costs))
    kept = len(costs) - touched
    lower, upper = ordered[:kept].sum(), ordered[touched:].sum() + touched * cost_bound
    return float(lower / len(costs)), float(upper / len(costs))
