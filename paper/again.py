"""Rows trained again: whether what is committed can be had again, within its own Monte-Carlo error."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import NormalDist, fmean, stdev
from typing import Any

from fedproof import check
from fedproof.experiment import SharedWork
from paper.published import Published
from paper.results import Attacked, Clean, Needed, Recorded, Result, Trained
from paper.rows import MeasuredRow, Rows
from paper.run import ROWS, look_for_data, measure_point
from paper.same import moved_by_sums
from paper.study import FOLDER, REHEARSAL, Study, points_of

FALSE_ALARM = 0.01  # of a whole check
_ROUNDED = 1e-5  # in rows

Progress = Callable[[str, int, int], None]


@dataclass(frozen=True, kw_only=True)
class Again:
    """One number of a row, before and now.

    Attributes:
        error: standard error of the difference, or a bound on it; 0: there is no chance in the number; None:
            chance moves it, and how much is not known: it is not compared.
        allowed: largest difference that is explained.
    """

    key: str
    name: str
    was: float
    now: float
    error: float | None
    allowed: float = 0.0

    @property
    def agrees(self) -> bool:
        """Whether the difference is explained, or nothing is known about it."""
        ended = math.isnan(self.was) and math.isnan(self.now)  # the loss of models that an attack destroyed
        return self.error is None or ended or abs(self.was - self.now) <= self.allowed

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
    whole = {point.key: point for study in studies for point in points_of(study, experiments)}
    known = {key for key, point in whole.items() if rows.find(point) and point.panel.measure != "run-time"}
    scaled = (point for study in studies for point in points_of(study, experiments, scale))
    points = [point for point in scaled if point.key in known]
    if not points:
        raise ValueError(f"{out / ROWS[FOLDER]}: there are no rows of these studies to check")
    drawn = Random(seed).sample(points, min(count, len(points)))
    before = {row.key: row for row in rows}
    shared, published = SharedWork(wanted=True), Published.read(experiments)
    look_for_data(drawn, shared)
    found: list[Again] = []
    for done, point in enumerate(drawn):
        progress(point.key, done, len(drawn))
        config = whole[point.key].config
        replicas = None if config is None else config.ensemble.replicas
        found += compared(before[point.key], measure_point(point, shared, published, device), replicas)
    progress("checked", len(drawn), len(drawn))
    return judged(found)


def judged(found: Sequence[Again]) -> list[Again]:
    """All numbers with what chance allows each, so that a false alarm anywhere has chance `FALSE_ALARM`.

    >>> one = Again(key="row", name="accuracy", was=0.9, now=0.91, error=0.003)
    >>> [number.agrees for number in judged([one, one])]
    [False, False]
    """
    width = NormalDist().inv_cdf(1 - FALSE_ALARM / (2 * max(1, sum(bool(one.error) for one in found))))
    return [
        one if one.error is None else replace(one, allowed=one.allowed + width * one.error + _ROUNDED)
        for one in found
    ]


def compared(before: MeasuredRow, after: MeasuredRow, replicas: int | None) -> Iterator[Again]:
    """Every number of two rows of one point, seconds apart.

    Of the same code on the same device they are equal up to the order of sums. Else chance moves most of
    them: those whose error is known are compared with it, and of the others nothing is said. Nothing that the
    row itself says decides how far it may be off.

    Args:
        before: as it is committed.
        after: measured now.
        replicas: that the point asks for at full scale.
    """
    if type(before.result) is not type(after.result):
        raise ValueError(f"{before.key}: what is measured has changed, from {type(before.result).__name__}")
    was, now = (dict(_flat("", asdict(row.result))) for row in (before, after))
    whole = replicas == after.replicas
    twins = whole and _made_by(before) == _made_by(after)
    errors = _errors(after, replicas)
    found = partial(Again, key=before.key)
    if replicas is not None:
        yield found(name="replicas", was=before.replicas or 0, now=replicas, error=0.0)
    if before.data is not None and after.data is not None:
        yield found(name="data are others", was=0, now=float(before.data != after.data), error=0.0)
    if twins:
        yield found(name="count of numbers", was=len(was), now=len(now), error=0.0)
    for name, value in now.items():
        if name not in was:
            continue
        fixed = _FIXED.search(name) and (whole or "ensemble" not in name)
        error = 0.0 if twins or fixed else errors.get(name)
        kind = next(part for part in reversed(name.split(".")) if not part.isdigit())
        moved = moved_by_sums(kind, was[name], value) if twins else 0.0
        yield found(name=name, was=was[name], now=value, error=error, allowed=moved)


_FIXED = re.compile(r"epsilon|delta|cost_bound|failure_probability|adversaries|taus|(^|\.)bound$")
"""Numbers that no chance is in."""


def _made_by(row: MeasuredRow) -> object:
    return row.decided, row.torch, row.hardware


def _errors(after: MeasuredRow, replicas: int | None) -> dict[str, float]:
    """Standard errors of differences, by the name of a number, as the new row knows them."""
    result = after.result
    if not isinstance(result, Trained) or replicas is None or after.replicas is None:
        return dict.fromkeys((name for name, _ in _flat("", asdict(result))), 0.0)
    share = math.sqrt(1 / replicas + 1 / after.replicas)
    errors = {name: spread * share for name, spread in _spreads(result)}
    if isinstance(result, Clean) and replicas == after.replicas:
        for index, size in enumerate(result.sizes):
            if len(size.parts) > 1 and (mean := fmean(size.parts)):
                # The whole varies less than its parts, by the root of their number; two differ by more.
                of_whole = size.all * stdev(size.parts) / mean / math.sqrt(len(size.parts))
                errors[f"sizes.{index}.all"] = math.sqrt(2) * of_whole
    return errors


def _spreads(result: Result) -> Iterator[tuple[str, float]]:
    """Standard deviation between replicas, or the largest there can be, of the means among the numbers."""
    match result:
        case Clean() | Needed():
            yield "accuracy", result.accuracy_std
        case Recorded():
            yield "accuracy", most_spread(result.accuracy, 1.0)
        case Attacked():
            yield "accuracy", most_spread(result.accuracy, 1.0)
            for index, one in enumerate(result.attacks):
                name = f"attacks.{index}"
                yield f"{name}.clean_replica_accuracy", most_spread(one.clean_replica_accuracy, 1.0)
                for place in ("replica_accuracy", "clean_success", "success"):
                    if (share := getattr(one, place)) is not None:
                        yield f"{name}.{place}", most_spread(share, 1.0)
                for place in ("clean_cost", "cost"):
                    yield f"{name}.{place}", most_spread(getattr(one, place), result.cost_bound)
                for number, cost in enumerate(one.costs):
                    for place in ("clean", "attacked"):
                        if cost.bound is not None:
                            value = getattr(cost, place)
                            yield f"{name}.costs.{number}.{place}", most_spread(value, cost.bound)


def most_spread(mean: float, largest: float) -> float:
    """The largest standard deviation of numbers in [0, largest] with this mean.

    Proof: x² ≤ x · largest, so that the variance is at most mean · largest - mean².

    Reference: Bhatia and Davis 2000, A better bound on the variance.

    >>> most_spread(0.5, 1.0)
    0.5
    """
    return math.sqrt(max(0.0, mean * (largest - mean)))


def _flat(prefix: str, value: Any) -> Iterator[tuple[str, float]]:
    """All numbers of nested values but seconds, each with the way to it."""
    if isinstance(value, dict):
        for name, one in value.items():
            if "seconds" not in name:
                yield from _flat(f"{prefix}.{name}".strip("."), one)
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _flat(f"{prefix}.{index}", one)
    elif isinstance(value, int | float):
        yield prefix, float(value)
