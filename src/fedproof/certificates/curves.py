"""What a mechanism or an (ε, δ) guarantee says about k units, in the form each certificate needs."""

from typing import TypeAlias

from dp_accounting import DpEvent

from fedproof import check
from fedproof.accounting.events import queries_of
from fedproof.accounting.renyi import paper_epsilon
from fedproof.accounting.tradeoff import Tradeoff, tradeoff
from fedproof.certificates.method import Group
from fedproof.certificates.privacy import ApproximateDP, approximate_curve
from fedproof.certificates.tight import Curve
from fedproof.protocol import FixedSize, Mechanism, Queries
from fedproof.threat import Relation, ThreatModel

Source: TypeAlias = Mechanism | DpEvent


def described(source: Source | None, threat: ThreatModel) -> Mechanism | None:
    """The mechanism in a form that can be written down: another library's event becomes its queries."""
    if isinstance(source, DpEvent):
        return Queries(queries=queries_of(source), unit=threat.unit)
    if source is not None and source.unit != threat.unit:
        raise ValueError(
            f"threat.unit = '{threat.unit}' must be '{source.unit}', what the mechanism protects"
        )
    return source


def curve_of(mechanism: Mechanism | None, privacy: ApproximateDP | None, threat: ThreatModel) -> Curve:
    """The trade-off curve of k units, from the mechanism if it is known and else from (ε, δ)."""

    def curve(size: int) -> Tradeoff:
        if mechanism is not None:
            return tradeoff(mechanism, threat, size)
        assert privacy is not None
        return approximate_curve(privacy, size)

    return curve


def steps_per_unit(mechanism: Mechanism, relation: Relation, group: Group) -> int:
    """Steps of the RDP curve that one poisoned unit takes.

    The curve is for replacing a unit where cohorts have a fixed size, else for adding or removing one; to
    replace one is then to remove it and add another. The paper counts one step in any case.
    """
    fixed = any(isinstance(query.sampling, FixedSize) for query in queries_of(mechanism))
    if fixed and relation is Relation.JOIN:
        raise ValueError("relation = 'join' is not defined for cohorts of fixed size: use 'replace'")
    return 1 if fixed or relation is Relation.JOIN or group is Group.PAPER else 2


def epsilon_delta(
    mechanism: Mechanism | None, privacy: ApproximateDP | None, *, wanted: bool, delta: float | None
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
    return ApproximateDP(epsilon=paper_epsilon(mechanism, delta), delta=delta)
