"""The paper's certificates: what (ε, δ)-DP, or the Rényi curve, of one unit says about k poisoned units.

Every function is elementwise in the class confidences or costs. The unit (user or instance) and the relation
are those of the guarantee. Numbered as in the paper: Xie et al., "Unraveling the connections between privacy
and certified robustness in federated learning against poisoning attacks", arXiv:2209.04030v3.
"""

from collections.abc import Callable
from enum import StrEnum
from functools import cache

import numpy as np
from numpy.typing import ArrayLike

from fedproof import check
from fedproof.arrays import Bools, Floats, Integers
from fedproof.certificates.tight import walk

_SLACK = 1e-9  # real sizes this close above an integer count as that integer: sizes are rounded down
_ROUNDING = 4e-16  # what 1 - p_a - p_b may have lost; it matters where both are next to 0 and 1


def real_size(top: ArrayLike, rival: ArrayLike, *, epsilon: float, delta: float) -> Floats:
    """The paper's real-valued K: the prediction stands for every k < K.

    Guarantee: K = log[(F_A (e^ε - 1) + δ) / (F_B (e^ε - 1) + δ)] / 2ε, whose limit at ε = 0 is
    (F_A - F_B) / 2δ. Infinite where no number of units suffices.
    Assumes: (ε, δ)-DP for one unit; `top` bounds F_A from below, `rival` bounds every F_B from above.
    Reference: the paper, Theorem 2; at k = 1 it is Theorem 1, F_A > e^{2ε} F_B + (1 + e^ε) δ.

    >>> round(float(real_size(0.97, 0.03, epsilon=0.6298, delta=0.0029)), 2)
    2.68
    """
    check_privacy(epsilon, delta)
    top, rival = _floats(top), _floats(rival)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
        if epsilon == 0:
            size = (top - rival) / np.float64(2 * delta)
        else:
            # log1p keeps the digits when δ dwarfs the gap; a tiny base is rounded up, so the size down, also
            # where the quotient rounds to zero: only without δ does a rival at zero stay there
            base = rival + delta / np.expm1(epsilon)
            base = np.where((rival > 0) | (delta > 0), np.maximum(base, 1e-300), 0.0)
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
    check_privacy(epsilon, delta)
    check.not_negative_count(size=size)
    return size * epsilon, float(delta * _copies(_floats(size), epsilon)) if delta else 0.0


def _copies(sizes: Floats, epsilon: float) -> Floats:
    """(e^{kε} - 1)/(e^ε - 1), how often δ counts for k units; k itself where e^ε says nothing else."""
    if epsilon == 0:
        return sizes
    with np.errstate(over="ignore"):
        copies = np.expm1(sizes * epsilon) / min(np.expm1(epsilon), 1e300)
    return np.where((sizes == 0) | (sizes == 1), sizes, copies)


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
    check_privacy(epsilon, delta)
    check.positive(cost_bound=cost_bound)
    cost, sizes = _cost(cost, cost_bound, negative), _floats(sizes)
    with np.errstate(over="ignore", invalid="ignore"):
        grow, shrink = np.exp(sizes * epsilon), np.exp(-sizes * epsilon)
        removed = -np.expm1(-sizes * epsilon) / np.expm1(epsilon) if epsilon else sizes
        lower = np.maximum(shrink * cost - removed * delta * cost_bound, 0.0)
        added = _copies(sizes, epsilon) * delta * cost_bound if delta else 0.0
        upper = np.minimum(np.where(cost > 0, grow * cost, 0.0) + added, cost_bound)
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
    check_privacy(epsilon, delta)
    check.positive(cost_bound=cost_bound)
    check_tau(tau)
    size = _cost(cost, cost_bound, negative)
    base = cost_bound * delta * (1.0 if negative else tau)
    with np.errstate(divide="ignore", invalid="ignore", over="ignore"):
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


def check_privacy(epsilon: float, delta: float) -> None:
    """Raise ValueError unless ε is a finite number, zero or above, and δ lies in [0, 1)."""
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


# --- from the Rényi curve; the predictor is the most probable vote, not the mean confidence -----------------


class Group(StrEnum):
    """How RDP of one unit becomes RDP of k: the paper's k halvings, or Mironov's ceil(log2 k)."""

    PAPER = "paper"
    TIGHT = "tight"


RdpCurve = Callable[[Floats], Floats]

# Even orders up to 2^13: after c halvings the order must still be at least two.
ORDERS: Floats = np.unique(
    np.concatenate(
        [1 + np.arange(1, 100) / 10, np.arange(12, 64), np.round(2 ** np.arange(6, 13.125, 0.125))]
    )
)


def radius(top: ArrayLike, rival: ArrayLike, order: ArrayLike) -> Floats:
    """Largest Rényi divergence of `order` that provably leaves the vote unchanged, elementwise.

    Guarantee: -log(1 - p_a - p_b + 2 ((p_a^{1-α} + p_b^{1-α})/2)^{1/(1-α)}), zero where p_a ≤ p_b.
    Assumes: `top` bounds p_a from below, `rival` every p_b from above; α > 1.
    Reference: Dvijotham et al. 2020 (ICLR), Table 4; the paper, Rényi appendix, one adversary.

    >>> round(float(radius(0.9, 0.1, 2.0)), 4)
    1.0217
    """
    high = np.asarray(top, dtype=np.float64)
    low = np.minimum(np.asarray(rival, dtype=np.float64), 1 - high)
    power = 1 - np.asarray(order, dtype=np.float64)
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.logaddexp(power * np.log(high), power * np.log(np.maximum(low, 0.0)))
        middle = np.exp((logs - np.log(2)) / power)
        value = -np.log(np.maximum(1 - high - low, 0.0) + 2 * middle + _ROUNDING)
    return np.asarray(np.where(high > np.asarray(rival), np.maximum(value, 0.0), 0.0))


def halvings(size: int, group: Group) -> int:
    """How often the order is halved (and the divergence tripled) to get from one unit to `size` units.

    Reference: Mironov 2017, arXiv:1702.07476v3, Proposition 2 (TIGHT); the paper, Rényi appendix (PAPER).

    >>> [halvings(k, Group.TIGHT) for k in (1, 2, 3, 4, 5)], halvings(5, Group.PAPER)
    ([0, 1, 2, 2, 3], 5)
    """
    if size <= 1:
        return 0
    return size if group is Group.PAPER else (size - 1).bit_length()


def renyi_sizes(
    top_lower: Floats,
    rival_upper: Floats,
    rdp: RdpCurve,
    *,
    max_size: int,
    group: Group = Group.TIGHT,
    steps_per_unit: int = 1,
    orders: Floats = ORDERS,
) -> Integers:
    """Certified sizes, -1 where the vote itself is open; the best order for each input and size.

    Guarantee: 3^c rdp(α) < radius(p_a, p_b, α/2^c) for some order α ≥ 2^{c+1}, c = `halvings`.
    Assumes: `rdp` bounds the Rényi divergence of one step, in both directions. `steps_per_unit` is 2 where
    the curve is for adding or removing a unit and units are replaced: one removal and one addition each.

    >>> gaussian = lambda orders: orders / 50
    >>> renyi_sizes(np.array([0.97]), np.array([0.03]), gaussian, max_size=20).tolist()
    [4]
    """
    divergences = rdp(orders)

    @cache
    def usable(count: int) -> tuple[Floats, Floats]:
        kept = orders >= 2.0 ** (count + 1) if count else orders > 1
        return orders[kept] / 2**count, 3.0**count * divergences[kept]

    def holds(size: int, inputs: Integers) -> Bools:
        high, low = top_lower[inputs], rival_upper[inputs]
        if size == 0:
            return np.asarray(high > low)
        order, divergence = usable(halvings(size * steps_per_unit, group))
        allowed = radius(high[:, None], low[:, None], order)
        return np.asarray((divergence < allowed * (1 - 1e-9) - 1e-12).any(axis=1))

    return walk(len(top_lower), holds, max_size)
