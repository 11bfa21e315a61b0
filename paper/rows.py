"""Measured rows: what each kind holds, and the file of JSON lines they are appended to one by one.

Each row is on the disk as soon as it is measured, so that an interrupted reproduction goes on.
"""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, TypeVar

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from fedproof.files import replace_file
from paper.study import Point

_Kind = TypeVar("_Kind")
_EXACT = ConfigDict(extra="forbid")  # rows are told apart by their keys


# --- what is measured ---------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Trained:
    """What every training leaves; final kinds say what else was asked of it.

    Attributes:
        accuracy: of one replica, on average.
        epsilon: of one model, by accountant; empty without noise.
        ensemble_epsilon: of all replicas together.
        delta: of both; None without noise.
    """

    __pydantic_config__ = _EXACT

    accuracy: float
    epsilon: dict[str, float] = field(default_factory=dict)
    ensemble_epsilon: dict[str, float] = field(default_factory=dict)
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class CertifiedCurve:
    """Certified accuracy over k, one way to certify; without a failure probability means count as exact."""

    __pydantic_config__ = _EXACT

    method: str
    relation: str | None
    failure_probability: float | None
    accuracy: tuple[float, ...]


@dataclass(frozen=True, kw_only=True)
class Clean(Trained):
    """An ensemble without attack.

    Attributes:
        accuracy_std: between the replicas.
        ensemble_accuracy: of their common prediction.
        curves: none where accuracy alone was asked for, or without noise.
        paper_largest: the largest real K of the paper's formula; None where nothing is certified.
        certify_seconds: likewise.
    """

    accuracy_std: float
    ensemble_accuracy: float
    curves: tuple[CertifiedCurve, ...] = ()
    paper_largest: float | None = None
    certify_seconds: float | None = None

    def curve(self, method: str, relation: str | None, sure: bool) -> tuple[float, ...]:
        """Certified accuracy over k, with confidence if `sure`; empty where it was not computed."""
        for found in self.curves:
            same = found.method == method and found.relation == relation
            if same and (found.failure_probability is not None) == sure:
                return found.accuracy
        return ()


@dataclass(frozen=True, kw_only=True)
class AttackCell:
    """One attack beside the bounds, as `fedproof.attacks.Row` describes it.

    Attributes:
        replica_accuracy, clean_success, success: missing where they were not measured.
        paper_lower_exact: the paper's lower bound as it draws it: from the mean, without confidence; missing
            without noise.
    """

    __pydantic_config__ = _EXACT

    attack: str
    adversaries: int
    replicas: int
    clean_replica_accuracy: float
    clean_accuracy: float
    accuracy: float
    clean_cost: float
    cost: float
    clipped_share: float
    certified_accuracy: float | None
    certified_inputs: int | None
    kept_on_certified: float | None
    holds_on_certified: bool | None
    certified_lower: float | None
    certified_upper: float | None
    paper_lower: float | None
    paper_upper: float | None
    holds_on_cost: bool | None
    sound: bool
    reasons: tuple[str, ...]
    replica_accuracy: float | None = None
    clean_success: float | None = None
    success: float | None = None
    paper_lower_exact: float | None = None


@dataclass(frozen=True, kw_only=True)
class Attacked(Trained):
    """Attacked ensembles; `cost_bound` is the largest cost there is."""

    attacks: tuple[AttackCell, ...]
    cost_bound: float

    def only(self, names: Sequence[str]) -> "Attacked":
        """Without the attacks that are not named."""
        return replace(self, attacks=tuple(one for one in self.attacks if one.attack in names))


@dataclass(frozen=True, kw_only=True)
class Needed(Trained):
    """Units it takes to divide the attacker's `cost` by each of `taus`, None: more than searched."""

    accuracy_std: float
    ensemble_accuracy: float
    cost: float
    taus: tuple[float, ...]
    paper: tuple[float, ...]
    tight: tuple[int | float | None, ...]


@dataclass(frozen=True, kw_only=True)
class RuleCurve:
    """Share of the test inputs that are right and certified, by one rule against one relation.

    Attributes:
        rule: of the vote; None where one model is released, and nothing is voted on.
        relation: what poisoned units do.
        accuracy: at each of the sizes.
        half: the largest size, up to the largest that was looked at, at which it is at least a half.
        reasons: why it is only heuristic; none where it is sound.
    """

    __pydantic_config__ = _EXACT

    rule: str | None
    relation: str
    accuracy: tuple[float, ...]
    half: int
    reasons: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Recorded(Trained):
    """One line of the records: certified accuracy at `sizes` by every rule, from the same scores.

    Attributes:
        inputs: number of test inputs, all of them.
        unit, units: what may be poisoned, and how many there are.
        announced: the rule that was chosen beforehand; None where there is none.
        failure_probability: of each input, or of all together if `simultaneous`; None: with certainty.
        most: the largest size that was looked at.
    """

    inputs: int
    unit: str
    units: int
    announced: str | None
    sizes: tuple[int, ...]
    most: int
    curves: tuple[RuleCurve, ...]
    failure_probability: float | None = None
    simultaneous: bool = False

    def curve(self, rule: str | None, relation: str) -> RuleCurve:
        """The curve of a rule against a relation."""
        return next(one for one in self.curves if (one.rule, one.relation) == (rule, relation))


@dataclass(frozen=True, kw_only=True)
class RunTime:
    """Seconds of a round of one replica, by the name of its training, and of a certificate."""

    __pydantic_config__ = _EXACT

    seconds_per_round: dict[str, float]
    certify_seconds: float


@dataclass(frozen=True, kw_only=True)
class BudgetCell:
    """One ε of the paper: `published`, ours by the same accounting, and ours by loss distributions."""

    __pydantic_config__ = _EXACT

    experiment: str
    sigma: float
    rounds: int
    published: float
    paper: float
    pld: float


@dataclass(frozen=True, kw_only=True)
class Budgets:
    """Every ε that the paper prints."""

    __pydantic_config__ = _EXACT

    rows: tuple[BudgetCell, ...]

    @property
    def equal(self) -> int:
        """How many of them are ours to four decimals."""
        return sum(one.paper == one.published for one in self.rows)


@dataclass(frozen=True, kw_only=True)
class DopamineCurve:
    """ε after each of `rounds` by two accountings; `pld` is sound and known after the last round alone."""

    __pydantic_config__ = ConfigDict(extra="forbid", populate_by_name=True)

    cohort: int
    rounds: tuple[int, ...]
    own: Annotated[tuple[float, ...], Field(alias="InsDP-FedSGD")]
    dopamine: Annotated[tuple[float, ...], Field(alias="Dopamine")]
    pld: tuple[float, ...]

    @property
    def named(self) -> dict[str, tuple[float, ...]]:
        """Both accountings by their names in the paper."""
        return {"InsDP-FedSGD": self.own, "Dopamine": self.dopamine}


@dataclass(frozen=True, kw_only=True)
class Dopamine:
    """InsDP-FedSGD beside Dopamine, one curve for each size of the cohort."""

    __pydantic_config__ = _EXACT

    curves: tuple[DopamineCurve, ...]


Result = Clean | Attacked | Needed | Recorded | RunTime | Budgets | Dopamine


# --- the rows and their file --------------------------------------------------------------------------------


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
    """

    __pydantic_config__ = _EXACT

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

    @property
    def paper_epsilon(self) -> float | None:
        """ε of one model by the paper's accounting; None without noise."""
        return self.result.epsilon.get("paper") if isinstance(self.result, Trained) else None

    @property
    def attacks(self) -> tuple[AttackCell, ...]:
        """Its attacks, if that is what was measured."""
        return self.result.attacks if isinstance(self.result, Attacked) else ()


def of_kind(rows: Iterable[MeasuredRow], kind: type[_Kind]) -> Iterator[tuple[MeasuredRow, _Kind]]:
    """The rows whose result is of a kind, each with it."""
    return ((row, row.result) for row in rows if isinstance(row.result, kind))


def device_seconds(rows: Iterable[MeasuredRow]) -> float:
    """Seconds of the device that the rows took: of what ran beside others, its part of the wall clock."""
    return sum(row.wall for row in rows)


class Rows:
    """The rows of a file by their key; a row counts if its settings are those of the point asked for."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._rows: dict[str, MeasuredRow] = {row.key: row for row in _read(path)}

    def find(self, point: Point) -> MeasuredRow | None:
        """The row of a point, if it was measured with the same settings."""
        row = self._rows.get(point.key)
        return row if row and row.settings_sha256 == point.settings_sha256 else None

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
    lines = path.read_text(encoding="utf-8").split("\n")
    for number, line in enumerate(lines, start=1):
        try:
            if line:
                yield _CODEC.validate_json(line)
        except ValidationError as error:
            if number < len(lines):  # only the last line can be half written
                first = error.errors()[0]
                where = ".".join(map(str, first["loc"]))
                raise ValueError(f"{path}:{number}: not a row: {where} {first['msg']}") from error
