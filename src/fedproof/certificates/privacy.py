"""What a mechanism, or (ε, δ) alone, says about k units, in the form that each certificate needs."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedproof import check
from fedproof.accounting.epsilon import paper_epsilon
from fedproof.accounting.events import queries_of
from fedproof.accounting.tradeoff import PiecewiseTradeoff, Tradeoff, tradeoff
from fedproof.certificates.paper_theorems import Group, check_privacy, group
from fedproof.certificates.tight import TradeoffBySize
from fedproof.mechanisms import Mechanism
from fedproof.mechanisms.codec import register
from fedproof.threat import Relation, ThreatModel

_LARGEST = 700.0  # an ε beyond which e^ε is no number, and nothing is said of any p below one


@register
@dataclass(frozen=True, kw_only=True)
class ApproximateDP:
    """(ε, δ)-differential privacy for one unit, taken as given.

    `relation` is what ε and δ were proved for: `join` if for one unit added or removed, which is what
    accountants state unless they say otherwise, `replace` if for one unit replaced by another.

    >>> ApproximateDP(epsilon=0.63, delta=0.0029, relation="join").relation
    <Relation.JOIN: 'join'>
    """

    epsilon: float
    delta: float
    relation: Relation
    kind: ClassVar[str] = "approximate-dp"

    def __post_init__(self) -> None:
        check_privacy(self.epsilon, self.delta)
        check.plain(self)
        object.__setattr__(self, "relation", check.member(Relation, relation=self.relation))  # or a string

    def under(self, relation: Relation) -> tuple[float, float]:
        """(ε, δ) of one unit for the threat's relation.

        Guarantee: to replace a unit is to remove it and to add another, two steps of an ε for units that are
        added or removed. An ε for units that are replaced says nothing of units that join: releasing the
        number of units is (0, 0)-private for `replace` and not private at all for `join`.

        >>> ApproximateDP(epsilon=0.5, delta=0.0, relation="join").under(Relation.REPLACE)
        (1.0, 0.0)
        """
        if self.relation is relation:
            return float(self.epsilon), float(self.delta)
        if relation is Relation.JOIN:
            raise ValueError(
                "relation = 'join' does not follow from an epsilon for units that are replaced: it need not "
                "hide how many there are"
            )
        epsilon, delta = group(float(self.epsilon), float(self.delta), 2)
        return epsilon, min(delta, math.nextafter(1.0, 0.0))  # from there on nothing is certified anyway


def approximate_curve(epsilon: float, delta: float, size: int) -> Tradeoff:
    """The trade-off curve of `size` units, each (ε, δ)-private, by group privacy.

    Guarantee: with ε and δ those of the group, L(p) = max(0, e^{-ε}(p - δ), 1 - δ - e^ε(1 - p)), which is the
    best that follows from them alone.
    Reference: Wasserman and Zhou 2010, arXiv:0811.2501v3, Theorem 2.4; Kairouz, Oh, Viswanath 2015.

    >>> approximate_curve(0.0, 0.05, 2).lower([0.05, 0.5, 1.0]).round(12).tolist()
    [0.0, 0.4, 0.9]
    """
    epsilon, delta = group(epsilon, delta, size)
    known = np.array([min(delta, 1.0) if epsilon <= _LARGEST else 1.0])
    full = max(0.0, 1 - delta)
    return PiecewiseTradeoff(
        epsilons=np.array([min(epsilon, _LARGEST)]), forward=known, backward=known, full=full
    )


# --- what is known of k units -------------------------------------------------------------------------------


def curve_of_units(
    mechanism: Mechanism | None, privacy: ApproximateDP | None, threat: ThreatModel
) -> TradeoffBySize:
    """The trade-off curve of k units, from the mechanism if it is known and else from (ε, δ)."""
    if mechanism is not None:
        return lambda size: tradeoff(mechanism, threat, size)
    assert privacy is not None
    epsilon, delta = privacy.under(threat.relation)

    def curve(size: int) -> Tradeoff:
        return approximate_curve(epsilon, delta, size)

    return curve


def largest_size(mechanism: Mechanism | None, threat: ThreatModel, max_size: int) -> int:
    """Where a search for sizes ends: cohorts of fixed size have no more units to replace than there are."""
    drawn = [query.sampling.drawn_from for query in mechanism.certified_queries] if mechanism else []
    users = [number for number in drawn if number is not None]
    return max_size if threat.relation is Relation.JOIN else min([max_size, *users])


def check_relation(mechanism: Mechanism | None, relation: Relation) -> None:
    """Refuse units that join noised cohorts of fixed size, of which a Rényi curve says nothing."""
    noised = [query for query in mechanism.queries if query.noise_multiplier] if mechanism else []
    if relation is Relation.JOIN and any(query.sampling.closed for query in noised):
        raise ValueError(
            "relation = 'join' is not defined for cohorts of fixed size and method renyi: use 'replace', or "
            "method margin, mean or vote"
        )


def unit_privacy(
    mechanism: Mechanism | None, privacy: ApproximateDP | None, threat: ThreatModel
) -> tuple[float, float]:
    """(ε, δ) that the paper's formulas take for one unit.

    As given, for the threat's relation. Accounted from a mechanism it is the paper's convention, one step for
    each unit whatever happens to it; where that is not covered, a reason says so.
    """
    assert privacy is not None
    if mechanism is not None:
        return float(privacy.epsilon), float(privacy.delta)
    return privacy.under(threat.relation)


def steps_per_unit(mechanism: Mechanism, relation: Relation, group: Group) -> int:
    """Steps of the RDP curve that one poisoned unit takes.

    The curve is for replacing a unit where cohorts have a fixed size, else for adding or removing one; to
    replace one is then to remove it and add another. The paper counts one step in any case.
    """
    check_relation(mechanism, relation)
    fixed = any(query.sampling.closed for query in queries_of(mechanism))
    return 1 if fixed or relation is Relation.JOIN or group is Group.PAPER else 2


def epsilon_delta(
    mechanism: Mechanism | None,
    privacy: ApproximateDP | None,
    *,
    wanted: bool,
    delta: float | None,
) -> ApproximateDP | None:
    """The (ε, δ) of one unit: as given, or if `wanted` the paper's ε of the mechanism at `delta`."""
    if mechanism is None:
        return privacy
    if privacy is not None:
        raise ValueError("privacy must not be given together with mechanism: it follows from it")
    if not wanted:
        return None
    if delta is None:
        raise ValueError("delta = None: method paper needs the delta at which the mechanism is accounted")
    check.open_probability(delta=delta)
    # The paper accounts adding or removing a unit.
    return ApproximateDP(epsilon=paper_epsilon(mechanism, delta), delta=delta, relation=Relation.JOIN)
