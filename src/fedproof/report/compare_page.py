"""The page of a comparison: what several mechanisms certify on the same data, and what each costs."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from fedproof.report.chart import TONES, Chart, Line, Tone, numbers
from fedproof.report.page import Markup, join, section, table, tag, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import chosen_size, data_size, duration, percent, picked, plural, rounded_up
from fedproof.summary import ComparedRun

_COUNTED = (
    "Time is that of training and certifying the whole ensemble, loading not counted. Sent up counts every "
    "update that a user sends while all replicas are trained, times the size of the model; pooled training "
    "counts as the FedSGD it stands for, one gradient for each step and member with an instance in its "
    "batch, at most. ε is that of one model for one unit; a dash means that no privacy is claimed."
)
PUBLISHED = (
    "Mechanism",
    "Certified is",
    "ε of all published",
    "for one unit",
    "ε if replaced",
    "Each user sends",
)
OTHER_RELATION = (
    "Sizes are for replaced units, and ε is for one added or removed; what one replaced unit costs is more, "
    "and stands beside it where it is known."
)


def label_of(row: ComparedRun) -> str:
    """What a row is called in the figure and the table."""
    paper = " (paper's formula)" if row.certificate == "paper" else ""
    return f"{row.name}{paper}"


def certified_at(row: ComparedRun, size: int) -> float:
    """Certified accuracy of a row at a size."""
    return float(row.certified_accuracy.get(str(size), 0.0))


def units_of(rows: Sequence[ComparedRun]) -> list[str]:
    """What the rows certify, users before instances."""
    return sorted({row.unit for row in rows}, reverse=True)


def compare_charts(rows: Sequence[ComparedRun]) -> list[Chart]:
    """Certified accuracy over k, one figure for each unit: a poisoned user is not a poisoned instance."""
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")
    names = list(dict.fromkeys(row.name for row in rows))
    tones = (Tone.BLUE, *TONES)
    tone = {name: tones[place % len(tones)] for place, name in enumerate(names)}
    charts = []
    for unit in units_of(rows):
        own = [row for row in rows if row.unit == unit and row.certified_accuracy]
        charts.append(
            Chart(
                name=f"compare-{unit}",
                title=f"Certified accuracy over poisoned {unit}s",
                description=f"One curve for each of {len(own)} ways to certify; dashed: the paper's formula.",
                x_label=f"poisoned {unit}s k",
                y_label="certified accuracy",
                series=tuple(_line(row, tone[row.name]) for row in own),
                shares=True,
            )
        )
    return charts


def _line(row: ComparedRun, tone: Tone) -> Line:
    sizes = sorted(map(int, row.certified_accuracy))
    private = "" if row.epsilon is None else f", ε = {rounded_up(row.epsilon, 3)}"
    return Line(
        label=label_of(row) + private,
        xs=numbers(sizes),
        ys=numbers([certified_at(row, size) for size in sizes]),
        tone=tone,
        dashed=row.certificate == "paper",
    )


def table_sizes(rows: Sequence[ComparedRun]) -> list[int]:
    """Sizes for the columns of a table: 1, 2, 5, 10, 20, … as far as any row certifies."""
    largest = max((int(k) for row in rows for k, share in row.certified_accuracy.items() if share), default=0)
    steps = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
    return [size for size in steps if size <= max(largest, 1)]


def write_compare_page(
    rows: Sequence[ComparedRun], path: Path, *, sizes: Sequence[int] | None = None, title: str = "Comparison"
) -> Path:
    """Write a page that compares mechanisms; return its path.

    Args:
        rows: of `fedproof.comparison.compare`.
        path: the file to write.
        sizes: columns of the table; None chooses.
        title: what the page is called.
    """
    charts = compare_charts(rows)
    shown = table_sizes(rows) if sizes is None else list(sizes)
    bold = "Bold: the most of all proved rows of that unit."
    runs = len({row.name for row in rows})
    note = tag("p", f"{bold} {_COUNTED} {picked(runs)}", class_="note")
    return write_simple_page(
        path,
        title,
        headline(rows),
        *(section(chart.name, chart.title, figure(chart)) for chart in charts),
        section("rows", "Row by row", _table(rows, shown), note),
        section("published", "What is published, and what a user sends", _published(rows)),
        section("soundness", "Can it be trusted?", _soundness(rows)),
    )


def headline(rows: Sequence[ComparedRun]) -> str:
    """Which row certifies most, at the size that the best one still certifies well."""
    unit = units_of(rows)[0]
    proved = [row for row in rows if row.sound and row.unit == unit and row.certified_accuracy]
    size = max((chosen_size(row.certified_accuracy) for row in proved), default=0)
    top = best(rows, unit, size)
    if top is None:
        return f"None of {plural(len(rows), 'row')} proves anything."
    share = percent(certified_at(top, size))
    return f"At k = {size} poisoned {unit}s, {label_of(top)} certifies most: {share} of the test inputs."


def best(rows: Sequence[ComparedRun], unit: str, size: int) -> ComparedRun | None:
    """The proved row of a unit with the highest certified accuracy at a size; None if all certify nothing."""
    proved = [row for row in rows if row.sound and row.unit == unit]
    top = max(proved, key=lambda row: certified_at(row, size), default=None)
    return top if top is not None and certified_at(top, size) > 0 else None


def _table(rows: Sequence[ComparedRun], sizes: Sequence[int]) -> Markup:
    header = ["Mechanism", "Unit", "ε", "Accuracy", *(f"k = {size}" for size in sizes)]
    return table([*header, "Time", "Sent up"], [_cells(row, rows, sizes) for row in rows])


def _cells(row: ComparedRun, rows: Sequence[ComparedRun], sizes: Sequence[int]) -> list[Any]:
    return [
        label_of(row),
        row.unit,
        "–" if row.epsilon is None else rounded_up(row.epsilon, 3),
        percent(row.accuracy),
        *(_share(row, rows, size) for size in sizes),
        duration(row.seconds),
        data_size(row.bytes),
    ]


def _published(rows: Sequence[ComparedRun]) -> Markup:
    cells = [(label_of(row), *published(row)) for row in rows]
    note = [tag("p", OTHER_RELATION, class_="note")] if any(row.other_relation for row in rows) else []
    return tag("div", table(PUBLISHED, cells), *note)


def published(row: ComparedRun) -> tuple[str, ...]:
    """The predictor, ε of everything that is published with its relation, and what one user sends."""
    relation = {None: "–", "join": "added or removed", "replace": "replaced"}[row.epsilon_relation]
    replaced = row.published_epsilon if row.epsilon_relation == "replace" else row.epsilon_if_replaced
    sent = "–"
    if row.uploads_per_user is not None and row.bytes_per_user is not None:
        sent = (
            f"{row.uploads_per_user:.3g} × {data_size(row.bytes_per_user / max(row.uploads_per_user, 1e-9))}"
        )
    return row.predictor or "–", _epsilon(row.published_epsilon), relation, _epsilon(replaced), sent


def _epsilon(value: float | None) -> str:
    return "–" if value is None else rounded_up(value, 3)


def _share(row: ComparedRun, rows: Sequence[ComparedRun], size: int) -> Markup | str:
    text = percent(certified_at(row, size))
    return tag("strong", text) if row is best(rows, row.unit, size) else text


def _soundness(rows: Sequence[ComparedRun]) -> Markup:
    """Which rows are proofs, and why the others are none."""
    proved = [label_of(row) for row in rows if row.sound]
    first = tag("p", tag("strong", "Proved: "), ", ".join(proved) or "none", ".")
    items = (
        tag("li", tag("strong", label_of(row)), ": ", "; ".join(row.reasons), ".")
        for row in rows
        if not row.sound
    )
    return tag("div", first, tag("ul", join(items)), class_="box sound" if proved else "box heuristic")
