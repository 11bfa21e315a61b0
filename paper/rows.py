"""Measured rows, and the file of JSON lines they are appended to one by one.

Each row is on the disk as soon as it is measured, so that an interrupted reproduction goes on.
"""

import json
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from copy import copy
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from pydantic import ConfigDict, TypeAdapter, ValidationError

from fedproof.files import replace_file
from paper.results import AttackCell, Attacked, Result, Trained
from paper.study import Point

_Kind = TypeVar("_Kind")


@dataclass(frozen=True, kw_only=True)
class MeasuredRow:
    """One measured point.

    Attributes:
        key: `study/panel/values`, by which it is found again.
        settings_sha256: of all that the files said about the point.
        values: of the varied keys.
        replicas, rounds: of the training; None where nothing was trained.
        jobs: points that were measured side by side.
        seconds: that this one took.
        wall: what passed since the row before: all rows together took all the time.
        commit: of the checkout it was measured in, see `provenance.commit`; None where nobody knows.
        decided: hashes of all that decided it, see `provenance.decided_by`; empty in older rows.
        torch: its version; None in older rows.
        data: hash of what it was trained on and judged by, see `provenance.data_of`; None in older rows, and
            where nothing is trained.
    """

    __pydantic_config__ = ConfigDict(extra="forbid")

    key: str
    settings_sha256: str
    values: dict[str, str]
    replicas: int | None
    rounds: int | None
    version: str
    hardware: str
    jobs: int
    seconds: float
    wall: float
    result: Result
    commit: str | None = None
    decided: dict[str, str] = field(default_factory=dict)
    torch: str | None = None
    data: str | None = None

    def __post_init__(self) -> None:
        if not (self.seconds >= 0 and self.wall >= 0 and self.jobs >= 1):
            raise ValueError(f"seconds, wall and jobs of {self.key} must not be negative")

    @property
    def paper_epsilon(self) -> float | None:
        """ε of one model by the paper's accounting; None without noise."""
        return self.result.epsilon.get("paper") if isinstance(self.result, Trained) else None

    @property
    def attacks(self) -> tuple[AttackCell, ...]:
        """Its attacks, if that is what was measured."""
        return self.result.attacks if isinstance(self.result, Attacked) else ()


def panel_of(row: MeasuredRow) -> str:
    """`study/panel` of a row."""
    return "/".join(row.key.split("/")[:2])


def of_kind(rows: Iterable[MeasuredRow], kind: type[_Kind]) -> Iterator[tuple[MeasuredRow, _Kind]]:
    """The rows whose result is of a kind, each with it."""
    return ((row, row.result) for row in rows if isinstance(row.result, kind))


def device_seconds(rows: Iterable[MeasuredRow]) -> float:
    """Seconds of the device that the rows took: of what ran beside others, its part of the wall clock.

    Exact where all rows of a command are there. One that was measured again has taken along what had passed
    since the row before it, be it that row's work or a neighbour's.
    """
    return sum(row.wall for row in rows)


def shared_seconds(rows: Iterable[MeasuredRow]) -> float:
    """Each row's seconds over the processes that ran beside it, of what was trained once, once.

    Too many where two commands ran at the same time: processes waited for more neighbours than they knew.
    """
    return sum({row.settings_sha256: row.seconds / row.jobs for row in rows}.values())


class Rows:
    """The rows of a file by their key; a row counts if its settings are those of the point asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, MeasuredRow] = {row.key: row for row in _read(path)}

    def __iter__(self) -> Iterator[MeasuredRow]:
        return iter(self._rows.values())

    def find(self, point: Point) -> MeasuredRow | None:
        """The row of a point, if it was measured with the same settings."""
        row = self._rows.get(point.key)
        if row is None or row.settings_sha256 != point.settings_sha256 or row.values != point.values:
            return None
        asked = None if point.config is None else point.config.ensemble.replicas
        return row if row.replicas == asked else None

    def of_points(self, keys: Collection[str]) -> "Rows":
        """Those of the points that are asked for; nothing else may decide anything."""
        found = copy(self)
        found._rows = {key: row for key, row in self._rows.items() if key in keys}
        return found

    def like(self, point: Point) -> MeasuredRow | None:
        """A row of any key that was measured with the settings of a point."""
        found = (row for row in self._rows.values() if row.settings_sha256 == point.settings_sha256)
        return next(found, None)

    def under(self, prefix: str) -> list[MeasuredRow]:
        """All rows whose key is `prefix` or begins with it and a slash, in the order of the file."""
        return [row for key, row in self._rows.items() if key == prefix or key.startswith(f"{prefix}/")]

    def arrange(self, keys: Sequence[str]) -> None:
        """Write the file anew: each row once, in the order of `keys`, any others behind them."""
        order = dict.fromkeys([*(key for key in keys if key in self._rows), *self._rows])
        self._rows = {key: self._rows[key] for key in order}
        if self._rows:
            replace_file(self.path, "".join(map(line_of, self._rows.values())).encode())

    def add(self, row: MeasuredRow) -> None:
        """Append a row; it is on the disk when this returns."""
        self._rows[row.key] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(line_of(row))
            file.flush()
            os.fsync(file.fileno())


_CODEC = TypeAdapter(MeasuredRow)


def line_of(row: MeasuredRow) -> str:
    """A row as a line of the file; what has a default is written only where it is something else."""
    document = _CODEC.dump_python(row, mode="json", by_alias=True, exclude_defaults=True)
    return json.dumps(document, sort_keys=True) + "\n"


def _read(path: Path) -> Iterator[MeasuredRow]:
    if not path.exists():
        return
    lines = path.read_bytes().split(b"\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                yield _CODEC.validate_python(json.loads(line))
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(map(str, first["loc"]))
            raise ValueError(f"{path}:{number}: not a row: {where} {first['msg']}") from error
        except ValueError as error:
            if number < len(lines):  # only the last line can be half written
                raise ValueError(f"{path}:{number}: not a row: {error}") from error
