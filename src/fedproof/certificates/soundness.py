"""Which conditions of its theorem a certificate meets, in plain sentences (theory.md, section 5)."""

from fedproof.accounting.events import queries_of
from fedproof.certificates.certificate import Settings
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.method import Group, Method
from fedproof.protocol import CohortOnce, FixedSize, Mechanism, Partition
from fedproof.threat import Relation, ThreatModel, Unit

_NO_BOUND = "the means over the replicas are taken as exact: no failure probability covers their error"
_RELATION = "units are replaced, but the accounting is for adding or removing one"

_PARTITION = (
    "every model was trained on its own group alone, and the same group gives the same model again",
    "the certified predictor is the class with most votes, the first of equal ones",
)


def reasons_of(settings: Settings, *, exact: bool = False) -> tuple[str, ...]:
    """Why the certificate is only heuristic; empty if it is sound. `exact`: from means, not from replicas."""
    mechanism = settings.mechanism
    found = list(mechanism.reasons) if mechanism else []
    if mechanism and settings.method is Method.PAPER:
        found += _paper_accounting(mechanism, settings.threat)
    if mechanism and settings.method is Method.RENYI and settings.group is Group.PAPER:
        found += _paper_group(mechanism, settings.threat)
    if exact or isinstance(mechanism, Partition):
        return tuple(found)
    if settings.bound is Bound.NONE:
        found.append(_NO_BOUND)
    elif settings.spending is Spending.PAPER:
        found.append(
            "the failure probability is spent on each of two bounds: neither both together nor the choice of "
            "the two classes is covered"
        )
    return tuple(found)


def assumptions_of(settings: Settings, *, exact: bool = False) -> tuple[str, ...]:
    """What the certificate takes for granted and nobody can check from the scores."""
    if isinstance(settings.mechanism, Partition):
        unit = settings.mechanism.unit
        return (*_PARTITION, f"which group one {unit} belongs to depends on no data; no privacy is claimed")
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
        stated.append(_cohort_assumption(settings.mechanism))
    return tuple(stated)


def _cohort_assumption(mechanism: Mechanism) -> str:
    if isinstance(mechanism, CohortOnce) and not mechanism.noise_multiplier:
        drawn, others = (
            ("cohort was", "nobody else took part")
            if mechanism.unit is Unit.USER
            else ("instances were", "no other was trained on")
        )
        return f"each replica's {drawn} drawn at random and {others}; no privacy is claimed"
    return "sums over a cohort are divided by a number fixed beforehand, whoever is drawn or joins"


def cost_reasons(
    mechanism: Mechanism | None, threat: ThreatModel, *, paper: bool, exact: bool
) -> tuple[str, ...]:
    """Why bounds on the attacker's cost are only heuristic; empty if they are sound."""
    found = list(mechanism.reasons) if mechanism else []
    if mechanism and paper:
        found += _paper_accounting(mechanism, threat)
    return tuple(found + [_NO_BOUND] * exact)


def _paper_accounting(mechanism: Mechanism, threat: ThreatModel) -> list[str]:
    """Where the paper's ε differs from what is executed and claimed."""
    found = []
    queries = queries_of(mechanism)
    if any(isinstance(query.sampling, FixedSize) for query in queries):
        found.append("cohorts of fixed size are drawn, but Poisson sampling is accounted")
    if any(query.selection_probability < 1 for query in queries):
        found.append("users are drawn as a whole, but every instance is accounted as if drawn by itself")
    if threat.relation is Relation.REPLACE:
        found.append(_RELATION)
    return found


def _paper_group(mechanism: Mechanism, threat: ThreatModel) -> list[str]:
    """The paper counts one step per unit, whatever the Rényi curve is for."""
    fixed = any(isinstance(query.sampling, FixedSize) for query in queries_of(mechanism))
    return [_RELATION] if threat.relation is Relation.REPLACE and not fixed else []
