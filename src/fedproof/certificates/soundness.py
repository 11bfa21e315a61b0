"""Which conditions of its theorem a certificate meets, in plain sentences (theory.md, section 5)."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedproof.accounting.events import queries_of
from fedproof.certificates.certificate import Certificate, CostMethod, CostSettings, Method, Settings
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.paper_theorems import Group
from fedproof.certificates.privacy import ApproximateDP
from fedproof.certificates.rules import Rule
from fedproof.certificates.scores import repeated_models
from fedproof.mechanisms import Caveat, Mechanism, Releases
from fedproof.mechanisms.sampling import digits
from fedproof.threat import Relation, ThreatModel

_TIGHT = 'Set certificate.method = "margin" or "mean"'
_NO_BOUND = Caveat(
    code="no-confidence",
    sentence="the means over the replicas are taken as exact: no failure probability covers their error",
    remedy='Set certificate.bound = "betting" (or "levels" for method margin).',
)
_RELATION = Caveat(
    code="relation",
    sentence="units are replaced, but the accounting is for adding or removing one",
    remedy=(
        f'{_TIGHT}, which account replacement, or threat.relation = "join" if adversaries can only be added.'
    ),
)
_SPENDING = Caveat(
    code="spending",
    sentence=(
        "the failure probability is spent on each of two bounds: neither both together nor the choice of the "
        "two classes is covered"
    ),
    remedy='Share the failure probability soundly: spending = "sound", or certificate.method = "margin".',
)
_FIXED_SIZE = Caveat(
    code="fixed-size",
    sentence="cohorts of fixed size are drawn, but Poisson sampling is accounted",
    remedy=(
        'Set mechanism.sampling = "poisson", or certificate.method = "margin" or "mean": their accounting '
        "covers cohorts of fixed size."
    ),
)
_OWNERS = Caveat(
    code="owners-drawn",
    sentence="users are drawn as a whole, but every instance is accounted as if drawn by itself",
    remedy=f"{_TIGHT}: they account users that are drawn as a whole.",
)

_COPIES = "Give every training random numbers of its own, and its scores as they were computed, not rounded."


def copies(number: int, total: int, what: str = "replicas score what another one does") -> tuple[Caveat, ...]:
    """So many replicas repeat another one; none if `number` is 0."""
    sentence = f"{number} of {total} {what}, number for number: trainings that share a seed are one training"
    return (Caveat(code="copies", sentence=sentence, remedy=_COPIES),) if number else ()


def copied_models(mechanism: Mechanism, parts: Iterable[Mapping[str, ArrayLike]]) -> tuple[Caveat, ...]:
    """Why trainings of a mechanism with noise are not independent: some of their models are equal."""
    if mechanism.releases is not Releases.REPLICAS or not mechanism.noisy:
        return ()
    found = ({name: np.asarray(values) for name, values in named.items()} for named in parts)
    return copies(*repeated_models(found), "models equal another one")


_ELECTED = {
    Rule.PLURALITY: "class with most votes, the first of equal ones",
    Rule.PAIRWISE: (
        "class that beats every other one, model by model, the first of equal ones; where there is none, the "
        "class with most votes, which is certified against no poisoned unit"
    ),
    Rule.RUN_OFF: (
        "winner of a run-off, model by model, between the two classes with most votes, always the first of "
        "equal ones"
    ),
}
_CHOSEN = "the rule was chosen before any score was seen"
_RELEASED = "the certified predictor is the released model itself; its scores count units"
_INDEPENDENT = (
    "the replicas are independent trainings by the same mechanism on the same data; what an adversary does "
    "in one does not depend on another"
)
_DRAWN = "the replicas are independent draws of noise around one release"
_SECRET = "whoever chose the poisoned units knew none of the random numbers that the training draws"
_NUMBER = "how many replicas there are was decided before any of their scores was seen"
_INPUTS = "no input was chosen by anybody who had seen the replicas, or what they score"
_SETTLED = "method, bound and failure probability were decided before any score was seen"
_COST = "what the cost measures, and how it is bounded, was decided by nobody who had seen the replicas"
_ORDER = "sha256 puts the replicas into an order that is as good as random"
STATED = "stated by whoever trained, not derived: "


def caveats_of(settings: Settings, *, exact: bool = False) -> tuple[Caveat, ...]:
    """Why the certificate is only heuristic; empty if it is sound. `exact`: from means, not from replicas."""
    mechanism = settings.mechanism
    found = list(mechanism.caveats(settings.threat.relation)) if mechanism else []
    if mechanism and settings.method is Method.PAPER:
        found += _paper_accounting(mechanism, settings.threat)
    if mechanism and settings.method is Method.RENYI and settings.group is Group.PAPER:
        found += _paper_group(mechanism, settings.threat)
    if not exact and not settings.certain:
        if settings.bound is Bound.NONE:
            found.append(_NO_BOUND)
        elif settings.spending is Spending.PAPER:
            found.append(_SPENDING)
    return (*found, *_stated(settings.caveats))


def unmet(certificate: Certificate) -> tuple[Caveat, ...]:
    """The reasons of a certificate with their remedies; what its settings do not tell, its scores did."""
    found = caveats_of(certificate.settings, exact=certificate.num_replicas is None)
    known = {caveat.sentence: caveat for caveat in found}
    return tuple(
        known.get(reason, Caveat(code="copies", sentence=reason, remedy=_COPIES))
        for reason in certificate.reasons
    )


def _stated(sentences: Iterable[str]) -> list[Caveat]:
    return [Caveat(code="stated", sentence=sentence) for sentence in sentences]


def assumptions_of(
    settings: Settings, *, numbers: str, num_replicas: int | None, alike: int = 0
) -> tuple[str, ...]:
    """What the certificate takes for granted and nobody can check from the scores.

    `numbers` is the type of the scores; without `num_replicas` they are exact means. So many replicas are
    `alike` for no reason that could be seen.
    """
    if settings.mechanism is not None and settings.counted:
        alone, group = settings.mechanism.assumptions
        elected = f"the certified predictor is the {_ELECTED[settings.rule]}"
        stated = [alone, elected, _stored(settings, numbers), *_rule(settings), group]
    elif settings.mechanism is not None and settings.exact:
        stated = [_RELEASED, *settings.mechanism.assumptions]
    else:
        stated = [
            *_measured(settings, numbers, num_replicas),
            *_alike(alike),
            f"the certified predictor is the {_predictor(settings)} of the ensemble; a single replica has no "
            "certificate",
            *_rule(settings),
            *_reading(settings, num_replicas),
            _SECRET,
            *_guarantee(settings.mechanism, settings.privacy, settings.threat),
        ]
    return (*stated, *map(STATED.__add__, settings.stated_assumptions))


def cost_assumptions(settings: CostSettings) -> tuple[str, ...]:
    """What bounds on the attacker's cost take for granted."""
    fixed = settings.bound not in (Bound.BETTING, Bound.NONE)
    known = _guarantee(settings.mechanism, settings.privacy, settings.threat)
    stated = map(STATED.__add__, settings.stated_assumptions)
    return (_independent(settings.mechanism), _COST, *[_NUMBER] * fixed, _SECRET, *known, *stated)


def _measured(settings: Settings, numbers: str, num_replicas: int | None) -> list[str]:
    """Where the numbers come from."""
    if num_replicas is None:
        return [
            "the class confidences are exact expectations, without Monte-Carlo error, up to the rounding of "
            f"{numbers} and what a row misses one by"
        ]
    found = [_independent(settings.mechanism), _stored(settings, numbers), _INPUTS, _SETTLED]
    if not settings.holds_at_all_times and settings.bound is not Bound.NONE:
        found.append(_NUMBER)
    if settings.method is Method.MARGIN and settings.bound is Bound.BETTING:
        found.append(_ORDER)
    return found


def _alike(number: int) -> list[str]:
    """What is taken for granted of replicas that repeat another one."""
    return [f"{number} replicas score what another one does, number for number, by chance"] if number else []


def _independent(mechanism: Mechanism | None) -> str:
    return _DRAWN if mechanism is not None and mechanism.one_release else _INDEPENDENT


def _stored(settings: Settings, numbers: str) -> str:
    """On which numbers the predictor is defined."""
    if settings.votes:
        return f"votes are those of the {numbers} numbers as they are stored, the first of equal ones"
    return (
        f"confidences are the {numbers} numbers as they are stored; of two classes the second one's, and one "
        "minus it"
    )


def _predictor(settings: Settings) -> str:
    first = "most probable vote" if settings.votes else "mean confidence"
    if settings.rule is Rule.PAIRWISE:
        return "class that is probably preferred to each other one"
    if settings.rule is Rule.RUN_OFF:
        return f"class that is probably preferred to the other of the first two by {first}"
    return first


def _rule(settings: Settings) -> list[str]:
    """What comparing classes two by two takes for granted besides."""
    if settings.rule is Rule.PLURALITY:
        return []
    return [
        "which of two classes a model prefers is read from the numbers as stored; equal ones count for "
        "neither",
        _CHOSEN,
    ]


def _reading(settings: Settings, num_replicas: int | None) -> list[str]:
    """Which reading of the theorem is meant (theory.md, section 4)."""
    expected = "the most probable vote" if settings.votes else "expected confidences"
    if settings.rule is not Rule.PLURALITY:
        expected = "expectations over trainings"
    found = [
        f"the statement is about {expected}: trained on data that may hold the poisoned units, the certified "
        "label is the one that the clean data's expectation gives"
    ]
    if settings.simultaneous:
        found.append(
            "it is one statement about all inputs: its failure probability is that any of them is wrong"
        )
    if settings.served is not None:
        together = settings.failure_probability + settings.served
        found.append(
            f"and about {num_replicas} replicas that are retrained under attack and served together: they "
            f"fail to give that label with at most {settings.served:.6g}, so all of it fails with at most "
            f"{together:.6g}"
        )
    return found


def _guarantee(
    mechanism: Mechanism | None, privacy: ApproximateDP | None, threat: ThreatModel
) -> tuple[str, ...]:
    """What is taken for granted of the training."""
    if mechanism is not None:
        return mechanism.assumptions
    assert privacy is not None
    moved = "replaced by another" if privacy.relation is Relation.REPLACE else "added or removed"
    steps = "" if privacy.relation is threat.relation else "; to replace one is to take two such steps"
    return (f"epsilon and delta were proved for one {threat.unit} {moved}{steps}",)


def cost_caveats(settings: CostSettings) -> tuple[Caveat, ...]:
    """Why bounds on the attacker's cost are only heuristic; empty if they are sound."""
    mechanism, threat = settings.mechanism, settings.threat
    found = list(mechanism.caveats(threat.relation)) if mechanism else []
    if mechanism and settings.method is CostMethod.PAPER:
        found += _paper_accounting(mechanism, threat)
    return (*found, *[_NO_BOUND] * (settings.bound is Bound.NONE), *_stated(settings.caveats))


def _paper_accounting(mechanism: Mechanism, threat: ThreatModel) -> list[Caveat]:
    """Where the paper's ε differs from what is executed and claimed."""
    found = []
    queries = queries_of(mechanism)
    if any(query.sampling.closed for query in queries):
        found.append(_FIXED_SIZE)
    if any(query.selection_probability < 1 for query in queries):
        found.append(_OWNERS)
    if threat.relation is Relation.REPLACE:
        found.append(_RELATION)
    return found


def _paper_group(mechanism: Mechanism, threat: ThreatModel) -> list[Caveat]:
    """The paper counts one step per unit, whatever the Rényi curve is for."""
    fixed = any(query.sampling.closed for query in queries_of(mechanism))
    return [_RELATION] if threat.relation is Relation.REPLACE and not fixed else []


def unproved(mechanism: Mechanism) -> str | None:
    """Why the published accountants (`paper`, `rdp-without-replacement`) bound nothing here; None: they do.

    Of units that are added or removed, and drawn each by itself, both are bounds, though wide ones.
    """
    queries = queries_of(mechanism)
    if any(query.selection_probability < 1 for query in queries):
        return _OWNERS.sentence
    if any(query.sampling.closed for query in queries):
        return f"one {mechanism.unit} that is replaced is taken to move a sum by one clip norm, not by two"
    return None


# --- the half of a guarantee that nobody can check ----------------------------------------------------------


def executed(source: Mechanism | ApproximateDP, threat: ThreatModel, *, replicas: int | None = None) -> str:
    """What is taken to have been executed, in one sentence to hold beside the code of the training.

    Of one model, or of `replicas`.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> tenth = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> executed(tenth, ThreatModel()).split("; ")[1]
    'in each round, every user takes part independently with probability 0.1'
    """
    drawn = isinstance(source, Mechanism) and source.one_release
    made = "draws around one release" if drawn else "independent trainings on the same data, each"
    trainings = "" if replicas is None else f"{replicas} {made} "
    if isinstance(source, ApproximateDP):
        return trainings + _known_by_epsilon(source, threat)
    joining = [f"none of these numbers changes when {threat.unit}s join"]
    parts = [*source.in_words(), *(joining if threat.relation is Relation.JOIN else [])]
    return f"{trainings}{'of ' * bool(trainings)}{'; '.join(parts)}"


def _known_by_epsilon(privacy: ApproximateDP, threat: ThreatModel) -> str:
    unit = threat.unit
    stated = "added or removed" if privacy.relation is Relation.JOIN else "replaced by another"
    text = (
        f"({digits(privacy.epsilon)}, {digits(privacy.delta)})-differentially private for one {unit} "
        f"{stated}, in everything by which one {unit} can influence the model"
    )
    if privacy.relation is Relation.JOIN and threat.relation is Relation.REPLACE:
        text += f"; each {unit} that is replaced counts as one removed and one added"
    return text
