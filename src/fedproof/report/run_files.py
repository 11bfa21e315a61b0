"""Tables and scores of a run's directory, read as whatever was written there: what is damaged is named."""

import csv
import io
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.certificates import Certificate, Method
from fedproof.certificates.scores import read_array
from fedproof.files import read_text
from fedproof.threat import Relation

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


def metrics_in(path: Path) -> tuple[Row, ...]:
    """The rows of the certified-accuracy curves; ValueError names the file and the first that is none."""
    rows = _rows(path)
    for number, row in enumerate(rows, start=1):
        try:
            chance, share = row["failure_probability"], float(row["certified_accuracy"])
            named = row["method"] in list(Method) and row["relation"] in ("", *Relation)
            if not (named and row["size"].isdecimal() and 0 <= share <= 1 and 0 <= float(chance or 0) < 1):
                raise ValueError("outside what there is")
        except (KeyError, ValueError) as error:
            raise ValueError(
                f"{path}: row {number} must have method, relation, failure_probability, size and "
                "certified_accuracy, as fedproof run writes them"
            ) from error
    return rows


def scores_in(folder: Path, certificate: Certificate) -> NDArray[np.floating] | None:
    """The scores beside a certificate, which must be of its classes; None if they are not there."""
    path = folder / "scores.npy"
    if not path.is_file():
        return None
    scores = read_array(path)
    classes = certificate.num_classes
    if scores.dtype.kind != "f" or scores.ndim != 3 or not scores.size or scores.shape[2] != classes:
        raise ValueError(
            f"{path}: holds {scores.dtype} {scores.shape}, must hold confidences "
            f"(replicas, inputs, {classes})"
        )
    return scores
