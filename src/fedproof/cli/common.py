"""What all commands share: output for people and for machines, progress, and the options of a mechanism."""

import inspect
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
from enum import StrEnum
from functools import wraps
from typing import Annotated, Any, get_type_hints

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
RelationOption = Annotated[Relation, typer.Option(help="Adversaries join, or replace honest units.")]


# --- options that several commands have ---------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """Who takes part in how many rounds, and with how much noise."""

    noise_multiplier: Annotated[
        float | None, typer.Option(help="Noise standard deviation over the clip norm, on the sum.")
    ] = None
    sampling: Annotated[SamplingKind, typer.Option(help="How members of a round are drawn.")] = (
        SamplingKind.POISSON
    )
    sampling_probability: Annotated[
        float | None, typer.Option(help="Chance of one unit to be drawn; at instance level, into a batch.")
    ] = None
    cohort: Annotated[int | None, typer.Option(help="Members of a round, out of --users.")] = None
    users: Annotated[int | None, typer.Option(help="Number of users.")] = None
    rounds: Annotated[int, typer.Option(help="Rounds of training.")] = 1
    steps: Annotated[int, typer.Option(help="Instance level: local steps in a round.")] = 1
    unit: Annotated[Unit, typer.Option(help="What one unit is.")] = Unit.USER

    def drawn(self) -> Sampling:
        """The sampling; ValueError names the option that is missing."""
        return sampling_of(self.sampling, self.sampling_probability, self.cohort, self.users)


@dataclass(frozen=True, kw_only=True)
class MechanismOptions(SamplingOptions):
    """A whole mechanism with noise."""

    per_layer: Annotated[
        int | None, typer.Option(help="Layers, if each is clipped by itself: costs the square root of them.")
    ] = None
    batch_probability: Annotated[
        float | None,
        typer.Option(
            help="InsDP-FedSGD: chance of an instance to enter its user's batch; users by --cohort."
        ),
    ] = None


def unfolded(command: Callable[..., None]) -> Callable[..., None]:
    """The command with the fields of its parameter `options`, a dataclass, as options of their own.

    Typer reads options from a signature alone, so the signature is what changes.
    """
    signature, hints = inspect.signature(command), get_type_hints(command, include_extras=True)
    kind = hints.pop("options")
    inner = get_type_hints(kind, include_extras=True)
    own = [
        inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default)
        for field in fields(kind)
    ]
    kept = [
        given.replace(kind=inspect.Parameter.KEYWORD_ONLY)
        for name, given in signature.parameters.items()
        if name != "options"
    ]

    @wraps(command)
    def called(**values: Any) -> None:
        command(options=kind(**{field.name: values.pop(field.name) for field in fields(kind)}), **values)

    called.__signature__ = signature.replace(parameters=[*kept, *own])  # type: ignore[attr-defined]
    called.__annotations__ = hints | inner
    return called


# --- output -------------------------------------------------------------------------------------------------


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


def mechanism_of(options: MechanismOptions) -> UserFedAvg | InstanceFedAvg | InstanceFedSGD:
    """The mechanism that the options describe; ValueError names the option that is wrong or missing."""
    noise, probability = options.noise_multiplier, options.sampling_probability
    if noise is None:
        raise ValueError("--noise-multiplier is missing")
    check.positive(**{"--noise-multiplier": noise})
    check.count(**{"--rounds": options.rounds, "--steps": options.steps})
    if options.unit == Unit.INSTANCE and options.batch_probability is not None:
        if options.cohort is None or options.users is None:
            raise ValueError("--batch-probability (InsDP-FedSGD) needs --cohort and --users")
        return InstanceFedSGD(
            rounds=options.rounds,
            noise_multiplier=noise,
            sampling=FixedSize(cohort=options.cohort, users=options.users),
            batch_probability=options.batch_probability,
        )
    if options.unit == Unit.INSTANCE:
        if probability is None:
            raise ValueError("--unit instance needs --sampling-probability, the chance to enter a batch")
        check.probability(**{"--sampling-probability": probability})
        return InstanceFedAvg(
            rounds=options.rounds,
            local_steps=options.steps,
            noise_multiplier=noise,
            batch_probability=probability,
        )
    layers = options.per_layer
    clipping: Clipping = Flat() if layers is None else PerLayer(num_layers=layers)
    return UserFedAvg(
        rounds=options.rounds, noise_multiplier=noise, sampling=options.drawn(), clipping=clipping
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
