"""What all commands share: output for people and for machines, progress, and the options of a mechanism."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedproof import check
from fedproof.protocol import (
    Clipping,
    Everyone,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    PerLayer,
    Poisson,
    Sampling,
    UserFedAvg,
)
from fedproof.threat import Relation, Unit

stdout = Console()
stderr = Console(stderr=True)


class SamplingKind(StrEnum):
    """How members of a round are drawn."""

    POISSON = "poisson"
    FIXED = "fixed"
    NONE = "none"


Json = Annotated[bool, typer.Option("--json", help="One JSON document on standard output.")]
NoiseMultiplier = Annotated[
    float | None, typer.Option(help="Noise standard deviation over the clip norm, on the sum.")
]
SamplingOption = Annotated[SamplingKind, typer.Option(help="How members of a round are drawn.")]
SamplingProbability = Annotated[
    float | None, typer.Option(help="Chance of one unit to be drawn; at instance level, into a batch.")
]
Cohort = Annotated[int | None, typer.Option(help="Members of a round, out of --users.")]
Users = Annotated[int | None, typer.Option(help="Number of users.")]
Rounds = Annotated[int, typer.Option(help="Rounds of training.")]
Steps = Annotated[int, typer.Option(help="Instance level: local steps in a round.")]
PerLayerOption = Annotated[
    int | None, typer.Option(help="Layers, if each is clipped by itself: costs the square root of them.")
]
UnitOption = Annotated[Unit, typer.Option(help="What one unit is.")]
RelationOption = Annotated[Relation, typer.Option(help="Adversaries join, or replace honest units.")]
BatchProbability = Annotated[
    float | None,
    typer.Option(help="InsDP-FedSGD: chance of an instance to enter its user's batch; users by --cohort."),
]


def print_json(document: Any) -> None:
    """One JSON document on standard output."""
    typer.echo(json.dumps(document, indent=2, allow_nan=False, default=float))


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output."""
    table = Table(title=title, title_justify="left", show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    stdout.print(table)


def say(text: str) -> None:
    """A sentence on standard output, never broken by markup."""
    stdout.print(text, markup=False, highlight=False, soft_wrap=True)


@contextmanager
def progress_bars() -> Iterator[Callable[[str, int, int], None]]:
    """Bars with rate and time left on a terminal; nothing elsewhere."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[rate]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=stderr, disable=not stderr.is_terminal) as progress:
        tasks: dict[str, TaskID] = {}

        def update(stage: str, done: int, total: int) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total, rate="")
            speed = progress.tasks[tasks[stage]].speed
            rate = f"{speed:.0f}/s" if speed else ""
            progress.update(tasks[stage], completed=done, total=total, rate=rate)

        yield update


def sampling_of(
    kind: SamplingKind, probability: float | None, cohort: int | None, users: int | None
) -> Sampling:
    """The sampling that the options describe; ValueError names the option that is missing."""
    match kind:
        case SamplingKind.NONE:
            return Everyone()
        case SamplingKind.FIXED:
            if cohort is None or users is None:
                raise ValueError("--sampling fixed needs --cohort and --users")
            return FixedSize(cohort=cohort, users=users)
        case SamplingKind.POISSON:
            if probability is not None:
                check.probability(**{"--sampling-probability": probability})
                return Poisson(probability=probability)
            if cohort is None or users is None:
                raise ValueError("--sampling poisson needs --sampling-probability, or --cohort and --users")
            return Poisson(probability=FixedSize(cohort=cohort, users=users).probability)


def mechanism_of(
    *,
    noise_multiplier: float | None,
    sampling: SamplingKind,
    sampling_probability: float | None,
    cohort: int | None,
    users: int | None,
    rounds: int,
    steps: int,
    per_layer: int | None,
    unit: Unit,
    batch_probability: float | None,
) -> UserFedAvg | InstanceFedAvg | InstanceFedSGD:
    """The mechanism that the options describe; ValueError names the option that is wrong or missing."""
    if noise_multiplier is None:
        raise ValueError("--noise-multiplier is missing")
    check.positive(**{"--noise-multiplier": noise_multiplier})
    check.count(**{"--rounds": rounds, "--steps": steps})
    if unit == Unit.INSTANCE and batch_probability is not None:
        if cohort is None or users is None:
            raise ValueError("--batch-probability (InsDP-FedSGD) needs --cohort and --users")
        return InstanceFedSGD(
            rounds=rounds,
            noise_multiplier=noise_multiplier,
            sampling=FixedSize(cohort=cohort, users=users),
            batch_probability=batch_probability,
        )
    if unit == Unit.INSTANCE:
        if sampling_probability is None:
            raise ValueError("--unit instance needs --sampling-probability, the chance to enter a batch")
        check.probability(**{"--sampling-probability": sampling_probability})
        return InstanceFedAvg(
            rounds=rounds,
            local_steps=steps,
            noise_multiplier=noise_multiplier,
            batch_probability=sampling_probability,
        )
    clipping: Clipping = Flat() if per_layer is None else PerLayer(num_layers=per_layer)
    return UserFedAvg(
        rounds=rounds,
        noise_multiplier=noise_multiplier,
        sampling=sampling_of(sampling, sampling_probability, cohort, users),
        clipping=clipping,
    )


def sizes_of(text: str) -> list[int]:
    """`0:10` as the sizes 0, 1, …, 10, `7` as that one size, and `1,5,10:12` as all of them."""
    found: set[int] = set()
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            start = int(first)
            stop = int(last) if colon else start
        except ValueError as error:
            raise ValueError(f"--sizes {text!r} must be a number or look like 0:10") from error
        if not 0 <= start <= stop:
            raise ValueError(f"--sizes {text!r} must count up from 0 or more")
        found.update(range(start, stop + 1))
    return sorted(found)
