"""Which conditions of its theorem a certificate meets, in plain sentences (theory.md, section 5)."""

from fedproof.certificates.certificate import Settings
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.describe import Queries
from fedproof.certificates.method import Method
from fedproof.protocol import FixedSize, Mechanism
from fedproof.threat import Relation


def reasons_of(settings: Settings) -> tuple[str, ...]:
    """Why the certificate is only heuristic; empty if it is sound."""
    found = list(settings.mechanism.reasons) if settings.mechanism else []
    if settings.mechanism and settings.method in (Method.PAPER, Method.RENYI):
        found += _paper_accounting(settings.mechanism, settings.threat.relation)
    if settings.bound is Bound.NONE:
        found.append(
            "the means over the replicas are taken as exact: no failure probability covers their error"
        )
    elif settings.spending is Spending.PAPER:
        found.append(
            "the failure probability is spent on each of two bounds: neither their union nor the choice of "
            "the two classes is covered"
        )
    return tuple(found)


def assumptions_of(settings: Settings) -> tuple[str, ...]:
    """What the certificate takes for granted and nobody can check from the scores."""
    threat = settings.threat
    stated = [
        "the replicas are independent trainings by the same mechanism on the same data",
        "the certified predictor is the "
        + ("most probable vote" if settings.method in (Method.VOTE, Method.RENYI) else "mean confidence")
        + " of the ensemble; a single replica has no certificate",
    ]
    if settings.mechanism is not None:
        stated.append("training was executed exactly as the mechanism is described here")
        stated.append("sums over a cohort are divided by a fixed number, not by the realised cohort's size")
    else:
        stated.append(
            f"epsilon and delta were proved for one {threat.unit} under the relation {threat.relation}"
        )
    return tuple(stated)


def _paper_accounting(mechanism: Mechanism | Queries, relation: Relation) -> list[str]:
    """Where the paper's accounting (Poisson sampling, one unit added or removed) differs from the claim."""
    found = []
    sampling = getattr(mechanism, "sampling", None)
    queries = getattr(mechanism, "queries", ())
    if isinstance(sampling, FixedSize) and any(isinstance(q.sampling, FixedSize) for q in queries):
        found.append("cohorts of fixed size are drawn, but Poisson sampling is accounted")
    if relation is Relation.REPLACE:
        found.append("units are replaced, but epsilon is accounted for adding or removing one")
    return found
