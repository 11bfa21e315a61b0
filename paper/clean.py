"""Published clean accuracies beside ours."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paper.published import Budget, Published
from paper.results import Clean, Trained
from paper.rows import MeasuredRow, Rows, of_kind
from paper.study import Panel, Study, rows_key

CLOSE = 2.5  # points
_SAME = ("attack.", "mechanism.noise_multiplier", "mechanism.rounds", "ensemble.replicas")
"""Settings that decide no replica, or are those of the published entry."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One published accuracy, in percent, beside the mean of our replicas.

    Attributes:
        published: with the training it belongs to.
        measured: mean over all rows of that training.
        replicas: all of them together.
        substitute: what stands in for the paper's data, empty if they are the same.
        shown: the same of the models that are certified or attacked, which may be trained otherwise; None:
            none are.
        rows: that the replicas are in, each of data or a model of its own.
        spread: standard deviation between the replicas of one row; None where it does not hold it.
    """

    published: Budget
    measured: float
    replicas: int
    substitute: str
    shown: float | None = None
    rows: int = 1
    spread: float | None = None

    @property
    def chance(self) -> str:
        """How far chance alone may move our mean; empty where that is not known, as of several heads."""
        if not self.spread or self.rows > 1:
            return ""
        error = self.spread / math.sqrt(self.replicas)
        away = abs(self.measured - self.published.accuracy) / error if self.published.accuracy else 0.0
        return (
            f"our mean is {away:.1f} standard errors away: {self.replicas} replicas that differ by "
            f"{self.spread:.1f} points"
        )

    @property
    def close(self) -> bool:
        """Whether the two agree."""
        return self._close(self.measured)

    @property
    def shown_close(self) -> bool | None:
        """Whether those that are certified or attacked agree."""
        return None if self.shown is None else self._close(self.shown)

    def _close(self, accuracy: float) -> bool:
        assert self.published.accuracy is not None
        return abs(accuracy - self.published.accuracy) <= CLOSE


def compare_clean(studies: Sequence[Study], rows: Rows, published: Published) -> list[Comparison]:
    """Every published accuracy for which there are rows; those of the measure `accuracy` come first."""
    found: dict[Budget, list[_Found]] = {}
    for one in _rows(studies, rows):
        entry = published.find(one.panel.published, one.sigma, one.rounds)
        if entry is not None and entry.accuracy is not None:
            found.setdefault(entry, []).append(one)
    return [_comparison(entry, found[entry]) for entry in dict.fromkeys(published.table) if entry in found]


@dataclass(frozen=True, kw_only=True)
class _Found:
    """A row of a training, with the panel it belongs to."""

    panel: Panel
    row: MeasuredRow
    accuracy: float

    @property
    def rounds(self) -> int:
        assert self.row.rounds is not None
        return self.row.rounds

    @property
    def replicas(self) -> int:
        assert self.row.replicas is not None
        return self.row.replicas

    @property
    def training(self) -> tuple[frozenset[str], frozenset[str]]:
        """What tells its replicas, without attack, from others of the same published entry."""
        said = frozenset(text for text in self.panel.set if not text.startswith(_SAME))
        varied = {key: value for key, value in self.row.values.items() if not key.startswith(_SAME)}
        return said, frozenset(f"{key}={value}" for key, value in varied.items())

    @property
    def sigma(self) -> float:
        """The noise multiplier; 0 without noise."""
        varied = (f"{key}={value}" for key, value in self.row.values.items())
        said = dict(text.split("=", 1) for text in (*self.panel.set, *varied))
        if "baseline" in said or said.get("mechanism.kind") == "fedavg":
            return 0.0
        return float(said["mechanism.noise_multiplier"])


def _comparison(entry: Budget, found: list[_Found]) -> Comparison:
    alone = [one for one in found if one.panel.measure == "accuracy"]
    others = [one for one in found if one.panel.measure != "accuracy"]
    used = _largest(alone or others)
    return Comparison(
        published=entry,
        measured=_percent(used),
        replicas=sum(one.replicas for one in used),
        substitute=used[0].panel.substitute or "",
        shown=_percent(_largest(others)) if others else None,
        rows=len(used),
        spread=_spread(used[0]),
    )


def _largest(found: list[_Found]) -> list[_Found]:
    """Those of the most replicas; rows that show the same replicas, attacked otherwise, count once."""
    most = max(one.replicas for one in found)
    return list({one.training: one for one in found if one.replicas == most}.values())


def _percent(found: list[_Found]) -> float:
    return 100 * sum(one.accuracy for one in found) / len(found)


def _spread(found: _Found) -> float | None:
    """In points."""
    return 100 * found.row.result.accuracy_std if isinstance(found.row.result, Clean) else None


def _rows(studies: Sequence[Study], rows: Rows) -> Iterator[_Found]:
    for study in studies:
        for panel in study.panel:
            if panel.published is not None and panel.rows_of is None:
                for row, result in of_kind(rows.under(rows_key(study, panel)), Trained):
                    yield _Found(panel=panel, row=row, accuracy=result.accuracy)
