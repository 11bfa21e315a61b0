"""`fedproof plan`: what it takes to certify k units, and which mechanism is expected to certify most."""

from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedproof import check
from fedproof.accounting.epsilon import replaced_epsilon
from fedproof.certificates import planning
from fedproof.cli.belonging import Kind, check_options
from fedproof.cli.common import Json, doubt_delta, print_json, say
from fedproof.cli.mechanism import (
    Given,
    PlanOptions,
    RelationOption,
    SamplingOptions,
    changed_in_words,
    check_noise,
    check_relation,
    mechanism_kinds,
    sampling_of,
    unfolded,
)
from fedproof.cli.ranking import Wanted, choose
from fedproof.mechanisms import Everyone, OneRound, SamplingKind
from fedproof.mechanisms.uploads import UPLOADS
from fedproof.threat import Relation, ThreatModel, Unit

_MOST_UNITS, _MOST_REPLICAS = 100_000, 1_000_000  # more take minutes, and all memory


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
    upload: Annotated[
        Literal["anchors", "rows", "pairs", "ball", "non-negative"] | None,
        typer.Option(help="--find noise with --epsilon: one round, in which each user sends this, once."),
    ] = None,
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
    classes: Annotated[
        int, typer.Option(help="--find mechanism with --accuracy, or --upload anchors: number of classes.")
    ] = 10,
    device: Annotated[
        str, typer.Option(help="--find mechanism with --pilot: cpu or cuda, where the pilot trains.")
    ] = "cpu",
    json: Json = False,
) -> None:
    """Find noise, rounds, cohort or mechanism for k units or an ε."""
    kinds = _question(options, given, find)
    check_options("plan", given, kinds)
    check_relation(relation, kinds)
    check.count(**{"--rounds": options.rounds, "--steps": options.steps})
    if options.noise_multiplier is not None:
        check_noise(options.noise_multiplier)
    _check_most(**{"--size": (size or 1, _MOST_UNITS), "--replicas": (replicas, _MOST_REPLICAS)})
    if Kind.BY_ACCURACY in kinds or Kind.BY_PILOT in kinds:
        assert size is not None, "checked by the table of options"
        wanted = Wanted(
            size=size,
            relation=relation,
            epsilon=epsilon,
            delta=delta,
            replicas=replicas,
            classes=classes,
        )
        choose(options, wanted, accuracy or (), pilot, device=device, json=json)
        return
    if Kind.ONE_ROUND in kinds:
        assert upload is not None
        assert epsilon is not None
        threat = ThreatModel(unit=options.unit, relation=relation)
        mechanism = _one_round(upload, classes, options.unit, epsilon=epsilon, delta=delta)
        found, sentence = _of_one_round(mechanism, threat, size, epsilon=epsilon, delta=delta)
    elif Kind.NOISE_FOR_EPSILON in kinds:
        assert epsilon is not None
        found, sentence = _noise_for_epsilon(options, epsilon, delta)
    else:
        question = {"size": size, "top": top, "rival": round(1 - top, 12) if rival is None else rival}
        threat = ThreatModel(unit=options.unit, relation=relation)
        found, sentence = _for_size(kinds, options, question, threat)
    if json:
        print_json(found)
        return
    say(sentence)
    doubt_delta(delta)


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
    if "upload" in given:
        labels = given["upload"] == "anchors"
        if labels and options.unit is Unit.INSTANCE:
            raise ValueError(
                "--upload anchors does not belong to --unit instance: one instance trains no model that "
                "could label anything"
            )
        return [Kind.ONE_ROUND, *[Kind.LEAD] * ("size" in given), *[Kind.LABELS] * labels]
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
    unit = f"one {options.unit} {changed_in_words(relation)}"
    return document, f"noise multiplier {noise:g} gives ε <= {epsilon:g} at δ = {delta:g} for {unit}"


def _one_round(upload: str, classes: int, unit: Unit, *, epsilon: float, delta: float) -> OneRound:
    """The single release of this ε; how wide an upload is changes neither ε."""
    if classes < 2:
        raise ValueError(f"--classes = {classes} must be at least 2")
    kind = UPLOADS[upload]
    widths = {field.name: 1 for field in fields(kind) if field.name in ("features", "anchors")}
    noise = planning.noise_for_epsilon(epsilon=epsilon, delta=delta, sampling=Everyone(), rounds=1)
    return OneRound(upload=kind(classes=classes, **widths), noise_multiplier=noise, unit=unit)


def _of_one_round(
    mechanism: OneRound, threat: ThreatModel, size: int | None, *, epsilon: float, delta: float
) -> Answer:
    """What the release costs for either relation, and the lead that withstands so many poisoned units."""
    from fedproof.report.words import rounded_up

    unit, noise, replaced = threat.unit, mechanism.noise_multiplier, replaced_epsilon(mechanism, delta)
    found: dict[str, Any] = {
        "noise_multiplier": noise,
        "epsilon": epsilon,
        "delta": delta,
        "epsilon_relation": Relation.JOIN.value,
        "epsilon_if_replaced": replaced,
        "upload": mechanism.upload.kind,
        "unit": unit.value,
    }
    sentence = (
        f"noise multiplier {noise:g} gives ε <= {epsilon:g} at δ = {delta:g} for one {unit} added or "
        f"removed, {rounded_up(replaced, 3)} for one replaced, and all that is published costs no more"
    )
    if size is None:
        return found, sentence
    lead = planning.lead_for_size(size, threat.relation)
    found |= {"size": size, "relation": threat.relation.value, "lead": lead}
    held = (
        f"{size} poisoned {unit}s ({threat.relation}) change no label that leads by more than {lead} {unit}s"
    )
    return found, f"{sentence}; {held}"


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
