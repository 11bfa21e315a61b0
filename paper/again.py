"""Rows trained again: whether what is committed can be had again, within its own Monte-Carlo error."""

import math
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

from scipy.stats import t

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
    """One number, or one word, of a row, before and now.

    Attributes:
        was, now: of a word 0, and 1 if it is another one now.
        error: standard error of the difference, or a bound on it; 0: there is no chance in the number; None:
            chance moves it, and how much is not known: it is not compared.
        freedom: degrees of freedom of the error, where it was estimated from few.
        allowed: largest difference that is explained.
    """

    key: str
    name: str
    was: float
    now: float
    error: float | None
    freedom: float = math.inf
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
    check.device(device)
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
    level = FALSE_ALARM / (2 * max(1, sum(bool(one.error) for one in found)))
    return [
        replace(one, allowed=one.allowed + float(t.isf(level, one.freedom)) * one.error + _ROUNDED)
        if one.error
        else replace(one, allowed=one.allowed + _ROUNDED)
        for one in found
    ]


def compared(before: MeasuredRow, after: MeasuredRow, replicas: int | None) -> Iterator[Again]:
    """Every number and word of two rows of one point, seconds apart.

    Where a row names the same code and device all must be the same, up to the order of sums. Else chance
    moves most numbers: those whose error is known, which is never what the old row says, are compared with
    it, and of the others nothing is said.

    Args:
        before: as it is committed.
        after: measured now.
        replicas: that the point asks for at full scale.
    """
    if type(before.result) is not type(after.result):
        raise ValueError(f"{before.key}: what is measured has changed, from {type(before.result).__name__}")
    was, now = (dict(_leaves("", asdict(row.result))) for row in (before, after))
    whole = replicas == after.replicas
    twins = whole and is_twin(before, after)
    errors = _errors(after, replicas)
    found = partial(Again, key=before.key)
    if replicas is not None:
        yield found(name="replicas", was=before.replicas or 0, now=replicas, error=0.0)
    if before.data is not None and after.data is not None:
        yield found(name="data", was=0, now=float(before.data != after.data), error=0.0)
    for name in dict.fromkeys((*now, *was)):
        old, new = was.get(name, _MISSING), now.get(name, _MISSING)
        if not all(isinstance(one, int | float) for one in (old, new)):
            # A number that is missing on one side may be so by chance: what nobody certified, or needs.
            words = twins or not any(isinstance(one, int | float) for one in (old, new))
            yield found(name=name, was=0, now=float(old != new), error=0.0 if words else None)
            continue
        fixed = _FIXED.search(name) and (whole or "ensemble" not in name)
        error, freedom = (0.0, math.inf) if twins or fixed else errors.get(name, (None, math.inf))
        kind = next(part for part in reversed(name.split(".")) if not part.isdigit())
        moved = moved_by_sums(kind, old, new, _INPUT) if twins else 0.0
        yield found(name=name, was=old, now=new, error=error, freedom=freedom, allowed=moved)


_MISSING = object()
_INPUT = 1.001 / 1000  # of the smallest test set of the studies
_FIXED = re.compile(r"epsilon|delta|cost_bound|failure_probability|adversaries|taus|(^|\.)bound$")
"""Numbers that no chance is in."""


def is_twin(before: MeasuredRow, after: MeasuredRow) -> bool:
    """Whether a row names the code and the device of another; what it does not name it need not."""
    same = before.decided.items() <= after.decided.items() and bool(before.decided)
    return same and (before.torch, before.hardware) == (after.torch, after.hardware)


Errors = dict[str, tuple[float | None, float]]


def _errors(after: MeasuredRow, replicas: int | None) -> Errors:
    """Standard errors of differences and their degrees of freedom, by name, as the new row knows them."""
    result = after.result
    if not isinstance(result, Trained) or replicas is None or after.replicas is None:
        return {name: (0.0, math.inf) for name, _ in _leaves("", asdict(result))}
    share = math.sqrt(1 / replicas + 1 / after.replicas)
    errors: Errors = {name: (spread * share, math.inf) for name, spread in _bounded(result, after.replicas)}
    if isinstance(result, Clean | Needed):
        few = after.replicas
        spread = result.accuracy_std * math.sqrt(few / (few - 1)) if few > 1 else None
        errors["accuracy"] = (None if spread is None else spread * share, few - 1)
    if isinstance(result, Clean) and replicas == after.replicas:
        for index, size in enumerate(result.sizes):
            count = len(size.parts)
            if count > 1 and (mean := fmean(size.parts)):
                # The whole varies less than its parts, by the root of their number; two differ by more.
                of_whole = size.all * stdev(size.parts) / mean / math.sqrt(count)
                errors[f"sizes.{index}.all"] = (math.sqrt(2) * of_whole, count - 1)
    return errors


def _bounded(result: Result, replicas: int) -> Iterator[tuple[str, float]]:
    """The largest standard deviation there can be between replicas, of the means among the numbers.

    Not at the mean itself, which may lie at a bound that the true one does not lie at, but four replicas
    nearer to the middle.
    """

    def spread(mean: float, largest: float) -> float:
        return most_spread((replicas * mean + 2 * largest) / (replicas + 4), largest)

    if isinstance(result, Recorded):
        yield "accuracy", spread(result.accuracy, 1.0)
    if isinstance(result, Attacked):
        yield "accuracy", spread(result.accuracy, 1.0)
        for index, one in enumerate(result.attacks):
            name = f"attacks.{index}"
            yield f"{name}.clean_replica_accuracy", spread(one.clean_replica_accuracy, 1.0)
            if one.replica_accuracy is not None:
                yield f"{name}.replica_accuracy", spread(one.replica_accuracy, 1.0)
            for place in ("clean_cost", "cost"):
                if math.isfinite(value := getattr(one, place)):
                    yield f"{name}.{place}", spread(value, result.cost_bound)
            for number, cost in enumerate(one.costs):
                if cost.bound is not None:
                    yield f"{name}.costs.{number}.clean", spread(cost.clean, cost.bound)
                    yield f"{name}.costs.{number}.attacked", spread(cost.attacked, cost.bound)


def most_spread(mean: float, largest: float) -> float:
    """The largest standard deviation of numbers in [0, largest] with this mean.

    Proof: x² ≤ x · largest, so that the variance is at most mean · largest - mean².

    Reference: Bhatia and Davis 2000, A better bound on the variance.

    >>> most_spread(0.5, 1.0)
    0.5
    """
    return math.sqrt(max(0.0, mean * (largest - mean)))


def _leaves(prefix: str, value: Any) -> Iterator[tuple[str, Any]]:
    """All numbers and words of nested values but seconds, each with the way to it."""
    if isinstance(value, dict):
        for name, one in value.items():
            if "seconds" not in name:
                yield from _leaves(f"{prefix}.{name}".strip("."), one)
    elif isinstance(value, list | tuple):
        for index, one in enumerate(value):
            yield from _leaves(f"{prefix}.{index}", one)
    else:
        yield prefix, value
