"""Measured rows in a file of JSON lines: appended one by one, so that an interrupted reproduction goes on."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from fedproof.files import replace_file
from paper.study import Point

Row = dict[str, Any]


def device_seconds(rows: Iterable[Row]) -> float:
    """Seconds of the device that the rows took: of what ran beside others, its part of the wall clock."""
    return sum(float(row["wall"]) for row in rows)


class Rows:
    """The rows of a file by their key; a row counts if its settings are those of the point asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, Row] = {row["key"]: row for row in _read(path)}

    def find(self, point: Point) -> Row | None:
        """The row of a point, if it was measured with the same settings."""
        row = self._rows.get(point.key)
        return row if row and row["settings_sha256"] == point.settings_sha256 else None

    def under(self, prefix: str) -> list[Row]:
        """All rows whose key is `prefix` or begins with it and a slash, in the order of the file."""
        return [row for key, row in self._rows.items() if key == prefix or key.startswith(f"{prefix}/")]

    def arrange(self, keys: Sequence[str]) -> None:
        """Write the file anew: each row once, in the order of `keys`, any others behind them."""
        order = dict.fromkeys([*(key for key in keys if key in self._rows), *self._rows])
        self._rows = {key: self._rows[key] for key in order}
        if self._rows:
            replace_file(self.path, "".join(map(_line, self._rows.values())).encode())

    def add(self, row: Row) -> None:
        """Append a row; it is on the disk when this returns."""
        self._rows[row["key"]] = row
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line(row))
            file.flush()
            os.fsync(file.fileno())


def _line(row: Row) -> str:
    return json.dumps(row, sort_keys=True) + "\n"


def _read(path: Path) -> Iterator[Row]:
    if not path.exists():
        return
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                yield json.loads(line)
        except json.JSONDecodeError as error:
            if number < len(lines):  # only the last line can be half written
                raise ValueError(f"{path}:{number}: not a row: {error}") from error
