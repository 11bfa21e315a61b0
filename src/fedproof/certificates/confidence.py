"""What O replicas say about a mean, with a stated chance of being wrong.

Each bound is one-sided: it lies on the wrong side of the truth with probability at most the failure
probability it is given. How that probability is shared among the bounds of one input is `Spending`.
"""

from enum import StrEnum

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import betaincinv

from fedproof import check
from fedproof.arrays import Floats
from fedproof.certificates.betting import MIXTURE, Bets


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
    bounds = betaincinv(successes, num_trials - successes + 1, failure_probability)
    # one part in 10^12 against ourselves covers the error of the inverse
    return np.concatenate([[0.0], np.asarray(bounds) * (1 - 1e-12)])


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


def _successes(rows: Floats) -> NDArray[np.int64]:
    if not np.all((rows == 0) | (rows == 1)):
        raise ValueError("bound = 'clopper-pearson' needs votes (0 or 1): use method vote")
    return np.asarray(rows.sum(axis=0), dtype=np.int64)
