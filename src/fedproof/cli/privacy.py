"""`fedproof account` and `fedproof plan`: what a mechanism costs, and what it takes to certify k units."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof import check
from fedproof.certificates import planning
from fedproof.cli import choosing
from fedproof.cli.common import (
    Json,
    MechanismOptions,
    RelationOption,
    SamplingKind,
    SamplingOptions,
    mechanism_of,
    print_json,
    print_table,
    say,
    unfolded,
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


@unfolded
def account(
    options: MechanismOptions,
    delta: Annotated[float, typer.Option(help="δ at which ε is stated.")] = 1e-5,
    epsilon: Annotated[float | None, typer.Option(help="Also δ at this ε.")] = None,
    replicas: Annotated[int | None, typer.Option(help="Also the cost of so many models together.")] = None,
    json: Json = False,
) -> None:
    """ε of one unit under every accountant, and of a whole ensemble."""
    from fedproof import accounting
    from fedproof.accounting.epsilon import dopamine_epsilon, natural_relation

    check.open_probability(**{"--delta": delta})
    mechanism, unit = mechanism_of(options), options.unit
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
    MECHANISM = "mechanism"


@unfolded
def plan(
    options: SamplingOptions,
    size: Annotated[int | None, typer.Option(help="Poisoned units to certify.")] = None,
    top: Annotated[float, typer.Option(help="Expected confidence of the predicted class.")] = 0.95,
    rival: Annotated[float | None, typer.Option(help="Of its strongest rival; default 1 - top.")] = None,
    find: Annotated[Find, typer.Option(help="What to look for; the rest is given.")] = Find.NOISE,
    epsilon: Annotated[
        float | None,
        typer.Option(help="Instead of --size: the noise for this ε. --find mechanism: the most ε."),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ, with --epsilon.")] = 1e-5,
    relation: RelationOption = Relation.REPLACE,
    accuracy: Annotated[
        list[str] | None,
        typer.Option(
            help="--find mechanism: what one model reaches on so many users, as 10=0.71; repeat it."
        ),
    ] = None,
    pilot: Annotated[
        Path | None, typer.Option(help="--find mechanism: an experiment to measure that on, by a few models.")
    ] = None,
    replicas: Annotated[int, typer.Option(help="--find mechanism: models of cohorts drawn once.")] = 500,
    classes: Annotated[int, typer.Option(help="--find mechanism: number of classes.")] = 10,
    device: Annotated[str, typer.Option(help="--pilot: cpu or cuda.")] = "cpu",
    json: Json = False,
) -> None:
    """The least noise, most rounds, largest cohort or best mechanism for k units; or the noise for an ε."""
    if accuracy or pilot or find == Find.MECHANISM:
        wanted = choosing.Wanted(
            size=size,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            replicas=replicas,
            classes=classes,
        )
        choosing.choose(options, wanted, accuracy or (), pilot, device=device, json=json)
        return
    if (size is None) == (epsilon is None):
        raise ValueError("give either --size (to certify) or --epsilon (to be private)")
    if epsilon is not None:
        _noise_for_epsilon(options, epsilon, delta, json=json)
        return
    assert size is not None
    rival = 1 - top if rival is None else rival
    question: dict[str, Any] = {
        "size": size,
        "top": top,
        "rival": rival,
        "threat": ThreatModel(unit=options.unit, relation=relation),
    }
    asked = f"{size} poisoned {options.unit}s ({relation}) at confidences {top:g} against {rival:g}"
    _answer(json, *_ANSWERS[find](options, question, asked))


Answer = tuple[dict[str, Any], str]


def _count(options: SamplingOptions) -> int:
    """Gaussian queries: rounds, or local steps in all rounds."""
    return options.rounds * (options.steps if options.unit == Unit.INSTANCE else 1)


def _noise_for_epsilon(options: SamplingOptions, epsilon: float, delta: float, *, json: bool) -> None:
    noise = planning.noise_for_epsilon(
        epsilon=epsilon, delta=delta, sampling=options.drawn(), rounds=_count(options)
    )
    _answer(
        json,
        {"noise_multiplier": noise, "epsilon": epsilon, "delta": delta},
        f"noise multiplier {noise:g} gives ε <= {epsilon:g} at δ = {delta:g}",
    )


def _find_noise(options: SamplingOptions, question: dict[str, Any], asked: str) -> Answer:
    noise = planning.plan(sampling=options.drawn(), rounds=_count(options), **question)
    found = {"noise_multiplier": noise} | {key: question[key] for key in ("size", "top", "rival")}
    return found, f"noise multiplier {noise:g} certifies {asked}"


def _find_rounds(options: SamplingOptions, question: dict[str, Any], asked: str) -> Answer:
    if options.noise_multiplier is None:
        raise ValueError("--find rounds needs --noise-multiplier")
    most = planning.plan_rounds(
        sampling=options.drawn(), noise_multiplier=options.noise_multiplier, **question
    )
    return {"rounds": most, "size": question["size"]}, f"{most} rounds or steps at most certify {asked}"


def _find_cohort(options: SamplingOptions, question: dict[str, Any], asked: str) -> Answer:
    if options.noise_multiplier is None:
        raise ValueError("--find cohort needs --noise-multiplier")
    if options.users is None:
        raise ValueError("--find cohort needs --users")
    largest = planning.plan_cohort(
        users=options.users,
        noise_multiplier=options.noise_multiplier,
        rounds=_count(options),
        fixed=options.sampling == SamplingKind.FIXED,
        **question,
    )
    return {"cohort": largest, "size": question["size"]}, f"a cohort of {largest} at most certifies {asked}"


_ANSWERS = {Find.NOISE: _find_noise, Find.ROUNDS: _find_rounds, Find.COHORT: _find_cohort}


def _answer(json: bool, document: dict[str, Any], sentence: str) -> None:
    if json:
        print_json(document)
    else:
        say(sentence)
