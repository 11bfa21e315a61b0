"""What all commands share: output for people and for machines, progress, sizes."""

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TaskID, TextColumn, TimeRemainingColumn
from rich.table import Table

from fedproof.statements import Statement, sentences

stdout = Console()
stderr = Console(stderr=True)

_MOST_SIZES = 100_000
_LARGE_DELTA = 0.1  # more than one in ten units may be given away altogether

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead, for programs.")]


# --- output -------------------------------------------------------------------------------------------------


def print_json(document: Any) -> None:
    """One JSON document on standard output; JSON has no infinity, null stands for it."""
    typer.echo(json.dumps(_finite(document), indent=2, allow_nan=False, default=float))


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(part) for key, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return None if isinstance(value, float) and math.isinf(value) else value


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
    """A table on standard output, under a title that may be wider."""
    say(title)
    table = Table(show_header=any(columns))
    for index, column in enumerate(columns):
        table.add_column(column, justify="left" if index == 0 else "right")
    for row in rows:
        table.add_row(*map(str, row))
    stdout.print(table)


def say(*texts: object) -> None:
    """Sentences on standard output, each on a line of its own and never broken by markup."""
    for text in texts:
        stdout.print(str(text), markup=False, highlight=False, soft_wrap=True)


def answer(document: Any, *texts: object, json: bool) -> None:
    """The document for programs, or what it says for people."""
    if json:
        print_json(document)
    else:
        say(*texts)


def median_and_largest(median: int | None, largest: int | None) -> str:
    """Two certified sizes; none where every input abstains."""
    return "none" if median is None else f"{median} / {largest}"


def doubt_delta(delta: float | None) -> None:
    """A sentence about a δ that protects nobody: who mistakes it for ε would not notice."""
    if delta is not None and delta >= _LARGE_DELTA:
        say(f"δ = {delta:g} is large: it should be well below 1 / number of units; was ε meant?")


def thinned(count: int) -> list[int]:
    """At most about a dozen of the sizes 0 … count - 1, the last among them."""
    step = max(1, (count + 10) // 12)
    return sorted({*range(0, count, step), count - 1})


def shown(document: Mapping[str, Any], **statements: Sequence[Statement]) -> dict[str, Any]:
    """A document for programs, with statements under their names: code, arguments and sentence."""
    return dict(document) | {name: [one.shown() for one in given] for name, given in statements.items()}


def say_soundness(unmet: Sequence[Statement], words: str | None = None) -> None:
    """Whether the certificate is a proof, and if not, which conditions are not met.

    `words` say what somebody's own training is taken to have done; None: it was executed here.
    """
    if unmet:
        say("heuristic, not a proof, because:", *(f"  - {sentence}" for sentence in sentences(unmet)))
    elif words is None:
        say("sound: every condition of the theorem is met")
    else:
        say(f"sound if your training did exactly this: {words}")


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


def need_checkout(package: str, command: str) -> None:
    """Make a package importable that lies beside `src` in a checkout and is not installed with fedproof."""
    for root in (Path(__file__).parents[3], Path.cwd()):
        if (root / "src" / "fedproof").is_dir() and (root / package / "__init__.py").is_file():
            if str(root) not in sys.path:
                sys.path.insert(0, str(root))
            return
    raise ValueError(f"fedproof {command} needs a checkout of the repository: run it in its root folder")


def check_written(read: Mapping[str, Path | None], **paths: Path | None) -> None:
    """Refuse files, by their options, that could not be written, before anything is computed for them.

    Nor may one take the place of what is `read`, of another one, or of what is no file: a device, a pipe.
    """
    taken = {path.resolve(): option for option, path in read.items() if path is not None}
    for option, path in paths.items():
        if path is None:
            continue
        if path.is_dir():
            raise ValueError(f"--{option} {path} is a folder, must be a file")
        if not path.parent.is_dir():
            raise ValueError(f"--{option} {path}: there is no folder {path.parent}")
        if not os.access(path.parent, os.W_OK):
            raise ValueError(f"--{option} {path}: the folder {path.parent} cannot be written to")
        if path.exists() and not path.is_file():
            raise ValueError(f"--{option} {path} is no regular file, must be one or a new name")
        same = taken.setdefault(path.resolve(), option)
        if same != option:
            raise ValueError(f"--{option} {path} is the file of --{same}, must be another one")


def check_folder(**paths: Path | None) -> None:
    """Refuse folders, by their options, that could not be made or written to, before anything is computed."""
    for option, path in paths.items():
        if path is None:
            continue
        nearest = next(one for one in (path, *path.absolute().parents) if one.exists())
        if not nearest.is_dir():
            raise ValueError(f"--{option} {path}: {nearest} is a file, must be a folder")
        if not os.access(nearest, os.W_OK):
            raise ValueError(f"--{option} {path}: {nearest} cannot be written to")


def looked_at(curve: Mapping[str, float], max_size: int) -> list[tuple[int, float]]:
    """Some of a curve's sizes and their shares; none is claimed beyond `max_size`, where nobody looked.

    >>> looked_at({"0": 0.9, "1": 0.4, "2": 0.0}, 1)
    [(0, 0.9), (1, 0.4)]
    """
    return [(size, curve[str(size)]) for size in thinned(min(len(curve), max_size + 1))]


def say_where_it_ended(largest: int | None, max_size: int, option: str) -> None:
    """A sentence where inputs are certified for the largest size that was looked at."""
    if largest == max_size:
        say(f"no size above {max_size} was tried ({option}): inputs certified for it may withstand more")


def sizes_of(text: str, option: str = "--sizes") -> list[int]:
    """`0:10` as the sizes 0, 1, …, 10, `7` as that one size, and `1,5,10:12` as all of them."""
    found: set[int] = set()
    for part in text.split(","):
        first, colon, last = part.partition(":")
        try:
            start = int(first)
            stop = int(last) if colon else start
        except ValueError as error:
            raise ValueError(f"{option} {text!r} must be a number or look like 0:10 or 1,5,20") from error
        if not 0 <= start <= stop:
            raise ValueError(f"{option} {text!r} must count up from 0 or more")
        if stop - start >= _MOST_SIZES:
            raise ValueError(f"{option} {text!r} must be at most {_MOST_SIZES} numbers")
        found.update(range(start, stop + 1))
    return sorted(found)
