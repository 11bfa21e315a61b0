"""Bounds on a mean by betting: a gambler who cannot get rich if the mean is at most m.

For independent values in [0, 1] and bets that depend on earlier values only, the capital

    K_t(m) = Π_{i ≤ t} (1 + λ_i (X_i - m)),   0 ≤ λ_i ≤ c/m,  c < 1,

is a non-negative supermartingale if the mean is at most m, so it ever reaches 1/ψ with probability at most ψ
(Ville). It decreases in m, so all m below one root are rejected at once, at every t simultaneously.

Reference: Waudby-Smith and Ramdas 2023, arXiv:2010.09686v7, Theorem 3 and equations (26)-(28).
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check

Floats = NDArray[np.float64]

_TRUNCATION = 0.9  # c: the share of the capital that one value may cost at most
_FACTORS = 16  # factors multiplied before a logarithm is taken; each lies in [1 - c, 1 + c/m]
_STEPS = 26  # halvings of the bracket: the bound is 2^-26 below the root at most
_SLACK = 1e-9  # the logarithm of the capital must exceed its threshold by more than float error


def bets(values: Floats, failure_probability: float, *, sequential: bool = False) -> Floats:
    """Predictable bets (replicas, columns) for `values` of the same shape, before truncation at c/m.

    A fixed number of replicas is bet on as a whole; `sequential` bets lose little at every number of
    replicas. Row t depends on rows before t only.
    """
    num = len(values)
    after = np.arange(1, num + 1, dtype=np.float64)[:, None]
    means = (0.5 + np.cumsum(values, axis=0)) / (after + 1)
    deviations = np.cumsum(np.square(values - means), axis=0)
    variances = np.empty_like(deviations)
    variances[0] = 0.25
    variances[1:] = (0.25 + deviations[:-1]) / (after[:-1] + 1)
    horizon = after * np.log1p(after) if sequential else np.float64(num)
    return np.asarray(np.sqrt(2 * np.log(1 / failure_probability) / (variances * horizon)))


def log_capital(values: Floats, stakes: Floats, mean: Floats) -> Floats:
    """Logarithm of the capital per column after all rows, betting `stakes` against a mean of at most `mean`.

    Bets are cut to c/m here, so that they stay lawful for any stakes.
    """
    limit = _TRUNCATION / np.maximum(mean, 1e-12)
    factors = np.minimum(stakes, limit)
    factors *= values - mean
    factors += 1.0
    groups = [factors[first : first + _FACTORS] for first in range(0, len(factors), _FACTORS)]
    return np.asarray(np.log(np.stack([np.prod(rows, axis=0) for rows in groups])).sum(axis=0))


def betting_lower(values: ArrayLike, failure_probability: float, *, sequential: bool = False) -> Floats:
    """Lower bound per column of the mean of `values` (replicas, columns) in [0, 1].

    Guarantee: each bound exceeds the mean with probability at most `failure_probability`; with `sequential`
    bets this holds for all numbers of replicas together, however one decides to stop.
    Assumes: the rows are independent and identically distributed.
    Reference: Waudby-Smith and Ramdas 2023, arXiv:2010.09686v7, Theorem 3.

    >>> betting_lower(np.full((1000, 1), 0.9), 0.01).round(3).tolist()
    [0.895]
    """
    check.open_probability(failure_probability=failure_probability)
    rows = np.ascontiguousarray(values, dtype=np.float64)
    stakes = bets(rows, failure_probability, sequential=sequential)
    threshold = np.log(1 / failure_probability) + _SLACK
    low, high = np.zeros(rows.shape[1]), rows.mean(axis=0)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rejected = log_capital(rows, stakes, middle) >= threshold
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return low


def betting_rejects(
    values: ArrayLike, mean: ArrayLike, failure_probability: float, *, sequential: bool = False
) -> NDArray[np.bool_]:
    """Whether the bet rejects, per column, that the mean is at most `mean`: one evaluation, no root search.

    The same test as `betting_lower`, whose bound is at least `mean` (up to its 2^-26) where this is true.

    >>> betting_rejects(np.full((1000, 1), 0.9), 0.89, 0.01).tolist()
    [True]
    """
    rows = np.ascontiguousarray(values, dtype=np.float64)
    stakes = bets(rows, failure_probability, sequential=sequential)
    means = np.broadcast_to(np.asarray(mean, dtype=np.float64), rows.shape[1:])
    return np.asarray(log_capital(rows, stakes, means) >= np.log(1 / failure_probability) + _SLACK)
