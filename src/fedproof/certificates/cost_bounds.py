"""How far k poisoned units can move an expected cost; costs as shares of their bound C̄, in [0, 1]."""

from collections.abc import Callable

import numpy as np

from fedproof.arrays import Floats
from fedproof.certificates.betting import MIXTURE, Bets
from fedproof.certificates.closed_form import inefficacy_bounds
from fedproof.certificates.confidence import Bound, binomial_lower, mean_lower, mean_upper
from fedproof.certificates.tight import Curve

Interval = Callable[[int], tuple[float, float]]  # size -> bounds on the expected share under poisoning

NUM_LEVELS = 64


def clean_interval(
    shares: Floats, bound: Bound, failure_probability: float, bets: Bets = MIXTURE
) -> tuple[float, float]:
    """Bounds on the expected share without poisoning; each fails with at most `failure_probability`."""
    if bound is Bound.LEVELS:
        return _from_levels(shares, failure_probability), 1 - _from_levels(1 - shares, failure_probability)
    column = shares[:, None]
    low = mean_lower(column, bound, failure_probability, bets=bets)
    return float(low[0]), float(mean_upper(column, bound, failure_probability, bets=bets)[0])


def paper_interval(low: float, high: float, epsilon: float, delta: float) -> Interval:
    """The paper's bounds, from bounds on the clean expectation and (ε, δ) of one unit."""

    def interval(size: int) -> tuple[float, float]:
        lower, _ = inefficacy_bounds(low, size, cost_bound=1.0, epsilon=epsilon, delta=delta)
        _, upper = inefficacy_bounds(high, size, cost_bound=1.0, epsilon=epsilon, delta=delta)
        return float(lower), float(upper)

    return interval


def mean_interval(low: float, high: float, curve: Curve) -> Interval:
    """[L_k(J), U_k(J)], from bounds on the clean expectation.

    Reference: theory.md, section 3.

    >>> from fedproof.accounting.tradeoff import GaussianTradeoff
    >>> lower, upper = mean_interval(0.5, 0.5, lambda k: GaussianTradeoff(shift=k / 4))(4)
    >>> round(lower, 4), round(upper, 4)
    (0.1587, 0.8413)
    """
    return lambda size: (float(curve(size).lower(low)), float(curve(size).upper(high)))


def distribution_interval(shares: Floats, curve: Curve, failure_probability: float) -> Interval:
    """[∫ L_k(Pr[C > a]) da, 1 - ∫ L_k(Pr[1 - C > a]) da], from bands of the two survival functions.

    Guarantee: each end fails with at most `failure_probability`, for all sizes together, because the bands do
    not depend on the size.
    Reference: theory.md, section 3.
    """
    down, up = _band(shares, failure_probability), _band(1 - shares, failure_probability)

    def interval(size: int) -> tuple[float, float]:
        tradeoff = curve(size)
        return float(tradeoff.lower(down).mean()), float(1 - tradeoff.lower(up).mean())

    return interval


def needed_size(reached: Callable[[int], bool], max_size: int) -> int | None:
    """Smallest size with `reached`, which must be monotone; None if `max_size` is not enough.

    Sizes are doubled before they are halved, so that none is asked for that is far larger than needed.

    >>> needed_size(lambda size: size >= 5, 10**18)
    5
    """
    low, high = -1, 0
    while not reached(high):
        if high == max_size:
            return None
        low, high = high, min(max(1, 2 * high), max_size)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if reached(middle) else (middle, high)
    return high


def _band(shares: Floats, failure_probability: float) -> Floats:
    """Lower bounds on Pr[share >= a] at the levels a = 1/n, 2/n, ..., 1, all together."""
    levels = np.arange(1, NUM_LEVELS + 1) / NUM_LEVELS
    counts = np.sum(shares[:, None] >= levels, axis=0)
    return np.asarray(binomial_lower(len(shares), failure_probability / NUM_LEVELS)[counts])


def _from_levels(shares: Floats, failure_probability: float) -> float:
    return float(_band(shares, failure_probability).mean())
