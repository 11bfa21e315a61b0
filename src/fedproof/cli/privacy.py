"""`fedproof account` and `fedproof plan`: what a mechanism costs, and what it takes to certify k units."""

from enum import StrEnum
from typing import Annotated, Any

import typer

from fedproof import check
from fedproof.cli.common import (
    BatchProbability,
    Cohort,
    Json,
    NoiseMultiplier,
    PerLayerOption,
    RelationOption,
    Rounds,
    SamplingKind,
    SamplingOption,
    SamplingProbability,
    Steps,
    UnitOption,
    Users,
    mechanism_of,
    print_json,
    print_table,
    sampling_of,
    say,
)
from fedproof.protocol import InstanceFedSGD
from fedproof.threat import Relation, ThreatModel, Unit

_NAMES = {
    "paper": "paper (Rényi, its orders, classical conversion)",
    "rdp": "rdp (Rényi, improved conversion)",
    "rdp-without-replacement": "rdp-without-replacement (the paper's proposition)",
    "pld": "pld (loss distributions, tightest)",
    "dopamine": "Dopamine (no gain from the choice of users)",
}


def account(
    noise_multiplier: NoiseMultiplier = None,
    sampling: SamplingOption = SamplingKind.POISSON,
    sampling_probability: SamplingProbability = None,
    cohort: Cohort = None,
    users: Users = None,
    rounds: Rounds = 1,
    steps: Steps = 1,
    delta: Annotated[float, typer.Option(help="δ at which ε is stated.")] = 1e-5,
    epsilon: Annotated[float | None, typer.Option(help="Also δ at this ε.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Also the cost of so many models together.")] = None,
    per_layer: PerLayerOption = None,
    unit: UnitOption = Unit.USER,
    batch_probability: BatchProbability = None,
    json: Json = False,
) -> None:
    """ε of one unit under every accountant, and of a whole ensemble."""
    from fedproof import accounting
    from fedproof.accounting.epsilon import dopamine_epsilon, natural_relation

    check.open_probability(**{"--delta": delta})
    mechanism = mechanism_of(
        noise_multiplier=noise_multiplier,
        sampling=sampling,
        sampling_probability=sampling_probability,
        cohort=cohort,
        users=users,
        rounds=rounds,
        steps=steps,
        per_layer=per_layer,
        unit=unit,
        batch_probability=batch_probability,
    )
    spent = accounting.account(mechanism, delta, ["paper", "rdp", "rdp-without-replacement", "pld"])
    if isinstance(mechanism, InstanceFedSGD):
        spent["dopamine"] = dopamine_epsilon(mechanism, delta)
    document: dict[str, Any] = {
        "epsilon": spent,
        "delta": delta,
        "unit": unit.value,
        "relation": natural_relation(mechanism).value,
        "event": str(accounting.event_of(mechanism)),
    }
    if replicas is not None:
        document["ensemble_epsilon"] = accounting.ensemble_account(mechanism, delta, replicas)
        document["replicas"] = replicas
    if epsilon is not None:
        document["delta_at_epsilon"] = accounting.account_delta(mechanism, epsilon)
    if json:
        print_json(document)
        return
    print_table(
        f"ε of one {unit} at δ = {delta:g}",
        ("accountant", "ε"),
        [(_NAMES[name], f"{value:.4f}") for name, value in spent.items()],
    )
    stated = "added or removed" if document["relation"] == Relation.JOIN else "replaced"
    say(f"for one {unit} {stated}: {document['event']}")
    if epsilon is not None:
        found = ", ".join(f"{value:.3g} ({name})" for name, value in document["delta_at_epsilon"].items())
        say(f"δ at ε = {epsilon:g}: {found}")
    if replicas is not None:
        cost = document["ensemble_epsilon"]
        say(f"{replicas} models together: {cost['pld']:.2f} composed, {cost['paper']:.2f} as a product")


class Find(StrEnum):
    """What `plan` looks for."""

    NOISE = "noise"
    ROUNDS = "rounds"
    COHORT = "cohort"


def plan(
    size: Annotated[int | None, typer.Option(help="Poisoned units to certify.")] = None,
    top: Annotated[float, typer.Option(help="Expected confidence of the predicted class.")] = 0.95,
    rival: Annotated[float | None, typer.Option(help="Of its strongest rival; default 1 - top.")] = None,
    find: Annotated[Find, typer.Option(help="What to look for; the rest is given.")] = Find.NOISE,
    epsilon: Annotated[float | None, typer.Option(help="Instead of --size: the noise for this ε.")] = None,
    delta: Annotated[float, typer.Option(help="δ, with --epsilon.")] = 1e-5,
    noise_multiplier: NoiseMultiplier = None,
    sampling: SamplingOption = SamplingKind.POISSON,
    sampling_probability: SamplingProbability = None,
    cohort: Cohort = None,
    users: Users = None,
    rounds: Rounds = 1,
    steps: Steps = 1,
    unit: UnitOption = Unit.USER,
    relation: RelationOption = Relation.REPLACE,
    json: Json = False,
) -> None:
    """The least noise, most rounds or largest cohort that certifies k units; or the noise for an ε."""
    from fedproof.certificates import planning

    if (size is None) == (epsilon is None):
        raise ValueError("give either --size (to certify) or --epsilon (to be private)")
    count = rounds * (steps if unit == Unit.INSTANCE else 1)
    if epsilon is not None:
        noise = planning.noise_for_epsilon(
            epsilon=epsilon,
            delta=delta,
            sampling=sampling_of(sampling, sampling_probability, cohort, users),
            rounds=count,
        )
        _answer(
            json,
            {"noise_multiplier": noise, "epsilon": epsilon, "delta": delta},
            f"noise multiplier {noise:g} gives ε <= {epsilon:g} at δ = {delta:g}",
        )
        return
    assert size is not None
    rival = 1 - top if rival is None else rival
    question: dict[str, Any] = {
        "size": size,
        "top": top,
        "rival": rival,
        "threat": ThreatModel(unit=unit, relation=relation),
    }
    asked = f"{size} poisoned {unit}s ({relation}) at confidences {top:g} against {rival:g}"
    if find == Find.NOISE:
        drawn = sampling_of(sampling, sampling_probability, cohort, users)
        noise = planning.plan(sampling=drawn, rounds=count, **question)
        _answer(
            json,
            {"noise_multiplier": noise, "size": size, "top": top, "rival": rival},
            f"noise multiplier {noise:g} certifies {asked}",
        )
        return
    if noise_multiplier is None:
        raise ValueError(f"--find {find} needs --noise-multiplier")
    if find == Find.ROUNDS:
        drawn = sampling_of(sampling, sampling_probability, cohort, users)
        most = planning.plan_rounds(sampling=drawn, noise_multiplier=noise_multiplier, **question)
        _answer(json, {"rounds": most, "size": size}, f"{most} rounds or steps at most certify {asked}")
        return
    if users is None:
        raise ValueError("--find cohort needs --users")
    fixed = sampling == SamplingKind.FIXED
    largest = planning.plan_cohort(
        users=users, noise_multiplier=noise_multiplier, rounds=count, fixed=fixed, **question
    )
    _answer(json, {"cohort": largest, "size": size}, f"a cohort of {largest} at most certifies {asked}")


def _answer(json: bool, document: dict[str, Any], sentence: str) -> None:
    if json:
        print_json(document)
    else:
        say(sentence)
