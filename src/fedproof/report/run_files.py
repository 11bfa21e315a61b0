"""Tables of a run's directory, read as whatever was written there: what is damaged is named."""

import csv
import io
from pathlib import Path

from fedproof import check
from fedproof.files import read_text

Row = dict[str, str]


def _rows(path: Path) -> tuple[Row, ...]:
    if not path.is_file():
        return ()
    try:
        rows = tuple(csv.DictReader(io.StringIO(read_text(path), newline="")))
    except (UnicodeDecodeError, csv.Error) as error:
        raise ValueError(f"{path}: not a CSV file: {check.one_line(error)}") from error
    for number, row in enumerate(rows, start=1):
        if None in row or None in row.values():
            raise ValueError(f"{path}: row {number} must have as many columns as the first line names")
    return rows


def rounds_in(path: Path) -> tuple[Row, ...]:
    """Rows of numbers, round by round."""
    rows = _rows(path)
    for number, row in enumerate(rows, start=1):
        for name, value in row.items():
            try:
                float(value)
            except ValueError as error:
                raise ValueError(
                    f"{path}: row {number}: {name[:40]} = {value[:40]!r} must be a number"
                ) from error
    return rows
