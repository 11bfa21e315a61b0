"""What a report is made from: the files of a run directory, read once."""

import csv
import statistics
from dataclasses import dataclass
from pathlib import Path

from fedproof import data
from fedproof.certificates import Certificate, loads
from fedproof.config import Config
from fedproof.federation import Federation
from fedproof.folder import ROUNDS, read_config
from fedproof.summary import RunSummary, read_summary

Row = dict[str, str]


@dataclass(frozen=True, kw_only=True)
class RunData:
    """A finished run: `certificate` is None where nothing is certified, `federation` where it is not here.

    Attributes:
        metrics: rows of `metrics.csv`, the certified-accuracy curves.
        rounds: rows of `private/rounds.csv`, which ε does not cover; empty if it is not there.
    """

    folder: Path
    config: Config
    summary: RunSummary
    certificate: Certificate | None
    metrics: tuple[Row, ...]
    rounds: tuple[Row, ...]
    federation: Federation | None

    @property
    def class_names(self) -> tuple[str, ...]:
        """Names of the classes: those of the data, else their numbers."""
        if self.federation is not None:
            return self.federation.class_names
        if self.summary.class_names is not None:
            return self.summary.class_names
        known = self.config.data.classes
        count = self.certificate.num_classes if self.certificate else 0
        return tuple(map(str, known if known is not None else range(count)))

    @property
    def unit(self) -> str:
        """What one poisoned unit is."""
        return self.config.threat.unit.value


def read_run(folder: Path, federation: Federation | None = None, *, pictures: bool = True) -> RunData:
    """The files of a finished run.

    Args:
        folder: its directory.
        federation: the data it was trained on, if they are loaded already; else they are loaded if they are
            there. A function of the user's (`module:function`) is not called: looking at a run runs no code.
            Inputs are wanted as people see them: encoded ones are loaded again without their encoder.
        pictures: whether the data are wanted at all.

    Raises:
        ValueError: not the directory of a finished run; the message names the file.
    """
    summary = read_summary(folder)
    config = read_config(folder)
    path = folder / "certificate.json"
    certificate = read_certificate(path) if path.is_file() else None
    if pictures and (federation is None or federation.encoded):
        federation = _load(config) or federation
    return RunData(
        folder=folder,
        config=config,
        summary=summary,
        certificate=certificate,
        metrics=_rows(folder / "metrics.csv"),
        rounds=_rows(folder / ROUNDS) or _rows(folder / "rounds.csv"),  # where earlier releases put it
        federation=_matching(federation, certificate),
    )


def read_certificate(path: Path) -> Certificate:
    """The certificate of a file; ValueError that names the file if it is none."""
    try:
        return loads(path.read_bytes())
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error


def _rows(path: Path) -> tuple[Row, ...]:
    if not path.is_file():
        return ()
    with path.open(newline="", encoding="utf-8") as file:
        return tuple(csv.DictReader(file))


def _load(config: Config) -> Federation | None:
    if ":" in config.data.name:
        return None
    try:
        return data.load(**config.data.model_dump(exclude={"encoder", "project", "projection", "features"}))
    except (ValueError, OSError, ImportError):  # a report is worth having without pictures
        return None


def _matching(federation: Federation | None, certificate: Certificate | None) -> Federation | None:
    """The federation if its test inputs are those of the certificate."""
    if federation is None or certificate is None or certificate.labels is None:
        return federation
    same = tuple(federation.test_labels.tolist()) == certificate.labels
    return federation if same and federation.num_classes == certificate.num_classes else None


# --- class by class -----------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class ClassRow:
    """What is certified for the inputs of one class; `median` is None if all are abstained on."""

    name: str
    inputs: int
    accuracy: float
    certified: float
    median: int | None
    abstained: int


def class_rows(certificate: Certificate, names: tuple[str, ...], size: int) -> list[ClassRow]:
    """One row for each class that occurs among the labels; `certified` is the share certified for `size`."""
    labels = certificate.labels or ()
    members: dict[int, list[int]] = {}
    for index, label in enumerate(labels):
        members.setdefault(label, []).append(index)
    rows = []
    for label, inputs in sorted(members.items()):
        sizes = [certificate.certified_size[index] for index in inputs]
        right = [certificate.prediction[index] == label for index in inputs]
        kept = [known for known in sizes if known is not None]
        safe = [ok and known is not None and known >= size for ok, known in zip(right, sizes, strict=True)]
        rows.append(
            ClassRow(
                name=names[label],
                inputs=len(inputs),
                accuracy=sum(right) / len(inputs),
                certified=sum(safe) / len(inputs),
                median=statistics.median_low(kept) if kept else None,
                abstained=len(inputs) - len(kept),
            )
        )
    return rows
