"""`fedproof account` and `fedproof plan`: what a mechanism costs, and what it takes to certify k units."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from fedproof import check
from fedproof.certificates import planning
from fedproof.cli import choosing
from fedproof.cli.belonging import Kind, check_options
from fedproof.cli.common import Json, print_json, print_table, say
from fedproof.cli.mechanism import (
    Given,
    MechanismOptions,
    PlanOptions,
    RelationOption,
    SamplingOptions,
    check_noise,
    check_relation,
    executed,
    mechanism_kinds,
    mechanism_of,
    sampling_of,
    unfolded,
)
from fedproof.mechanisms import SamplingKind
from fedproof.mechanisms.codec import describe
from fedproof.threat import Relation, ThreatModel, Unit

_LEAST_ACCOUNTED = 0.05  # where ε is in the hundreds, and accountants take minutes to say so
_MOST_UNITS, _MOST_REPLICAS = 100_000, 1_000_000  # more take minutes, and all memory
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
    given: Given,
    delta: Annotated[
        float, typer.Option(help="δ that ε is computed for; it should be well below 1 / number of units.")
    ] = 1e-5,
    epsilon: Annotated[
        float | None, typer.Option(help="Also the other way round: δ for this ε, by each accountant.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option(help="Also ε of publishing so many models, all trained like this.")
    ] = None,
    json: Json = False,
) -> None:
    """ε of one unit under every accountant, and of a whole ensemble.

    It is the ε of your training only if the options describe exactly what it did. Which options describe
    which training loop is a table in the guide, docs/loops.md.
    """
    from fedproof import accounting
    from fedproof.accounting.epsilon import dopamine_epsilon, natural_relation

    kinds = mechanism_kinds(options, given)
    check_options("account", given, kinds)
    check.open_probability(**{"--delta": delta})
    if options.noise_multiplier is not None:
        check_noise(options.noise_multiplier, _LEAST_ACCOUNTED)
    mechanism, unit = mechanism_of(options, kinds), options.unit
    spent = accounting.account(mechanism, delta, ["paper", "rdp", "rdp-without-replacement", "pld"])
    if any(query.selection_probability < 1 for query in mechanism.queries):
        spent["dopamine"] = dopamine_epsilon(mechanism, delta)
    threat = ThreatModel(unit=unit, relation=natural_relation(mechanism))
    document: dict[str, Any] = {
        "epsilon": spent,
        "delta": delta,
        "unit": unit.value,
        "relation": threat.relation.value,
        "event": str(accounting.event_of(mechanism)),
        "mechanism": describe(mechanism),
        "executed": executed(mechanism, threat),
    }
    if replicas is not None:
        document["ensemble_epsilon"] = accounting.ensemble_account(mechanism, delta, replicas)
        document["replicas"] = replicas
    if epsilon is not None:
        document["delta_at_epsilon"] = accounting.account_delta(mechanism, epsilon)
    if json:
        print_json(document)
    else:
        _show_account(document, epsilon)


def _show_account(document: dict[str, Any], epsilon: float | None) -> None:
    unit = document["unit"]
    say(f"taken to be executed: {document['executed']}")
    print_table(
        f"ε of one {unit} at δ = {document['delta']:g}",
        ("accountant", "ε"),
        [(_NAMES[name], f"{value:.4f}") for name, value in document["epsilon"].items()],
    )
    say(f"for one {unit} {_changed(document['relation'])}: {document['event']}")
    if epsilon is not None:
        found = ", ".join(f"{value:.3g} ({name})" for name, value in document["delta_at_epsilon"].items())
        say(f"δ at ε = {epsilon:g}: {found}")
    if "replicas" in document:
        cost = document["ensemble_epsilon"]
        say(
            f"all {document['replicas']} models together: ε = {cost['pld']:.2f} by composition (pld), "
            f"{cost['paper']:.2f} as a product (paper)"
        )


def _changed(relation: str) -> str:
    return "added or removed" if relation == Relation.JOIN else "replaced"


def _check_most(**limits: tuple[int, int]) -> None:
    """Refuse a number that is too large to compute with."""
    for option, (number, most) in limits.items():
        if number > most:
            raise ValueError(f"{option} = {number} must be at most {most}")


class Find(StrEnum):
    """What `plan` looks for."""

    NOISE = "noise"
    ROUNDS = "rounds"
    COHORT = "cohort"
    MECHANISM = "mechanism"


@unfolded
def plan(
    options: PlanOptions,
    given: Given,
    size: Annotated[int | None, typer.Option(help="Number of poisoned units to certify.")] = None,
    top: Annotated[
        float,
        typer.Option(help="Confidence in the predicted class that you expect, as a mean over replicas."),
    ] = 0.95,
    rival: Annotated[
        float | None,
        typer.Option(help="Confidence in its strongest rival that you expect. [default: 1 - top]"),
    ] = None,
    find: Annotated[
        Find | None,
        typer.Option(
            help="What to look for, all else being given: the least noise, the most rounds, the largest "
            "cohort, or the best mechanism. [default: noise; mechanism with --accuracy or --pilot]"
        ),
    ] = None,
    epsilon: Annotated[
        float | None,
        typer.Option(
            help="--find noise: look for the noise that gives this ε, instead of one that certifies --size. "
            "--find mechanism: rank private mechanisms of at most this ε."
        ),
    ] = None,
    delta: Annotated[float, typer.Option(help="δ that goes with --epsilon.")] = 1e-5,
    relation: RelationOption = Relation.REPLACE,
    accuracy: Annotated[
        list[str] | None,
        typer.Option(
            help="--find mechanism: accuracy of one model trained on so many units, as 10=0.71 for ten; "
            "repeat it for other numbers."
        ),
    ] = None,
    pilot: Annotated[
        Path | None,
        typer.Option(help="--find mechanism: an experiment (TOML) to measure those accuracies on, instead."),
    ] = None,
    replicas: Annotated[
        int, typer.Option(help="--find mechanism: models in an ensemble whose cohorts are drawn.")
    ] = 500,
    classes: Annotated[int, typer.Option(help="--find mechanism with --accuracy: number of classes.")] = 10,
    device: Annotated[
        str, typer.Option(help="--find mechanism with --pilot: cpu or cuda, where the pilot trains.")
    ] = "cpu",
    json: Json = False,
) -> None:
    """The least noise, most rounds, largest cohort or best mechanism for k units; or the noise for an ε."""
    kinds = _question(options, given, find)
    check_options("plan", given, kinds)
    check_relation(relation, kinds)
    check.count(**{"--rounds": options.rounds, "--steps": options.steps})
    if options.noise_multiplier is not None:
        check_noise(options.noise_multiplier)
    _check_most(**{"--size": (size or 1, _MOST_UNITS), "--replicas": (replicas, _MOST_REPLICAS)})
    if Kind.BY_ACCURACY in kinds or Kind.BY_PILOT in kinds:
        assert size is not None, "checked by the table of options"
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
    if Kind.NOISE_FOR_EPSILON in kinds:
        assert epsilon is not None
        found, sentence = _noise_for_epsilon(options, epsilon, delta)
    else:
        question = {"size": size, "top": top, "rival": round(1 - top, 12) if rival is None else rival}
        threat = ThreatModel(unit=options.unit, relation=relation)
        found, sentence = _for_size(kinds, options, question, threat)
    if json:
        print_json(found)
    else:
        say(sentence)


def _question(options: SamplingOptions, given: Given, find: Find | None) -> list[Kind]:
    """What is looked for, and for which mechanism."""
    ranked = "accuracy" in given or "pilot" in given
    match find or (Find.MECHANISM if ranked else Find.NOISE):
        case Find.MECHANISM:
            if not ranked:
                size = "" if "size" in given else "--size and "
                raise ValueError(f"--find mechanism needs {size}--accuracy (as 10=0.71, several) or --pilot")
            source = Kind.BY_PILOT if "pilot" in given else Kind.BY_ACCURACY
            return [source, Kind.PRIVATE] if "epsilon" in given else [source]
        case Find.COHORT:
            _check_cohort(options)
            return [Kind.COHORT]
        case Find.ROUNDS:
            return [Kind.ROUNDS, *mechanism_kinds(options, given)]
    if "size" not in given and "epsilon" not in given:
        raise ValueError("give either --size (to certify) or --epsilon (to be private)")
    purpose = Kind.NOISE_FOR_EPSILON if "epsilon" in given else Kind.NOISE_FOR_SIZE
    return [purpose, *mechanism_kinds(options, given)]


def _check_cohort(options: SamplingOptions) -> None:
    if options.unit == Unit.INSTANCE:
        raise ValueError(
            "--unit instance does not belong to --find cohort: which users are drawn does not protect their "
            "instances, it is for --find noise or --find rounds"
        )
    if options.sampling == SamplingKind.NONE:
        raise ValueError(
            "--sampling none does not belong to --find cohort: it draws no cohort, give poisson or fixed"
        )


Answer = tuple[dict[str, Any], str]


def _count(options: SamplingOptions) -> int:
    """Noisy sums: rounds, or local steps in all rounds."""
    return options.rounds * options.steps


def _noise_for_epsilon(options: SamplingOptions, epsilon: float, delta: float) -> Answer:
    sampling = sampling_of(options)
    noise = planning.noise_for_epsilon(
        epsilon=epsilon, delta=delta, sampling=sampling, rounds=_count(options)
    )
    relation = Relation.REPLACE if sampling.closed else Relation.JOIN
    document = {
        "noise_multiplier": noise,
        "epsilon": epsilon,
        "delta": delta,
        "unit": options.unit.value,
        "relation": relation.value,
    }
    changed = f"one {options.unit} {_changed(relation)}"
    return document, f"noise multiplier {noise:g} gives ε <= {epsilon:g} at δ = {delta:g} for {changed}"


def _for_size(
    kinds: list[Kind], options: SamplingOptions, question: dict[str, Any], threat: ThreatModel
) -> Answer:
    """The answer to a question about so many poisoned units at such confidences."""
    ask = next(ask for kind, ask in _ANSWERS.items() if kind in kinds)
    found, sentence = ask(options, question | {"threat": threat})
    echo = {"unit": threat.unit.value, "relation": threat.relation.value}
    size, top, rival = question["size"], question["top"], question["rival"]
    asked = f"{size} poisoned {threat.unit}s ({threat.relation}) at confidences {top:g} against {rival:g}"
    return found | echo, f"{sentence} {asked}"


def _find_noise(options: SamplingOptions, question: dict[str, Any]) -> Answer:
    noise = planning.noise_for_size(sampling=sampling_of(options), rounds=_count(options), **question)
    found = {"noise_multiplier": noise} | {key: question[key] for key in ("size", "top", "rival")}
    return found, f"noise multiplier {noise:g} certifies"


def _find_rounds(options: SamplingOptions, question: dict[str, Any]) -> Answer:
    noise = options.noise_multiplier
    assert noise is not None, "checked by the table of options"
    sums = planning.rounds_for_size(sampling=sampling_of(options), noise_multiplier=noise, **question)
    rounds = sums // options.steps
    steps = f" of {options.steps} steps" * (options.steps > 1)
    return {"rounds": rounds, "size": question["size"]}, f"{rounds} rounds{steps} at most certify"


def _find_cohort(options: SamplingOptions, question: dict[str, Any]) -> Answer:
    noise, users = options.noise_multiplier, options.users
    assert noise is not None, "checked by the table of options"
    assert users is not None, "checked by the table of options"
    largest = planning.cohort_for_size(
        users=users,
        noise_multiplier=noise,
        rounds=_count(options),
        fixed=options.sampling == SamplingKind.FIXED,
        **question,
    )
    return {"cohort": largest, "size": question["size"]}, f"a cohort of {largest} at most certifies"


_ANSWERS = {Kind.NOISE_FOR_SIZE: _find_noise, Kind.ROUNDS: _find_rounds, Kind.COHORT: _find_cohort}
