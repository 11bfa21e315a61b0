"""Published clean accuracies beside ours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paper.published import Budget, Published
from paper.results import Trained
from paper.rows import MeasuredRow, Rows, of_kind
from paper.study import Panel, Study, rows_key

CLOSE = 2.5  # points


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """One published accuracy, in percent, beside the mean of our replicas.

    Attributes:
        published: with the training it belongs to.
        measured: mean over all rows of that training.
        replicas: all of them together.
        substitute: what stands in for the paper's data, empty if they are the same.
    """

    published: Budget
    measured: float
    replicas: int
    substitute: str

    @property
    def close(self) -> bool:
        """Whether the two agree."""
        assert self.published.accuracy is not None
        return abs(self.measured - self.published.accuracy) <= CLOSE


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
    def sigma(self) -> float:
        """The noise multiplier; 0 without noise."""
        varied = (f"{key}={value}" for key, value in self.row.values.items())
        said = dict(text.split("=", 1) for text in (*self.panel.set, *varied))
        if "baseline" in said or said.get("mechanism.kind") == "fedavg":
            return 0.0
        return float(said["mechanism.noise_multiplier"])


def _comparison(entry: Budget, found: list[_Found]) -> Comparison:
    alike = [one for one in found if one.panel.measure == "accuracy"] or found
    best = max(one.replicas for one in alike)
    used = [one for one in alike if one.replicas == best]
    return Comparison(
        published=entry,
        measured=100 * sum(one.accuracy for one in used) / len(used),
        replicas=best * len(used),
        substitute=used[0].panel.substitute or "",
    )


def _rows(studies: Sequence[Study], rows: Rows) -> Iterator[_Found]:
    for study in studies:
        for panel in study.panel:
            if panel.published is not None and panel.rows_of is None:
                for row, result in of_kind(rows.under(rows_key(study, panel)), Trained):
                    yield _Found(panel=panel, row=row, accuracy=result.accuracy)
