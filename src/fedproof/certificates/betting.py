"""Bounds on a mean by betting: a gambler who cannot get rich if the mean is at most m.

For values in [0, 1] whose mean, given all earlier ones, is at most m, every constant stake 0 ≤ λ ≤ 1/m makes

    K_t(m) = Π_{i ≤ t} (1 + λ (X_i - m))

a non-negative supermartingale that starts at one, and so does an average over stakes that were fixed before
anything was seen. It ever reaches 1/ψ with probability at most ψ (Ville). It decreases in m, so that all m
below one root are rejected at once, at every t simultaneously.

The average is over the stakes 2^-j c/m with weights 2^-(j+1): nothing is learned from the values, not even
how many there are. Hence the bound does not depend on their order, and it is valid whenever one stops.

Reference: Waudby-Smith and Ramdas 2023, arXiv:2010.09686v7, Theorem 3, for capital as a bound; Cover 1991 for
averages over constant stakes; Orabona and Jun 2021, arXiv:2110.14099, for both together.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.arrays import Floats

_TRUNCATION = 0.9  # c: the share of the capital that one value may cost at most
_SHARES = 0.5 ** np.arange(10)  # of the largest stake
_WEIGHTS = np.append(0.5 ** np.arange(1, 10), 0.5**9)  # they add up to one
_FACTORS = 16  # factors multiplied before a logarithm is taken; each lies in [1 - c, 1 + c/m]
_BLOCK = 2**16  # values worked on at once: they fit in a processor's cache
_SMALLEST = 1e-12  # means below are not told from zero
_STEPS = 12  # of a search that doubles the digits from step to step
SLACK = 1e-9  # the logarithm of the capital must exceed its threshold by more than float error


@dataclass(frozen=True, kw_only=True)
class Bets:
    """One way of betting.

    Attributes:
        lower: the bound per column from values (replicas, columns) and a failure probability.
        rejects: whether, per column, a mean of at most the given one is rejected.
    """

    lower: Callable[[ArrayLike, float], Floats]
    rejects: Callable[[ArrayLike, ArrayLike, float], NDArray[np.bool_]]


def log_capital(values: Floats, mean: Floats) -> Floats:
    """Logarithm of the average capital per column of `values` (replicas, columns), betting against `mean`."""
    num, columns = values.shape
    rest = -num % _FACTORS  # rows of factors that are one
    odds = np.zeros((num + rest, columns))
    np.multiply(values, _TRUNCATION / np.maximum(mean, _SMALLEST), out=odds[:num])
    odds[:num] -= _TRUNCATION
    totals = np.empty((len(_SHARES), columns))
    for share, total in zip(_SHARES, totals, strict=True):
        factors = share * odds
        factors += 1.0
        with np.errstate(over="ignore"):  # infinitely rich is rich enough
            while len(factors) * _FACTORS > len(odds):
                half = len(factors) // 2
                factors = factors[:half] * factors[half:]
        np.log(factors).sum(axis=0, out=total)
    return np.asarray(np.logaddexp.reduce(totals + np.log(_WEIGHTS)[:, None], axis=0))


def betting_lower(values: ArrayLike, failure_probability: float) -> Floats:
    """Lower bound per column of the mean of `values` (replicas, columns) in [0, 1].

    Guarantee: each bound exceeds the mean with probability at most `failure_probability`, for all numbers of
    replicas together, however one decides to stop. It is the same for any order of the rows.
    Assumes: given earlier rows, the mean of a row is at most that of the column; independent, identically
    distributed rows are such.
    Reference: Waudby-Smith and Ramdas 2023, arXiv:2010.09686v7, Theorem 3; theory.md, section 4.

    >>> betting_lower(np.full((1000, 1), 0.9), 0.01).round(3).tolist()
    [0.895]
    """
    check.open_probability(failure_probability=failure_probability)
    rows = np.asarray(values, dtype=np.float64)
    threshold = SLACK - np.log(failure_probability)
    return np.concatenate([_root(block, threshold) for _, block in _blocks(rows)])


def betting_rejects(values: ArrayLike, mean: ArrayLike, failure_probability: float) -> NDArray[np.bool_]:
    """Whether the bet rejects, per column, that the mean is at most `mean`: one evaluation, no root search.

    The same test as `betting_lower`, whose bound is close to `mean` or above it where this is true.

    >>> betting_rejects(np.full((1000, 1), 0.9), 0.89, 0.01).tolist()
    [True]
    """
    rows = np.asarray(values, dtype=np.float64)
    means = np.broadcast_to(np.asarray(mean, dtype=np.float64), rows.shape[1:])
    capital = np.concatenate([log_capital(block, means[part]) for part, block in _blocks(rows)])
    return np.asarray(capital >= SLACK - np.log(failure_probability))


MIXTURE = Bets(lower=betting_lower, rejects=betting_rejects)


def _blocks(rows: Floats) -> Iterator[tuple[slice, Floats]]:
    """Runs of columns that fit in a processor's cache, sorted: then the order of summation is none either."""
    step = max(1, _BLOCK // max(1, len(rows)))
    for first in range(0, max(1, rows.shape[1]), step):
        part = slice(first, first + step)
        yield part, np.sort(rows[:, part], axis=0)


def _root(rows: Floats, threshold: float) -> Floats:
    """Rejected means per column, next to the smallest one that is not rejected.

    Whatever the search does, `low` is rejected and `high` is not: only what was tested is claimed.
    """
    low, high = np.zeros(rows.shape[1]), rows.mean(axis=0)
    # Where the capital's logarithm were n (mean - m)^2 / 2v, this would be the root; v from the values.
    guess = high - np.sqrt(2 * threshold * (rows.var(axis=0) + threshold / len(rows)) / len(rows))
    above, below = np.full_like(low, np.nan), np.full_like(high, -threshold)
    point = np.where(guess > 0, guess, high / 2)
    for _ in range(_STEPS):
        excess = log_capital(rows, point) - threshold
        won = excess >= 0
        low, above = np.where(won, point, low), np.where(won, excess, above)
        high, below = np.where(won, high, point), np.where(won, below, excess)
        point = _next_point(low, high, above, below)
    return low


def _next_point(low: Floats, high: Floats, above: Floats, below: Floats) -> Floats:
    """Where the line through both ends meets zero, kept well inside; the middle where an end is unknown."""
    middle = (low + high) / 2
    with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
        line = low + (high - low) * (above / (above - below))
        reach = 0.02 * (high - low)
        inside = np.clip(line, low + reach, high - reach)
    return np.where(np.isfinite(inside), inside, middle)
