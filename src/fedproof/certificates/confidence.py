"""What O replicas say about a mean, with a stated chance of being wrong.

Each bound is one-sided: it lies on the wrong side of the truth with probability at most the failure
probability it is given. How that probability is shared among the bounds of one input is `Spending`.

The tightest of them bet: they are a gambler who cannot get rich if the mean is at most m. For values in
[0, 1] whose mean, given all earlier ones, is at most m, every constant stake 0 ≤ λ ≤ 1/m makes

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
from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc, betaincinv, gammaln, xlog1py

from fedproof import check
from fedproof.arrays import Bools, Floats, Integers

_TRUNCATION = 0.9  # c: the share of the capital that one value may cost at most
_SHARES = 0.5 ** np.arange(10)  # of the largest stake
_WEIGHTS = np.append(0.5 ** np.arange(1, 10), 0.5**9)  # they add up to one
_FACTORS = 16  # factors multiplied before a logarithm is taken; each lies in [1 - c, 1 + c/m]
_BLOCK = 2**16  # values worked on at once: they fit in a processor's cache
_SMALLEST = 1e-12  # means below are not told from zero
_STEPS = 12  # of a search that doubles the digits from step to step
_FAR = 1e-200  # chances below are compared by their logarithms
SLACK = 1e-9  # the logarithm of the capital must exceed its threshold by more than float error


@dataclass(frozen=True, kw_only=True)
class Bets:
    """One way of betting.

    Attributes:
        lower: the bound per column from values (replicas, columns) and a failure probability.
        rejects: whether, per column, a mean of at most the given one is rejected.
    """

    lower: Callable[[ArrayLike, float], Floats]
    rejects: Callable[[ArrayLike, ArrayLike, float], Bools]


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


def betting_rejects(values: ArrayLike, mean: ArrayLike, failure_probability: float) -> Bools:
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


# --- which bound, and its share of what may go wrong --------------------------------------------------------


class Bound(StrEnum):
    """How a mean is bounded from its replicas. Part of the configuration, never chosen after the result.

    Only BETTING on means holds for all numbers of replicas together; every other bound is for a number that
    was fixed before any score was seen (`holds_at_all_times`).
    """

    HOEFFDING = "hoeffding"
    EMPIRICAL_BERNSTEIN = "empirical-bernstein"
    BETTING = "betting"
    CLOPPER_PEARSON = "clopper-pearson"
    LEVELS = "levels"
    NONE = "none"  # the mean is taken as exact


class Spending(StrEnum):
    """How the failure probability of one input is shared among its bounds.

    SOUND: all bounds that the choice of the classes might have used hold together.
    PAPER: each of the two bounds used gets the whole of it (heuristic).
    """

    SOUND = "sound"
    PAPER = "paper"


def share(failure_probability: float, num_classes: int, spending: Spending) -> float:
    """Failure probability of each one-sided bound of one input.

    Guarantee (SOUND): C + 2 bounds share ψ, the lower bounds of all C classes, any of which may turn out to
    lead, and the upper bounds of the two classes that truly come first and second. If these hold, so does
    every claim: whichever class A leads, one of the two is its strongest rival, and the largest upper bound
    of A's rivals is at least that one's. With two classes the bounds of one mirror those of the other and two
    share ψ.
    Reference: theory.md, section 4.

    >>> share(0.01, 2, Spending.SOUND), share(0.01, 8, Spending.SOUND), share(0.01, 8, Spending.PAPER)
    (0.005, 0.001, 0.01)
    """
    check.open_probability(failure_probability=failure_probability)
    if spending is Spending.PAPER:
        return failure_probability
    return failure_probability / (2 if num_classes == 2 else num_classes + 2)


def hoeffding_width(num_replicas: int, failure_probability: float) -> float:
    """Distance of Hoeffding's bound from the mean: sqrt(log(1/ψ) / 2O).

    >>> round(hoeffding_width(1000, 0.01), 3)
    0.048
    """
    return float(np.sqrt(-np.log(failure_probability) / (2 * num_replicas)))


def empirical_bernstein_width(variance: ArrayLike, num_replicas: int, failure_probability: float) -> Floats:
    """Distance of the empirical Bernstein bound from the mean, for sample variances with divisor O - 1.

    Reference: Maurer and Pontil 2009, arXiv:0907.3740v1, Theorem 4.

    >>> float(empirical_bernstein_width(0.0025, 1000, 0.01).round(4))
    0.0175
    """
    log = np.log(2 / failure_probability)
    spread = np.sqrt(2 * np.asarray(variance, dtype=np.float64) * log / num_replicas)
    return np.asarray(spread + 7 * log / (3 * (num_replicas - 1)))


def binomial_lower(num_trials: int, failure_probability: float) -> Floats:
    """Clopper-Pearson lower bounds of a rate, one for each number of successes 0, 1, ..., `num_trials`.

    Guarantee: the entry at the observed number exceeds the rate with at most `failure_probability`.
    Reference: Clopper and Pearson 1934.

    >>> binomial_lower(2, 0.01).round(6).tolist()
    [0.0, 0.005013, 0.1]
    """
    successes = np.arange(1, num_trials + 1, dtype=np.float64)
    failures = num_trials - successes + 1
    bounds = np.nan_to_num(betaincinv(successes, failures, failure_probability))
    down = 1e-12  # against ourselves, and ten times more where the inverse has lost more than that
    bounds *= 1 - down
    exceeds = _tail_exceeds if failure_probability < _FAR else _beta_exceeds
    while (false := exceeds(successes, failures, bounds, failure_probability)).any():
        down *= 10
        bounds[false] *= max(0.0, 1 - down)
    return np.concatenate([[0.0], bounds])


def _beta_exceeds(successes: Floats, failures: Floats, rates: Floats, failure_probability: float) -> Bools:
    """Whether so many successes, or more, have a larger chance than that at these rates."""
    return np.asarray(betainc(successes, failures, rates) > failure_probability)


def _tail_exceeds(successes: Floats, failures: Floats, rates: Floats, failure_probability: float) -> Bools:
    """The same or true, by logarithms: `betainc` becomes zero far too early where chances are so small.

    Of c successes or more in n the terms fall by r = (n - c) p / ((c + 1)(1 - p)) or faster, so that their
    sum is at most that of c alone over 1 - r, where r is below one.
    """
    others = failures - 1  # n - c
    ways = gammaln(successes + failures) - gammaln(successes + 1) - gammaln(failures)
    with np.errstate(divide="ignore", invalid="ignore"):
        first = ways + successes * np.log(rates) + xlog1py(others, -rates)
        rest = np.log1p(-(others * rates) / ((successes + 1) * (1 - rates)))
    lost = 1e-9 * (1 + np.abs(ways))  # far more than these sums round
    return np.asarray((rates > 0) & ~(first - rest + lost <= np.log(failure_probability)))


def mean_lower(
    values: ArrayLike, bound: Bound, failure_probability: float, *, bets: Bets = MIXTURE
) -> Floats:
    """Lower bound per column of the mean of `values` (replicas, columns) in [0, 1].

    Guarantee: each exceeds its mean with probability at most `failure_probability`, for a number of rows that
    does not depend on them; for betting, for all numbers of rows together.
    Assumes: independent, identically distributed rows; `values` in {0, 1} for Clopper-Pearson.

    >>> mean_lower([[1.0], [0.0]], Bound.HOEFFDING, 0.01).tolist()
    [0.0]
    """
    check.open_probability(failure_probability=failure_probability)
    rows = np.asarray(values, dtype=np.float64)
    means = rows.mean(axis=0)
    match bound:
        case Bound.HOEFFDING:
            lower = means - hoeffding_width(len(rows), failure_probability)
        case Bound.EMPIRICAL_BERNSTEIN:
            variance = rows.var(axis=0, ddof=1)
            lower = means - empirical_bernstein_width(variance, len(rows), failure_probability)
        case Bound.BETTING:
            lower = bets.lower(rows, failure_probability)
        case Bound.CLOPPER_PEARSON:
            lower = binomial_lower(len(rows), failure_probability)[_successes(rows)]
        case Bound.NONE:
            lower = means
        case _:
            raise ValueError(f"bound = {bound.value!r} does not bound a mean: it belongs to method margin")
    return np.asarray(np.clip(lower, 0.0, 1.0))


def mean_upper(
    values: ArrayLike, bound: Bound, failure_probability: float, *, bets: Bets = MIXTURE
) -> Floats:
    """Upper bound per column of the mean of `values` (replicas, columns): the mirrored lower bound.

    >>> mean_upper([[1.0], [0.0]], Bound.NONE, 0.01).tolist()
    [0.5]
    """
    mirrored = 1 - np.asarray(values, dtype=np.float64)
    return 1 - mean_lower(mirrored, bound, failure_probability, bets=bets)


def _successes(rows: Floats) -> Integers:
    if not np.all((rows == 0) | (rows == 1)):
        raise ValueError("bound = 'clopper-pearson' needs votes (0 or 1): use method vote")
    return np.asarray(rows.sum(axis=0), dtype=np.int64)
