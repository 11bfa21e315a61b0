"""What is known when only (ε, δ) is known: the guarantee and the trade-off curve of k units."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.certificates.closed_form import group
from fedproof.threat import Relation, ThreatModel

Floats = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class ApproximateDP:
    """(ε, δ)-differential privacy for one unit, taken as given.

    Unit and relation are those for which somebody proved ε and δ; a certificate built on this value states
    that as an assumption. `relation` None: the relation of the threat.

    >>> ApproximateDP(epsilon=0.63, delta=0.0029).epsilon
    0.63
    """

    epsilon: float
    delta: float
    relation: Relation | None = None

    def __post_init__(self) -> None:
        check.not_negative(epsilon=self.epsilon, delta=self.delta)
        if self.delta >= 1:
            raise ValueError(f"delta = {self.delta!r} must be in [0, 1)")
        if self.relation is not None:
            object.__setattr__(self, "relation", Relation(self.relation))


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


def stated_for(privacy: ApproximateDP | None, threat: ThreatModel) -> ApproximateDP | None:
    """(ε, δ) under the relation of the threat: to replace a unit is to remove it and add another."""
    if privacy is None or privacy.relation in (None, threat.relation):
        return privacy
    if threat.relation is Relation.JOIN:
        raise ValueError("relation = 'join' does not follow from an epsilon for units that are replaced")
    epsilon, delta = group(privacy.epsilon, privacy.delta, 2)
    return ApproximateDP(epsilon=epsilon, delta=delta if delta < 1 else 1 - 1e-16, relation=threat.relation)


def approximate_curve(privacy: ApproximateDP, size: int) -> ApproximateTradeoff:
    """The trade-off curve of `size` units by group privacy.

    >>> approximate_curve(ApproximateDP(epsilon=0.1, delta=0.0), 3).epsilon
    0.30000000000000004
    """
    epsilon, delta = group(privacy.epsilon, privacy.delta, size)
    return ApproximateTradeoff(epsilon=epsilon, delta=min(delta, 1.0))


def _steep(epsilon: float) -> float:
    """e^ε, kept finite: beyond e^700 the line says nothing below p = 1 anyway."""
    return float(np.exp(min(epsilon, 700.0)))
