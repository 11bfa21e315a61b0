"""What a mechanism or an (ε, δ) guarantee says about k units, in the form each certificate needs."""

from typing import TypeAlias

from dp_accounting import DpEvent, UnsupportedEventError

from fedproof import check
from fedproof.accounting.events import queries_of
from fedproof.accounting.renyi import paper_epsilon
from fedproof.accounting.tradeoff import Tradeoff, tradeoff
from fedproof.certificates.fields import check_sentences
from fedproof.certificates.method import Group
from fedproof.certificates.privacy import ApproximateDP, approximate_curve
from fedproof.certificates.tight import Curve
from fedproof.mechanisms import FixedSize, Mechanism, Queries, is_certified
from fedproof.mechanisms.caveats import sentences
from fedproof.threat import Relation, ThreatModel

Source: TypeAlias = Mechanism | DpEvent

_EMPTY = "queries are empty: what releases nothing has nothing to certify"


def described(source: Source | None, threat: ThreatModel | None) -> tuple[Mechanism | None, ThreatModel]:
    """The mechanism in a form that can be written down, and the threat it is certified against.

    Another library's event becomes its queries. It names neither what one unit is nor what may happen to it,
    so the threat must; its noise multipliers are read as `dp_accounting` defines them, over the largest norm
    of what one unit adds to a sum. (One over the distance of two such vectors, as some write for units that
    are replaced, is smaller or equal for sums that may be zero, so it is never read as more noise.)
    """
    if isinstance(source, DpEvent):
        if threat is None:
            raise ValueError(
                "threat = None: an event does not say what one unit is, give "
                "threat=ThreatModel(unit=..., relation=...)"
            )
        return Queries(queries=queries_of(source), unit=threat.unit), threat
    threat = threat or ThreatModel()
    if source is not None:
        check_sentences(reasons=sentences(source.caveats(threat.relation)))
        if not is_certified(source):
            raise UnsupportedEventError(source.unaccounted) if source.unaccounted else ValueError(_EMPTY)
    if source is not None and source.unit != threat.unit:
        raise ValueError(
            f"threat.unit = '{threat.unit}' must be '{source.unit}', what the mechanism protects"
        )
    return source, threat


def curve_of(mechanism: Mechanism | None, privacy: ApproximateDP | None, threat: ThreatModel) -> Curve:
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
    drawn = [query.sampling for query in mechanism.queries] if mechanism else []
    users = [sampling.users for sampling in drawn if isinstance(sampling, FixedSize)]
    return max_size if threat.relation is Relation.JOIN else min([max_size, *users])


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
    fixed = any(isinstance(query.sampling, FixedSize) for query in queries_of(mechanism))
    if fixed and relation is Relation.JOIN:
        raise ValueError("relation = 'join' is not defined for cohorts of fixed size: use 'replace'")
    return 1 if fixed or relation is Relation.JOIN or group is Group.PAPER else 2


def epsilon_delta(
    mechanism: Mechanism | None,
    privacy: ApproximateDP | None,
    *,
    wanted: bool,
    delta: float | None,
    version: int,
) -> ApproximateDP | None:
    """The (ε, δ) of one unit: as given, or if `wanted` the paper's ε of the mechanism at `delta`."""
    if mechanism is None:
        if version == 1 and privacy is not None and privacy.relation is not None:
            raise ValueError("privacy.relation must not be in a file of version 1")
        if version > 1 and privacy is not None and privacy.relation is None:
            raise ValueError(
                "privacy.relation = None must be 'join' if epsilon was proved for one unit added or removed, "
                "'replace' if for one replaced"
            )
        return privacy
    if privacy is not None:
        raise ValueError("privacy must not be given together with mechanism: it follows from it")
    if not wanted:
        return None
    if delta is None:
        raise ValueError("delta = None: method paper needs the delta at which the mechanism is accounted")
    check.open_probability(delta=delta)
    relation = Relation.JOIN if version > 1 else None  # the paper accounts adding or removing a unit
    return ApproximateDP(epsilon=paper_epsilon(mechanism, delta), delta=delta, relation=relation)
