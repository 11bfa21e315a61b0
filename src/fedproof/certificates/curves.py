"""What a mechanism or an (ε, δ) guarantee says about k units, in the form each certificate needs."""

from functools import cache

from dp_accounting import DpEvent

from fedproof.accounting.events import queries_of
from fedproof.accounting.tradeoff import Tradeoff
from fedproof.certificates.describe import Queries
from fedproof.certificates.privacy import ApproximateDP, approximate_curve
from fedproof.certificates.tight import Curve
from fedproof.protocol import Mechanism
from fedproof.threat import ThreatModel


def described(
    source: Mechanism | Queries | DpEvent | None, threat: ThreatModel
) -> Mechanism | Queries | None:
    """The mechanism in a form that can be written down: another library's event becomes its queries."""
    if isinstance(source, DpEvent):
        return Queries(queries=queries_of(source), unit=threat.unit)
    if source is not None and source.unit != threat.unit:
        raise ValueError(
            f"threat.unit = {str(threat.unit)!r} must be {str(source.unit)!r}, the mechanism's unit"
        )
    return source


def curve_of(
    mechanism: Mechanism | Queries | None, privacy: ApproximateDP | None, threat: ThreatModel
) -> Curve:
    """The trade-off curve of k units, from the mechanism if it is known and else from (ε, δ)."""

    @cache
    def curve(size: int) -> Tradeoff:
        if mechanism is None:
            assert privacy is not None
            return approximate_curve(privacy, size)
        from fedproof.accounting.tradeoff import tradeoff

        return tradeoff(mechanism, threat, size)

    return curve
