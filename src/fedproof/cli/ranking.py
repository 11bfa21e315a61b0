"""`fedproof plan --find mechanism`: which mechanism is expected to certify most."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproof import check
from fedproof.certificates import choosing
from fedproof.cli.common import print_json, print_table, progress_bars, say
from fedproof.cli.mechanism import SamplingOptions
from fedproof.config import load_config
from fedproof.mechanisms import Releases
from fedproof.mechanisms.codec import describe
from fedproof.threat import Relation, ThreatModel, Unit

_SHOWN = 8  # options of a ranking


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """The options of the question itself."""

    size: int
    relation: Relation
    epsilon: float | None
    delta: float
    replicas: int
    classes: int


def choose(
    options: SamplingOptions,
    wanted: Wanted,
    accuracies: Sequence[str],
    pilot: Path | None,
    *,
    device: str,
    json: bool,
) -> None:
    """Rank the mechanisms and print them."""
    known, unit = _given(options, accuracies, wanted) if pilot is None else _measured(pilot, device)
    question = choosing.Question(
        size=wanted.size,
        threat=ThreatModel(unit=unit, relation=wanted.relation),
        replicas=wanted.replicas,
        epsilon=wanted.epsilon,
        delta=wanted.delta,
        rounds=options.rounds,
    )
    found = choosing.choose(known, question)
    notes = [choosing.ASSUMPTION]
    if pilot is None:
        notes.append(choosing.SPREAD.format(correlation=choosing.CORRELATION))
    if wanted.epsilon is not None:
        notes.append(choosing.NOISE_IS_FREE)
        notes += [choosing.ONE_ROUND] * any(o.mechanism.releases is Releases.MODEL for o in found)
    if json:
        print_json({"options": [_document(option) for option in found], "assumptions": notes})
    else:
        _show(found[:_SHOWN], question, notes)


def _given(
    options: SamplingOptions, accuracies: Sequence[str], wanted: Wanted
) -> tuple[choosing.Known, Unit]:
    assert options.users is not None, "checked by the table of options"
    check.count(**{"--users": options.users, "--classes": wanted.classes})
    table: dict[int, float] = {}
    for text in accuracies:
        units, reached = _accuracy(text)
        if units > options.users:
            raise ValueError(f"--accuracy {text}: {units} must be at most --users {options.users}")
        if units in table:
            raise ValueError(f"--accuracy {text}: there is another one for {units}, give one for each number")
        table[units] = reached
    shares = {cohort: choosing.spread(reached) for cohort, reached in table.items()}
    known = choosing.Known(units=options.users, num_classes=wanted.classes, shares=shares)
    return known, options.unit


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
    from fedproof.cli.training import training

    config = load_config(path)
    training()
    from fedproof.pilot import pilot

    with progress_bars() as progress:
        federation, shares = pilot(config, device=device, progress=progress)
    unit = Unit.INSTANCE if config.draws_instances else Unit.USER
    units = len(federation.labels) if unit is Unit.INSTANCE else federation.num_users
    known = choosing.Known(units=units, num_classes=federation.num_classes, shares=shares)
    return known, unit


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
    for note in notes:
        say(note)


def _name(option: choosing.Option) -> str:
    mechanism = option.mechanism
    if mechanism.releases is Releases.GROUPS and mechanism.apart:
        return f"{mechanism.kind}, one vote each"
    if mechanism.releases is Releases.GROUPS:
        return f"{mechanism.kind}, {option.models} groups"
    noise = f", noise {mechanism.noise_multiplier:.4g}" if mechanism.noise_multiplier else ""
    return f"{mechanism.kind}{noise}"
