"""The paper's certificates: what (ε, δ)-DP for one unit says about k poisoned units.

Every function is elementwise in the class confidences or costs. The unit (user or instance) and the relation
are those of the (ε, δ) guarantee. Numbered as in the paper: Xie et al., "Unraveling the connections between
privacy and certified robustness in federated learning against poisoning attacks", arXiv:2209.04030v3.
"""

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.arrays import Floats

_SLACK = 1e-9  # real sizes this close above an integer count as that integer: sizes are rounded down


def one_adversary(top: ArrayLike, rival: ArrayLike, *, epsilon: float, delta: float) -> NDArray[np.bool_]:
    """Whether one poisoned unit provably cannot change the prediction.

    Guarantee: F_A > e^{2ε} F_B + (1 + e^ε) δ.
    Assumes: (ε, δ)-DP for one unit; `top` bounds F_A from below, `rival` bounds every F_B from above.
    Reference: the paper, Theorem 1.

    >>> bool(one_adversary(0.97, 0.03, epsilon=0.6298, delta=0.0029))
    True
    """
    _check(epsilon, delta)
    threshold = np.exp(2 * epsilon) * _floats(rival) + (1 + np.exp(epsilon)) * delta
    return np.asarray(_floats(top) > threshold * (1 + _SLACK))


def real_size(top: ArrayLike, rival: ArrayLike, *, epsilon: float, delta: float) -> Floats:
    """The paper's real-valued K: the prediction stands for every k < K.

    Guarantee: K = log[(F_A (e^ε - 1) + δ) / (F_B (e^ε - 1) + δ)] / 2ε, whose limit at ε = 0 is
    (F_A - F_B) / 2δ. Infinite where no number of units suffices.
    Assumes: as `one_adversary`.
    Reference: the paper, Theorem 2.

    >>> round(float(real_size(0.97, 0.03, epsilon=0.6298, delta=0.0029)), 2)
    2.68
    """
    _check(epsilon, delta)
    top, rival = _floats(top), _floats(rival)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if epsilon == 0:
            size = (top - rival) / np.float64(2 * delta)
        else:
            # log1p keeps the digits when δ dwarfs the gap; a tiny base is rounded up, so the size down
            base = rival + delta / np.expm1(epsilon)
            base = np.where(base > 0, np.maximum(base, 1e-300), 0.0)
            size = np.log1p((top - rival) / base) / (2 * epsilon)
    return np.where(top > rival, size, 0.0)


def certified_size(top: ArrayLike, rival: ArrayLike, *, epsilon: float, delta: float) -> Floats:
    """Largest integer below K, as float64 so that ∞ (no limit) has a place; 0 where nothing is certified.

    >>> float(certified_size(0.97, 0.03, epsilon=0.6298, delta=0.0029))
    2.0
    """
    size = real_size(top, rival, epsilon=epsilon, delta=delta)
    return np.asarray(np.maximum(np.ceil(size * (1 - _SLACK) - _SLACK) - 1, 0.0))


def group(epsilon: float, delta: float, size: int) -> tuple[float, float]:
    """The (ε, δ) guarantee for `size` units at once: (kε, δ (e^{kε} - 1)/(e^ε - 1)).

    Reference: the paper, group DP lemma (Dwork and Roth 2014).

    >>> group(0.0, 0.01, 3)
    (0.0, 0.03)
    """
    _check(epsilon, delta)
    check.not_negative_count(size=size)
    with np.errstate(over="ignore"):
        copies = np.expm1(size * epsilon) / np.expm1(epsilon) if epsilon else float(size)
    return size * epsilon, float(delta * copies) if delta else 0.0


def inefficacy_bounds(
    cost: ArrayLike,
    sizes: ArrayLike,
    *,
    cost_bound: float,
    epsilon: float,
    delta: float,
    negative: bool = False,
) -> tuple[Floats, Floats]:
    """Lower and upper bound of the attacker's expected cost J(D') after `sizes` units are poisoned.

    Guarantee: max(e^{-kε} J - (1 - e^{-kε})/(e^ε - 1) δC̄, 0) ≤ J(D') ≤ min(e^{kε} J + (e^{kε} - 1)/(e^ε - 1)
    δC̄, C̄) for costs in [0, C̄]; the mirrored pair for costs in [-C̄, 0] (`negative`).
    Assumes: (ε, δ)-DP for one unit; |C| ≤ C̄; `cost` is J(D).
    Reference: the paper, Theorem 3.

    >>> lower, upper = inefficacy_bounds(0.4, [0, 1], cost_bound=0.5, epsilon=0.5, delta=0.0)
    >>> lower.round(4).tolist(), upper.round(4).tolist()
    ([0.4, 0.2426], [0.4, 0.5])
    """
    _check(epsilon, delta)
    check.positive(cost_bound=cost_bound)
    cost, sizes = _cost(cost, cost_bound, negative), _floats(sizes)
    with np.errstate(over="ignore", invalid="ignore"):
        grow, shrink = np.exp(sizes * epsilon), np.exp(-sizes * epsilon)
        added = np.expm1(sizes * epsilon) / np.expm1(epsilon) if epsilon else sizes
        removed = -np.expm1(-sizes * epsilon) / np.expm1(epsilon) if epsilon else sizes
        lower = np.maximum(shrink * cost - removed * delta * cost_bound, 0.0)
        upper = grow * cost + (added * delta * cost_bound if delta else 0.0)
    upper = np.minimum(np.where(cost > 0, upper, np.nan_to_num(upper)), cost_bound)
    return (-upper, -lower) if negative else (lower, upper)


def adversaries_needed(
    cost: ArrayLike, tau: float, *, cost_bound: float, epsilon: float, delta: float, negative: bool = False
) -> Floats:
    """Least real k for which the bound allows J(D') ≤ J/τ (costs ≥ 0) or J(D') ≤ τJ (costs ≤ 0).

    Guarantee: with fewer units the attacker cannot divide a positive cost by τ (multiply a negative one).
    k = log[((e^ε - 1) Jτ + C̄δτ) / ((e^ε - 1) J + C̄δτ)] / ε, and for non-positive costs
    k = log[((e^ε - 1) Jτ - C̄δ) / ((e^ε - 1) J - C̄δ)] / ε.
    Assumes: as `inefficacy_bounds`; τ ≥ 1.
    Reference: the paper, Corollary 1.

    >>> round(float(adversaries_needed(0.4, 10, cost_bound=0.5, epsilon=0.5, delta=0.0)), 3)
    4.605
    """
    _check(epsilon, delta)
    check.positive(cost_bound=cost_bound)
    check_tau(tau)
    size = _cost(cost, cost_bound, negative)
    base = cost_bound * delta * (1.0 if negative else tau)
    with np.errstate(divide="ignore", invalid="ignore"):
        if epsilon == 0:
            needed = size * (tau - 1) / np.float64(base)
        else:
            needed = np.log1p(size * (tau - 1) / (size + base / np.expm1(epsilon))) / epsilon
    return np.asarray(np.where(size > 0, needed, 0.0))  # no cost is left to reduce


def check_tau(tau: float) -> None:
    """Raise ValueError unless τ is a finite factor of at least one."""
    check.positive(tau=tau)
    if tau < 1:
        raise ValueError(f"tau = {tau!r} must be at least 1")


def _check(epsilon: float, delta: float) -> None:
    check.not_negative(epsilon=epsilon, delta=delta)
    if delta >= 1:
        raise ValueError(f"delta = {delta!r} must be in [0, 1)")


def _cost(cost: ArrayLike, cost_bound: float, negative: bool) -> Floats:
    """The absolute costs, checked to lie between zero and the bound."""
    size = -_floats(cost) if negative else _floats(cost)
    if not np.all((size >= 0) & (size <= cost_bound)):
        allowed = f"[-{cost_bound}, 0]" if negative else f"[0, {cost_bound}]"
        raise ValueError(f"cost = {np.asarray(cost).tolist()!r} must lie in {allowed}")
    return np.abs(size)


def _floats(values: ArrayLike) -> Floats:
    return np.asarray(values, dtype=np.float64)
