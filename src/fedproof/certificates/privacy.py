"""What is known when only (ε, δ) is known: the guarantee and the trade-off curve of k units."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import ArrayLike

from fedproof import check
from fedproof.arrays import Floats
from fedproof.certificates.closed_form import group
from fedproof.mechanisms.codec import register
from fedproof.threat import Relation


@register
@dataclass(frozen=True, kw_only=True)
class ApproximateDP:
    """(ε, δ)-differential privacy for one unit, taken as given.

    `relation` is what ε and δ were proved for: `join` if for one unit added or removed, which is what
    accountants state unless they say otherwise, `replace` if for one unit replaced by another. A certificate
    needs to know; None is what files of version 1 hold.

    >>> ApproximateDP(epsilon=0.63, delta=0.0029, relation="join").relation
    <Relation.JOIN: 'join'>
    """

    epsilon: float
    delta: float
    relation: Relation | None = None
    kind: ClassVar[str] = "approximate-dp"
    later: ClassVar[frozenset[str]] = frozenset({"relation"})  # files of version 1 lack it

    def __post_init__(self) -> None:
        check.not_negative(epsilon=self.epsilon, delta=self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta = {self.delta!r} must be in [0, 1)")
        if self.relation is not None:
            if self.relation not in list(Relation):
                raise ValueError(f"relation = {self.relation!r} must be one of {', '.join(Relation)}")
            object.__setattr__(self, "relation", Relation(self.relation))  # plain strings are welcome

    def under(self, relation: Relation) -> tuple[float, float]:
        """(ε, δ) of one unit for the threat's relation.

        Guarantee: to replace a unit is to remove it and to add another, two steps of an ε for units that are
        added or removed. An ε for units that are replaced says nothing of units that join: releasing the
        number of units is (0, 0)-private for `replace` and not private at all for `join`.

        >>> ApproximateDP(epsilon=0.5, delta=0.0, relation="join").under(Relation.REPLACE)
        (1.0, 0.0)
        """
        if self.relation in (relation, None):  # None: a file of version 1, where it is an assumption
            return float(self.epsilon), float(self.delta)
        if relation is Relation.JOIN:
            raise ValueError(
                "relation = 'join' does not follow from an epsilon for units that are replaced: it need not "
                "hide how many there are"
            )
        epsilon, delta = group(float(self.epsilon), float(self.delta), 2)
        return epsilon, min(delta, math.nextafter(1.0, 0.0))  # from there on nothing is certified anyway


@dataclass(frozen=True, kw_only=True)
class ApproximateTradeoff:
    """The curve of a group that is (ε, δ)-DP: L(p) = max(0, e^{-ε}(p - δ), 1 - δ - e^ε(1 - p)).

    Guarantee: E_Q φ ≥ L(E_P φ) for every [0,1]-valued φ; the best that follows from (ε, δ) alone.
    Reference: Wasserman and Zhou 2010, arXiv:0811.2501v3, Theorem 2.4; Kairouz, Oh, Viswanath 2015.

    >>> ApproximateTradeoff(epsilon=0.0, delta=0.1).lower([0.05, 0.5, 1.0]).round(12).tolist()
    [0.0, 0.4, 0.9]
    """

    epsilon: float
    delta: float

    def lower(self, probability: ArrayLike) -> Floats:
        """Smallest probability under poisoning, elementwise."""
        p = np.asarray(probability, dtype=np.float64)
        flat = np.exp(-self.epsilon) * (p - self.delta)
        steep = 1 - self.delta - _steep(self.epsilon) * (1 - p)
        return np.asarray(np.maximum(np.maximum(flat, steep), 0.0))

    def upper(self, probability: ArrayLike) -> Floats:
        """Largest probability under poisoning, elementwise."""
        return np.asarray(1 - self.lower(1 - np.asarray(probability, dtype=np.float64)))

    def tangent(self, probability: ArrayLike) -> tuple[Floats, Floats]:
        """Slope and intercept of a line below L everywhere that touches it at `probability`, elementwise."""
        p = np.asarray(probability, dtype=np.float64)
        flat, steep = np.exp(-self.epsilon), _steep(self.epsilon)
        slopes = np.array([0.0, flat, steep])
        intercepts = np.array([0.0, -flat * self.delta, 1 - self.delta - steep])
        best = np.argmax(slopes * p[..., None] + intercepts, axis=-1)
        return slopes[best], intercepts[best]


def approximate_curve(epsilon: float, delta: float, size: int) -> ApproximateTradeoff:
    """The trade-off curve of `size` units, each (ε, δ)-private, by group privacy.

    >>> approximate_curve(0.1, 0.0, 3).epsilon
    0.30000000000000004
    """
    epsilon, delta = group(epsilon, delta, size)
    return ApproximateTradeoff(epsilon=epsilon, delta=min(delta, 1.0))


def _steep(epsilon: float) -> float:
    """e^ε, kept finite: beyond e^700 the line says nothing below p = 1 anyway."""
    return float(np.exp(min(epsilon, 700.0)))
