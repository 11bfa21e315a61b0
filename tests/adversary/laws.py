"""Exact laws of what an observer sees, before and after poisoning, and the best tests between them.

A release is a Gaussian query whose mean depends on who was drawn: a mixture of normal laws in one or two
dimensions. It is cut into cells, whose chances are differences of Φ; looking at cells instead of points is
post-processing, so every test on cells is a test on the release. Rounds are composed through scores, whole
numbers that round the log-likelihood ratio of a cell: the law of a sum of scores is a convolution. Nothing is
approximated: the chances of a test under both laws are those of a real test, up to rounding of float64.
"""

from dataclasses import dataclass
from functools import reduce
from itertools import product

import numpy as np
from scipy.signal import fftconvolve
from scipy.special import gammaln, ndtr, ndtri, xlog1py, xlogy

from fedproof.mechanisms import Everyone, FixedSize, Poisson
from fedproof.threat import Relation

# What is stated as the error of every chance here: cumulated rounding and weights that were left out.
NUMERICAL_ERROR = 1e-11
_LEFT_OUT = 1e-18  # weight of cohorts that are not enumerated
_REACH = 8.0  # standard deviations of noise that the cells cover; the outermost ones take the rest
_CELLS = {1: 400, 2: 41}
_SCORES = 240  # scores a single release has, above and below zero
_LARGEST_LOSS = 30.0


@dataclass(frozen=True)
class Pair:
    """Chances of the same outcomes under two laws, clean and poisoned."""

    clean: np.ndarray
    poisoned: np.ndarray

    def swapped(self):
        return Pair(self.poisoned, self.clean)


@dataclass(frozen=True)
class Mixture:
    """Σ weights_i N(means_i, 1), `means` (components, dimensions)."""

    weights: np.ndarray
    means: np.ndarray


@dataclass(frozen=True)
class Group:
    """`size` units that hand in the same `clean` vector, or the same `poisoned` one, in noise deviations."""

    size: int
    clean: tuple
    poisoned: tuple


# --- who is drawn -------------------------------------------------------------------------------------------


def drawn(sampling, sizes):
    """Numbers drawn of each group `(cases, groups)`, and the chance of each case."""
    match sampling:
        case Everyone():
            return np.array([sizes]), np.ones(1)
        case Poisson(probability=q):
            laws = [_binomial(size, q) for size in sizes]
            numbers = np.array(list(product(*(law[0] for law in laws))))
            return numbers, reduce(np.multiply.outer, (law[1] for law in laws)).ravel()
        case FixedSize(cohort=m, users=users):
            assert sum(sizes) == users
            numbers = [np.array(case) for case in _splits(m, sizes)]
            logs = [
                sum(_log_choose(s, j) for s, j in zip(sizes, case, strict=True)) - _log_choose(users, m)
                for case in numbers
            ]
            chances = np.exp(logs)
            return np.array(numbers), chances / chances.sum()
    raise AssertionError(sampling)


def _binomial(size, q):
    numbers = np.arange(size + 1)
    chances = np.exp(_log_choose(size, numbers) + xlogy(numbers, q) + xlog1py(size - numbers, -q))
    kept = chances > _LEFT_OUT
    return numbers[kept], chances[kept] / chances.sum()  # the logarithms' common error is taken out


def _log_choose(n, j):
    return gammaln(n + 1) - gammaln(j + 1) - gammaln(n - j + 1)


def _splits(total, sizes):
    """All ways to take `total` units from groups of the given sizes."""
    if len(sizes) == 1:
        if total <= sizes[0]:
            yield (total,)
        return
    for mine in range(max(0, total - sum(sizes[1:])), min(sizes[0], total) + 1):
        for rest in _splits(total - mine, sizes[1:]):
            yield (mine, *rest)


def mixture(numbers, chances, vectors):
    """The law of Σ numbers_g vectors_g plus unit noise, equal means taken together."""
    means = np.round(numbers @ np.atleast_2d(np.asarray(vectors, dtype=float)), 12)
    means, where = np.unique(means, axis=0, return_inverse=True)
    weights = np.bincount(where.ravel(), weights=chances)
    kept = weights > _LEFT_OUT
    return Mixture(weights[kept], means[kept])


# --- cells --------------------------------------------------------------------------------------------------


def release(sampling, groups):
    """Cells of a query on `groups`, clean and poisoned; noise is standard normal in each dimension."""
    numbers, chances = drawn(sampling, [group.size for group in groups])
    sides = [
        mixture(numbers, chances, [getattr(group, side) for group in groups])
        for side in ("clean", "poisoned")
    ]
    return between(*sides)


def between(clean, poisoned):
    """Cells of two mixtures on a grid that covers both."""
    means = np.concatenate((clean.means, poisoned.means))
    edges = [_edges(column) for column in means.T]
    return Pair(*(_masses(part, edges) for part in (clean, poisoned)))


def _edges(means):
    # As fine as can be, but no finer than a seventh of the noise.
    low, high = means.min() - _REACH, means.max() + _REACH
    return np.linspace(low, high, int(min(_CELLS[1], np.ceil((high - low) * 7))))


def _masses(part, edges):
    if len(edges) == 2:
        edges = [np.linspace(e[0], e[-1], min(len(e), _CELLS[2])) for e in edges]
    sides = [_along(part.means[:, axis], edge) for axis, edge in enumerate(edges)]
    if len(sides) == 1:
        return part.weights @ sides[0]
    return ((sides[0] * part.weights[:, None]).T @ sides[1]).ravel()


def _along(means, edges):
    """Chances `(components, cells)` of the cells between edges, the outer ones open."""
    places = edges - means[:, None]
    left, right = ndtr(places), ndtr(-places)
    inner = np.where(places[:, :-1] > 0, right[:, :-1] - right[:, 1:], left[:, 1:] - left[:, :-1])
    return np.concatenate((left[:, :1], inner, right[:, -1:]), axis=1)


def openly(cases):
    """A pair of which the case is known to the observer: `(chance, Pair)` for each."""
    return Pair(
        np.concatenate([chance * pair.clean for chance, pair in cases]),
        np.concatenate([chance * pair.poisoned for chance, pair in cases]),
    )


NOTHING = Pair(np.ones(1), np.ones(1))


# --- instances of drawn users -------------------------------------------------------------------------------


def instances_of(number, chance, length, relation):
    """The pair of `number` poisoned instances that enter a batch with `chance` each."""
    if not number:
        return NOTHING
    numbers, chances = drawn(Poisson(probability=chance), [number])
    clean = 0.0 if relation is Relation.JOIN else -length
    return between(*(mixture(numbers, chances, [(pull,)]) for pull in (clean, length)))


def selected(sampling, plan, chance, length, relation):
    """One round in which the drawn users are known: J poisoned instances among theirs."""
    plan = [(holders, each) for holders, each in plan if holders]
    rest = sampling.users - sum(holders for holders, _ in plan)
    numbers, chances = drawn(sampling, [holders for holders, _ in plan] + ([rest] if rest else []))
    each = np.array([each for _, each in plan] + ([0] if rest else []))
    present = np.bincount(numbers @ each, weights=chances)
    cases = [
        (weight, instances_of(number, chance, length, relation))
        for number, weight in enumerate(present)
        if weight > 0
    ]
    return openly(cases)


# --- rounds -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scored:
    """Chances of the scores `-_SCORES … _SCORES` of one release."""

    clean: np.ndarray
    poisoned: np.ndarray


def scored(pairs):
    """The pairs with their log-likelihood ratios rounded to scores on one common grid."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratios = [np.nan_to_num(np.log(pair.clean / pair.poisoned), nan=0.0) for pair in pairs]
    ratios = [np.clip(ratio, -_LARGEST_LOSS, _LARGEST_LOSS) for ratio in ratios]
    # Cells that hardly ever happen must not widen the grid for all others.
    likely = [np.maximum(pair.clean, pair.poisoned) > 1e-9 for pair in pairs]
    reach = max(float(np.abs(ratio[some]).max()) for ratio, some in zip(ratios, likely, strict=True))
    step = max(reach, 1e-9) / _SCORES
    found = []
    for pair, ratio in zip(pairs, ratios, strict=True):
        index = np.clip(np.rint(ratio / step), -_SCORES, _SCORES).astype(int) + _SCORES
        laws = (
            np.bincount(index, weights=side, minlength=2 * _SCORES + 1)
            for side in (pair.clean, pair.poisoned)
        )
        found.append(Scored(*laws))
    return found


def composed(releases, counts):
    """The law of the summed scores of `counts` repetitions of each pair, one after another."""
    if len(releases) == 1 and counts == [1]:
        return releases[0]  # cells say more than scores
    parts = scored(releases)
    sides = []
    for side in ("clean", "poisoned"):
        laws = [_power(getattr(part, side), count) for part, count in zip(parts, counts, strict=True)]
        sides.append(reduce(_convolved, laws))
    return Pair(*sides)


def adaptive(releases, rounds, choices):
    """The law of the summed scores when each round's release is chosen by the score so far.

    `choices` (rounds, scores) names the release; the score so far is clipped to what it has columns for.
    """
    parts = scored(releases)
    sides = []
    for side in ("clean", "poisoned"):
        law = np.ones(1)
        for now in range(rounds):
            place = np.arange(len(law)) - len(law) // 2
            half = choices.shape[1] // 2
            chosen = choices[now, np.clip(place, -half, half) + half]
            law = sum(
                _convolved(np.where(chosen == index, law, 0.0), getattr(part, side))
                for index, part in enumerate(parts)
            )
        sides.append(law)
    return Pair(*sides)


def _power(law, count):
    result = None
    while count:
        if count & 1:
            result = law if result is None else _convolved(result, law)
        count >>= 1
        if count:
            law = _convolved(law, law)
    return result


def _convolved(one, other):
    if min(len(one), len(other)) < 64:
        return np.convolve(one, other)
    return np.maximum(fftconvolve(one, other), 0.0)


# --- tests --------------------------------------------------------------------------------------------------


def best_tests(pair, levels=48):
    """Chances under both laws of the best tests (Neyman, Pearson) at about `levels` levels, `(tests, 2)`.

    Outcomes are rejected in the order of their likelihood ratio: thresholds where it is monotone, and unions
    of intervals where it is not.
    """
    clean, poisoned = roc(pair)
    wanted = ndtr(np.linspace(ndtri(1e-7), -ndtri(1e-7), levels))
    index = np.unique(np.clip(np.searchsorted(clean, wanted), 0, len(clean) - 1))
    found = np.stack((clean[index], poisoned[index]), axis=1)
    inside = (found[:, 0] > 1e-8) & (found[:, 0] < 1 - 1e-8)
    return found[inside]


def roc(pair):
    """`(clean, poisoned)` chances of all best tests, from (0, 0) to (1, 1): the exact curve of the pair."""
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        ratio = np.nan_to_num(pair.poisoned / pair.clean, nan=1.0, posinf=np.inf)
    order = np.argsort(ratio, kind="stable")  # from what poisoning makes rare
    return tuple(
        np.concatenate(([0.0], np.cumsum(side[order])[:-1], [1.0])) for side in (pair.clean, pair.poisoned)
    )


def gaps(tests, curve):
    """By how much each test stays inside the curve, `(tests, 2)`: above L, and the complement too.

    Negative, the numerical error being allowed for: the curve is broken. In standard deviations (probits), so
    that chances near 0 and 1 count as much as those in the middle.
    """
    clean, poisoned = tests.T
    low = curve.lower(np.clip(clean - NUMERICAL_ERROR, 0, 1))
    high = curve.upper(np.clip(clean + NUMERICAL_ERROR, 0, 1))
    above = _probit(poisoned + NUMERICAL_ERROR) - _probit(low)
    below = _probit(high) - _probit(poisoned - NUMERICAL_ERROR)
    return np.stack((above, below), axis=1)


def _probit(chance):
    return ndtri(np.clip(chance, 1e-300, 1 - 1e-16))
