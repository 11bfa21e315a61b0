"""`fedproof plan`: what it takes to certify k units, and which mechanism is expected to certify most."""

from collections.abc import Sequence
from dataclasses import fields
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from fedproof import check
from fedproof.accounting.epsilon import replaced_epsilon
from fedproof.certificates import choosing, planning
from fedproof.cli.belonging import Kind, check_options
from fedproof.cli.common import Json, answer, doubt_delta, print_json, print_table, progress_bars, say
from fedproof.cli.mechanism import (
    Given,
    PlanOptions,
    RelationOption,
    SamplingOptions,
    check_noise,
    check_relation,
    mechanism_kinds,
    sampling_of,
    unfolded,
)
from fedproof.cli.training import training, usable
from fedproof.config import load_config
from fedproof.mechanisms import Everyone, OneRound, Releases, SamplingKind
from fedproof.mechanisms.codec import describe
from fedproof.mechanisms.sampling import digits
from fedproof.mechanisms.uploads import UPLOADS
from fedproof.threat import Relation, ThreatModel, Unit, changed_in_words

_MOST = {"size": 100_000, "replicas": 1_000_000}  # more take minutes, and all memory
_SHOWN = 8  # options of a ranking

Answer = tuple[dict[str, Any], str]

PilotDevice = Annotated[
    str,
    typer.Option(help="--find mechanism with --pilot: cpu or cuda, where the pilot trains.", callback=usable),
]


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
    size: int | None = None,
    top: float = 0.95,
    rival: float | None = None,
    find: Find | None = None,
    epsilon: float | None = None,
    delta: float = 1e-5,
    upload: Literal["anchors", "rows", "pairs", "ball", "non-negative"] | None = None,
    relation: RelationOption = Relation.REPLACE,
    accuracy: list[str] | None = None,
    pilot: Path | None = None,
    replicas: int = 500,
    classes: int = 10,
    device: PilotDevice = "cpu",
    json: Json = False,
) -> None:
    """Find noise, rounds, cohort or mechanism for k units or an ε.

    Options:
        size: Number of poisoned units to certify.
        top: Confidence in the predicted class that you expect, as a mean over replicas.
        rival: Confidence in its strongest rival that you expect. [default: 1 - top]
        find: What to look for, all else being given: the least noise, the most rounds, the largest cohort, or
            the best mechanism. [default: noise; mechanism with --accuracy or --pilot]
        epsilon: --find noise: look for the noise that gives this ε, instead of one that certifies --size.
            --find mechanism: rank private mechanisms of at most this ε.
        delta: δ that goes with --epsilon.
        upload: --find noise with --epsilon: one round, in which each user sends this, once.
        accuracy: --find mechanism: accuracy of one model trained on so many units, as 10=0.71 for ten; repeat
            it for other numbers.
        pilot: --find mechanism: an experiment (TOML) to measure those accuracies on, instead.
        replicas: --find mechanism: models in an ensemble whose cohorts are drawn.
        classes: --find mechanism with --accuracy, or --upload anchors: number of classes.
    """
    kinds = _question(options, given, find)
    check_options("plan", given, kinds)
    check_relation(relation, kinds)
    check.count(**{"--rounds": options.rounds, "--steps": options.steps})
    if options.noise_multiplier is not None:
        check_noise(options.noise_multiplier)
    for option, most in _MOST.items():
        if given.get(option, 1) > most:
            raise ValueError(f"--{option} = {given[option]} must be at most {most}")
    threat = ThreatModel(unit=options.unit, relation=relation)
    if Kind.BY_ACCURACY in kinds or Kind.BY_PILOT in kinds:
        assert size is not None, "checked by the table of options"
        known, unit = _measured(pilot, device) if pilot else _stated(options, accuracy or (), classes)
        question = choosing.Question(
            size=size,
            threat=ThreatModel(unit=unit, relation=relation),
            replicas=replicas,
            epsilon=epsilon,
            delta=delta,
            rounds=options.rounds,
        )
        _rank(known, question, measured=pilot is not None, json=json)
        return
    if Kind.ONE_ROUND in kinds:
        assert upload is not None
        assert epsilon is not None
        mechanism = _one_round(upload, classes, options.unit, epsilon=epsilon, delta=delta)
        found, sentence = _of_one_round(mechanism, threat, size, epsilon=epsilon, delta=delta)
    elif Kind.NOISE_FOR_EPSILON in kinds:
        assert epsilon is not None
        found, sentence = _noise_for_epsilon(options, epsilon, delta)
    else:
        asked = {"size": size, "top": top, "rival": round(1 - top, 12) if rival is None else rival}
        found, sentence = _for_size(kinds, options, asked, threat)
    answer(found, sentence, json=json)
    if not json:
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
    cost = f"ε <= {digits(epsilon)} at δ = {digits(delta)}"
    return document, f"noise multiplier {noise:g} gives {cost} for {unit}"


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
    cost = f"ε <= {digits(epsilon)} at δ = {digits(delta)}"
    sentence = (
        f"noise multiplier {noise:g} gives {cost} for one {unit} added or removed, "
        f"{rounded_up(replaced, 3)} for one replaced, and all that is published costs no more"
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
    confidences = f"confidences {digits(top)} against {digits(rival)}"
    asked = f"{size} poisoned {threat.unit}s ({threat.relation}) at {confidences}"
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


# --- which mechanism is expected to certify most ------------------------------------------------------------


def _rank(known: choosing.Known, question: choosing.Question, *, measured: bool, json: bool) -> None:
    """Rank the mechanisms and print them."""
    found = choosing.choose(known, question)
    notes = [choosing.ASSUMPTION]
    if not measured:
        notes.append(choosing.SPREAD.format(correlation=choosing.CORRELATION))
    if question.epsilon is not None:
        notes.append(choosing.NOISE_IS_FREE)
        notes += [choosing.ONE_ROUND] * any(o.mechanism.releases is Releases.MODEL for o in found)
    if json:
        print_json({"options": [_document(option) for option in found], "assumptions": notes})
    else:
        _show(found[:_SHOWN], question, notes)


def _stated(options: SamplingOptions, accuracies: Sequence[str], classes: int) -> tuple[choosing.Known, Unit]:
    """What --accuracy says."""
    assert options.users is not None, "checked by the table of options"
    check.count(**{"--users": options.users, "--classes": classes})
    table: dict[int, float] = {}
    for text in accuracies:
        units, reached = _accuracy(text)
        if units > options.users:
            raise ValueError(f"--accuracy {text}: {units} must be at most --users {options.users}")
        if units in table:
            raise ValueError(f"--accuracy {text}: there is another one for {units}, give one for each number")
        table[units] = reached
    shares = {cohort: choosing.spread(reached) for cohort, reached in table.items()}
    return choosing.Known(units=options.users, num_classes=classes, shares=shares), options.unit


def _accuracy(text: str) -> tuple[int, float]:
    """`10=0.71` as ten units and that accuracy."""
    units, _, reached = text.partition("=")
    try:
        found = int(units), float(reached)
    except ValueError as error:
        raise ValueError(f"--accuracy {text!r} must look like 10=0.71, units and accuracy") from error
    if found[0] < 1:
        raise ValueError(f"--accuracy {text!r}: the number of units must be at least 1")
    if not 0 < found[1] < 1:
        raise ValueError(f"--accuracy {text!r}: the accuracy must be in (0, 1)")
    return found


def _measured(path: Path, device: str) -> tuple[choosing.Known, Unit]:
    """What a pilot of the experiment measures."""
    config = load_config(path)
    training()
    from fedproof.sweep import pilot

    with progress_bars() as progress:
        federation, shares = pilot(config, device=device, progress=progress)
    unit = Unit.INSTANCE if config.draws_instances else Unit.USER
    units = len(federation.labels) if unit is Unit.INSTANCE else federation.num_users
    return choosing.Known(units=units, num_classes=federation.num_classes, shares=shares), unit


def _document(option: choosing.Option) -> dict[str, Any]:
    return {
        "mechanism": describe(option.mechanism),
        "cohort": option.cohort,
        "models": option.models,
        "votes_needed": option.needed,
        "estimated_certified_accuracy": option.estimate,
        "at_most": option.noisy,
    }


def _show(found: Sequence[choosing.Option], question: choosing.Question, notes: Sequence[str]) -> None:
    print_table(
        f"{question.size} poisoned {question.threat.unit}s ({question.threat.relation})",
        ("mechanism", f"{question.threat.unit}s a model", "models", "votes needed", "certified, estimate"),
        [
            (
                _name(option),
                option.cohort,
                option.models,
                "more than all" if option.needed is None else f"{option.needed:.1%}",
                f"{'at most ' * option.noisy}{option.estimate:.1%}",
            )
            for option in found
        ],
    )
    say(*notes)


def _name(option: choosing.Option) -> str:
    mechanism = option.mechanism
    if mechanism.releases is Releases.GROUPS and mechanism.apart:
        return f"{mechanism.kind}, one vote each"
    if mechanism.releases is Releases.GROUPS:
        return f"{mechanism.kind}, {option.models} groups"
    noise = f", noise {mechanism.noise_multiplier:.4g}" if mechanism.noise_multiplier else ""
    return f"{mechanism.kind}{noise}"
