"""Which conditions of its theorem a certificate meets, and what it takes for granted (theory.md, 5)."""

from collections.abc import Iterable, Mapping

import numpy as np
from numpy.typing import ArrayLike

from fedproof.certificates.certificate import CostMethod, CostSettings, Method, Settings
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.paper_theorems import Group
from fedproof.certificates.privacy import ApproximateDP
from fedproof.certificates.rules import Rule
from fedproof.certificates.scores import repeated_models
from fedproof.mechanisms import Mechanism, Releases
from fedproof.mechanisms.sampling import digits
from fedproof.statements import Statement
from fedproof.threat import Relation, ThreatModel


def copies(number: int, total: int) -> tuple[Statement, ...]:
    """So many replicas score what another one does; none if `number` is 0."""
    return (Statement.of("copies", number=number, total=total),) if number else ()


def copied_models(mechanism: Mechanism, parts: Iterable[Mapping[str, ArrayLike]]) -> tuple[Statement, ...]:
    """Why trainings of a mechanism with noise are not independent: some of their models are equal."""
    if mechanism.releases is not Releases.REPLICAS or not mechanism.noisy:
        return ()
    found = ({name: np.asarray(values) for name, values in named.items()} for named in parts)
    number, total = repeated_models(found)
    return (Statement.of("copied-models", number=number, total=total),) if number else ()


_ELECTED = {
    Rule.PLURALITY: "elected-plurality",
    Rule.PAIRWISE: "elected-pairwise",
    Rule.RUN_OFF: "elected-run-off",
}
_PREDICTOR = {
    (Rule.PLURALITY, True): "predictor-votes",
    (Rule.PLURALITY, False): "predictor-confidences",
    (Rule.PAIRWISE, True): "predictor-pairwise",
    (Rule.RUN_OFF, True): "predictor-run-off-votes",
    (Rule.RUN_OFF, False): "predictor-run-off-confidences",
}
"""By the rule, and whether votes are counted."""


def unmet_by(settings: Settings, *, exact: bool = False) -> tuple[Statement, ...]:
    """The conditions that a certificate does not meet; empty if it is sound. `exact`: from means."""
    mechanism = settings.mechanism
    found = list(mechanism.unmet(settings.threat.relation)) if mechanism else []
    if mechanism and settings.method is Method.PAPER:
        found += _paper_accounting(mechanism, settings.threat)
    if mechanism and settings.method is Method.RENYI and settings.group is Group.PAPER:
        found += _paper_group(mechanism, settings.threat)
    if not exact and not settings.certain:
        if settings.bound is Bound.NONE:
            found.append(Statement.of("no-confidence"))
        elif settings.spending is Spending.PAPER:
            found.append(Statement.of("spending"))
    return (*found, *settings.stated_unmet)


def assumptions_of(
    settings: Settings, *, numbers: str, num_replicas: int | None, alike: int = 0
) -> tuple[Statement, ...]:
    """What the certificate takes for granted and nobody can check from the scores.

    `numbers` is the type of the scores; without `num_replicas` they are exact means. So many replicas are
    `alike` for no reason that could be seen.
    """
    rule = () if settings.rule is Rule.PLURALITY else ("pairs-stored", "rule-settled")
    if settings.mechanism is not None and settings.counted:
        alone, group = settings.mechanism.assumptions
        stored = (Statement.of(_ELECTED[settings.rule]), _stored(settings, numbers))
        found = [alone, *stored, *map(Statement.of, rule), group]
    elif settings.mechanism is not None and settings.exact:
        found = [Statement.of("released-model"), *settings.mechanism.assumptions]
    else:
        found = [
            *_measured(settings, numbers, num_replicas),
            *[Statement.of("alike", number=alike)] * bool(alike),
            *map(Statement.of, (_PREDICTOR[settings.rule, settings.votes], *rule)),
            *_reading(settings, num_replicas),
            Statement.of("secret"),
            *_guarantee(settings.mechanism, settings.privacy, settings.threat),
        ]
    return (*found, *settings.stated_assumptions)


def cost_assumptions(settings: CostSettings) -> tuple[Statement, ...]:
    """What bounds on the attacker's cost take for granted."""
    fixed = settings.bound not in (Bound.BETTING, Bound.NONE)
    codes = (_source(settings.mechanism), "cost-settled", *["number-settled"] * fixed, "secret")
    known = _guarantee(settings.mechanism, settings.privacy, settings.threat)
    return (*map(Statement.of, codes), *known, *settings.stated_assumptions)


def _measured(settings: Settings, numbers: str, num_replicas: int | None) -> list[Statement]:
    """Where the numbers come from."""
    if num_replicas is None:
        return [Statement.of("means-exact", numbers=numbers)]
    found = [Statement.of(_source(settings.mechanism)), _stored(settings, numbers)]
    found += map(Statement.of, ("inputs-unseen", "settled"))
    if not settings.holds_at_all_times and settings.bound is not Bound.NONE:
        found.append(Statement.of("number-settled"))
    if settings.method is Method.MARGIN and settings.bound is Bound.BETTING:
        found.append(Statement.of("order-random"))
    return found


def _source(mechanism: Mechanism | None) -> str:
    return "drawn" if mechanism is not None and mechanism.one_release else "independent"


def _stored(settings: Settings, numbers: str) -> Statement:
    """On which numbers the predictor is defined."""
    return Statement.of("votes-stored" if settings.votes else "confidences-stored", numbers=numbers)


def _reading(settings: Settings, num_replicas: int | None) -> list[Statement]:
    """Which reading of the theorem is meant (theory.md, section 4)."""
    about = "about-votes" if settings.votes else "about-confidences"
    found = [Statement.of(about if settings.rule is Rule.PLURALITY else "about-trainings")]
    if settings.simultaneous:
        found.append(Statement.of("about-all-inputs"))
    if settings.served is not None:
        assert num_replicas is not None, "checked by the settings"
        together = settings.failure_probability + settings.served
        told = {"replicas": num_replicas, "served": settings.served, "together": together}
        found.append(Statement.of("about-served", **told))
    return found


def _guarantee(
    mechanism: Mechanism | None, privacy: ApproximateDP | None, threat: ThreatModel
) -> tuple[Statement, ...]:
    """What is taken for granted of the training."""
    if mechanism is not None:
        return mechanism.assumptions
    assert privacy is not None
    proved = "proved-if-replaced" if privacy.relation is Relation.REPLACE else "proved-if-joined"
    stepped = "proved-in-two-steps" if privacy.relation is not threat.relation else proved
    return (Statement.of(stepped, unit=threat.unit),)


def unmet_by_costs(settings: CostSettings) -> tuple[Statement, ...]:
    """The conditions that bounds on the attacker's cost do not meet; empty if they are sound."""
    mechanism, threat = settings.mechanism, settings.threat
    found = list(mechanism.unmet(threat.relation)) if mechanism else []
    if mechanism and settings.method is CostMethod.PAPER:
        found += _paper_accounting(mechanism, threat)
    unsure = [Statement.of("no-confidence")] if settings.bound is Bound.NONE else []
    return (*found, *unsure, *settings.stated_unmet)


def _paper_accounting(mechanism: Mechanism, threat: ThreatModel) -> list[Statement]:
    """Where the paper's ε differs from what is executed and claimed."""
    found = []
    queries = mechanism.queries
    if any(query.sampling.closed for query in queries):
        found.append(Statement.of("fixed-size"))
    if any(query.selection_probability < 1 for query in queries):
        found.append(Statement.of("owners-drawn"))
    if threat.relation is Relation.REPLACE:
        found.append(Statement.of("relation"))
    return found


def _paper_group(mechanism: Mechanism, threat: ThreatModel) -> list[Statement]:
    """The paper counts one step per unit, whatever the Rényi curve is for."""
    fixed = any(query.sampling.closed for query in mechanism.queries)
    replaced = threat.relation is Relation.REPLACE and not fixed
    return [Statement.of("relation")] if replaced else []


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
