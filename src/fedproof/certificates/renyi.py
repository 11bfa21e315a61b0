"""The paper's Rényi certificates: from the RDP curve of one unit and the shares of votes.

The predictor is the most probable vote, not the mean confidence.
"""

from collections.abc import Callable
from functools import cache

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof.arrays import Floats, Integers
from fedproof.certificates.method import Group
from fedproof.certificates.tight import walk

RdpCurve = Callable[[Floats], Floats]

# Even orders up to 2^13: after c halvings the order must still be at least two.
ORDERS: Floats = np.unique(
    np.concatenate(
        [1 + np.arange(1, 100) / 10, np.arange(12, 64), np.round(2 ** np.arange(6, 13.125, 0.125))]
    )
)

_ROUNDING = 4e-16  # what 1 - p_a - p_b may have lost; it matters where both are next to 0 and 1


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

    def holds(size: int, inputs: Integers) -> NDArray[np.bool_]:
        high, low = top_lower[inputs], rival_upper[inputs]
        if size == 0:
            return np.asarray(high > low)
        order, divergence = usable(halvings(size * steps_per_unit, group))
        allowed = radius(high[:, None], low[:, None], order)
        return np.asarray((divergence < allowed * (1 - 1e-9) - 1e-12).any(axis=1))

    return walk(len(top_lower), holds, max_size)
