"""Rows trained again: whether what is committed can be had again, within its own Monte-Carlo error."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from random import Random
from statistics import NormalDist
from typing import Any

from fedproof import check
from fedproof.experiment import SharedWork
from paper.published import Published
from paper.results import Attacked, Clean, Needed, Recorded, Result, Trained
from paper.rows import MeasuredRow, Rows
from paper.run import ROWS, measure_point
from paper.study import FOLDER, REHEARSAL, Study, points_of

FALSE_ALARM = 0.01  # of a whole check
_ROUNDED = 1e-5  # in rows

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Again:
    """One number of a row, before and now.

    Attributes:
        error: standard error of the difference, or a bound on it; 0: there is no chance in the number.
        allowed: largest difference that chance explains.
    """

    key: str
    name: str
    was: float
    now: float
    error: float
    allowed: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether chance explains the difference."""
        return abs(self.was - self.now) <= self.allowed

    @property
    def verdict(self) -> str:
        """For a table."""
        return "yes" if self.agrees else "NO"

    def values(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self) | {"agrees": self.agrees}


def check_rows(
    studies: Sequence[Study],
    experiments: Path,
    out: Path,
    *,
    count: int,
    scale: float = 1.0,
    device: str = "cpu",
    seed: int | None = None,
    progress: Progress = lambda stage, done, total: None,
) -> list[Again]:
    """The numbers of `count` random rows of `studies` in `out`, before and now.

    Rows whose settings are not those of the studies, and those that measure seconds, are passed over.

    Args:
        studies: from which rows are drawn.
        experiments: the folder they come from.
        out: folder of `rows.jsonl`, which is not changed.
        count: how many rows are trained again.
        scale: of the number of replicas, at least a tenth: fewer replicas, a larger error.
        device: `cpu` or `cuda`.
        seed: draws the rows; None: the operating system does.
        progress: called with what is trained next, how many rows are done and how many there are.
    """
    check.count(check=count)
    if not REHEARSAL <= scale <= 1:
        raise ValueError(f"scale = {scale} must be at least {REHEARSAL} and at most 1 to check rows")
    rows = Rows(out / ROWS[FOLDER])
    whole = (point for study in studies for point in points_of(study, experiments))
    known = {point.key for point in whole if rows.find(point) and point.panel.measure != "run-time"}
    scaled = (point for study in studies for point in points_of(study, experiments, scale))
    points = [point for point in scaled if point.key in known]
    if not points:
        raise ValueError(f"{out / ROWS[FOLDER]}: there are no rows of these studies to check")
    drawn = Random(seed).sample(points, min(count, len(points)))
    before = {row.key: row for row in rows}
    shared, published = SharedWork(wanted=True), Published.read(experiments)
    found: list[Again] = []
    for done, point in enumerate(drawn):
        progress(point.key, done, len(drawn))
        found += compared(before[point.key], measure_point(point, shared, published, device))
    progress("checked", len(drawn), len(drawn))
    return judged(found)


def judged(found: Sequence[Again]) -> list[Again]:
    """All numbers with what chance allows each, so that a false alarm anywhere has chance `FALSE_ALARM`.

    >>> one = Again(key="row", name="accuracy", was=0.9, now=0.91, error=0.003)
    >>> [number.agrees for number in judged([one, one])]
    [False, False]
    """
    width = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * max(1, len(found))))
    return [replace(one, allowed=width * one.error + _ROUNDED) for one in found]


def compared(before: MeasuredRow, after: MeasuredRow) -> Iterator[Again]:
    """Every number of two rows of one point that says what was trained."""
    if type(before.result) is not type(after.result):
        raise ValueError(f"{before.key}: what is measured has changed, from {type(before.result).__name__}")
    share = math.sqrt(sum(1 / row.replicas for row in (before, after) if row.replicas))
    now = {name: (value, spread) for name, value, spread in _numbers(after.result)}
    for name, was, spread in _numbers(before.result):
        value, other = now[name]
        yield Again(key=before.key, name=name, was=was, now=value, error=max(spread, other) * share)


def _numbers(result: Result) -> Iterator[tuple[str, float, float]]:
    """Names and values, each with the standard deviation between replicas, or the largest there can be."""
    if not isinstance(result, Trained):
        yield from ((name, value, 0.0) for name, value in _flat("", asdict(result)))
        return
    yield from ((f"ε, {name}", value, 0.0) for name, value in result.epsilon.items())
    match result:
        case Clean() | Needed():
            yield "accuracy", result.accuracy, result.accuracy_std
        case Recorded():
            yield "accuracy", result.accuracy, most_spread(result.accuracy, 1.0)
        case Attacked():
            yield "accuracy", result.accuracy, most_spread(result.accuracy, 1.0)
            for one in result.attacks:
                name = f"{one.attack}, k = {one.adversaries}"
                if one.replica_accuracy is not None:
                    yield f"accuracy, {name}", one.replica_accuracy, most_spread(one.replica_accuracy, 1.0)
                yield f"cost, {name}", one.cost, most_spread(one.cost, result.cost_bound)


def most_spread(mean: float, largest: float) -> float:
    """The largest standard deviation of numbers in [0, largest] with this mean.

    Proof: x² ≤ x · largest, so that the variance is at most mean · largest - mean².

    Reference: Bhatia and Davis 2000, A better bound on the variance.

    >>> most_spread(0.5, 1.0)
    0.5
    """
    return math.sqrt(max(0.0, mean * (largest - mean)))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """All numbers of nested values, each with the way to it."""
    if isinstance(value, dict):
        for name, one in value.items():
            yield from _flat(f"{prefix}.{name}".strip("."), one)
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _flat(f"{prefix}.{index}", one)
    elif isinstance(value, int | float):
        yield prefix, float(value)
