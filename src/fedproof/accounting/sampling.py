"""The chance that a cohort drawn once holds no adversary, rounded down."""

import math

import numpy as np

from fedproof.protocol import FixedSize, Poisson

_ROUNDING = 1e-12  # relative; far more than the error of the sums of logarithms below


def none_drawn(sampling: Poisson | FixedSize, size: int) -> float:
    """Probability w_0 that none of `size` given units is drawn.

    Fixed size m of N: C(N - k, m) / C(N, m). Poisson: (1 - q)^k.

    >>> round(none_drawn(FixedSize(cohort=2, users=10), 3), 6)  # 7/10 times 6/9
    0.466667
    """
    if isinstance(sampling, Poisson):
        log = size * math.log1p(-sampling.probability) if sampling.probability < 1 else -math.inf
    elif size > sampling.users - sampling.cohort:
        return 0.0
    else:
        left = sampling.users - np.arange(sampling.cohort, dtype=np.float64)
        log = float(np.log1p(-size / left).sum())
    return math.exp(log) * (1 - _ROUNDING)


def none_drawn_of_joined(sampling: Poisson | FixedSize, size: int) -> float:
    """The same for `size` units that join the federation: m of N + k, C(N, m) / C(N + k, m).

    >>> round(none_drawn_of_joined(FixedSize(cohort=2, users=10), 3), 6)  # 10/13 times 9/12
    0.576923
    """
    if isinstance(sampling, Poisson):
        return none_drawn(sampling, size)
    return none_drawn(FixedSize(cohort=sampling.cohort, users=sampling.users + size), size)
