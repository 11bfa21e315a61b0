"""Published clean accuracies beside ours."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from paper.published import Budget, Published
from paper.rows import Row, Rows
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
    found: dict[Budget, list[tuple[Panel, Row]]] = {}
    for panel, row in _rows(studies, rows):
        entry = published.find(panel.published, _sigma(panel, row), row["rounds"])
        if entry is not None and entry.accuracy is not None:
            found.setdefault(entry, []).append((panel, row))
    return [_comparison(entry, found[entry]) for entry in dict.fromkeys(published.table) if entry in found]


def _comparison(entry: Budget, found: list[tuple[Panel, Row]]) -> Comparison:
    alike = [one for one in found if one[0].measure == "accuracy"] or found
    best = max(row["replicas"] for _, row in alike)
    used = [(panel, row) for panel, row in alike if row["replicas"] == best]
    return Comparison(
        published=entry,
        measured=100 * sum(row["result"]["accuracy"] for _, row in used) / len(used),
        replicas=best * len(used),
        substitute=used[0][0].substitute or "",
    )


def _rows(studies: Sequence[Study], rows: Rows) -> Iterator[tuple[Panel, Row]]:
    for study in studies:
        for panel in study.panel:
            if panel.published is not None and panel.rows_of is None:
                yield from ((panel, row) for row in rows.under(rows_key(study, panel)))


def _sigma(panel: Panel, row: Row) -> float:
    """The noise multiplier of a row; 0 without noise."""
    said = dict(text.split("=", 1) for text in (*panel.set, *(f"{k}={v}" for k, v in row["values"].items())))
    if "baseline" in said or said.get("mechanism.kind") == "fedavg":
        return 0.0
    return float(said["mechanism.noise_multiplier"])
