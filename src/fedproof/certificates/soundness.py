"""Which conditions of its theorem a certificate meets, in plain sentences (theory.md, section 5)."""

from fedproof.accounting.events import queries_of
from fedproof.certificates.certificate import Settings
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.describe import Queries
from fedproof.certificates.method import Group, Method
from fedproof.protocol import FixedSize, Mechanism
from fedproof.threat import Relation


def reasons_of(settings: Settings, *, exact: bool = False) -> tuple[str, ...]:
    """Why the certificate is only heuristic; empty if it is sound. `exact`: from means, not from replicas."""
    mechanism, relation = settings.mechanism, settings.threat.relation
    found = list(mechanism.reasons) if mechanism else []
    if mechanism and settings.method is Method.PAPER:
        found += _paper_accounting(mechanism)
    paper_group = settings.method is Method.RENYI and settings.group is Group.PAPER
    if mechanism and relation is Relation.REPLACE and (settings.method is Method.PAPER or paper_group):
        found.append("units are replaced, but the accounting is for adding or removing one")
    if exact:
        return tuple(found)
    if settings.bound is Bound.NONE:
        found.append(
            "the means over the replicas are taken as exact: no failure probability covers their error"
        )
    elif settings.spending is Spending.PAPER:
        found.append(
            "the failure probability is spent on each of two bounds: neither both together nor the choice of "
            "the two classes is covered"
        )
    return tuple(found)


def assumptions_of(settings: Settings, *, exact: bool = False) -> tuple[str, ...]:
    """What the certificate takes for granted and nobody can check from the scores."""
    votes = settings.method in (Method.VOTE, Method.RENYI)
    predictor = "most probable vote" if votes else "mean confidence"
    source = (
        "the class confidences are exact expectations, without Monte-Carlo error"
        if exact
        else "the replicas are independent trainings by the same mechanism on the same data"
    )
    stated = [
        source,
        f"the certified predictor is the {predictor} of the ensemble; a single replica has no certificate",
    ]
    if settings.mechanism is None:
        threat = settings.threat
        stated.append(
            f"epsilon and delta were proved for one {threat.unit} under the relation {threat.relation}"
        )
    else:
        stated.append("training was executed exactly as the mechanism is described here")
        stated.append("sums over a cohort are divided by a fixed number, not by the realised cohort's size")
    return tuple(stated)


def _paper_accounting(mechanism: Mechanism | Queries) -> list[str]:
    """Where the paper's accounting differs from the sampling that is executed."""
    found = []
    queries = queries_of(mechanism)
    if any(isinstance(query.sampling, FixedSize) for query in queries):
        found.append("cohorts of fixed size are drawn, but Poisson sampling is accounted")
    if any(query.selection_probability < 1 for query in queries):
        found.append("users are drawn as a whole, but every instance is accounted as if drawn by itself")
    return found
