"""The page of a sweep: what each run certifies, over ε and row by row."""

import math
from collections.abc import Sequence
from pathlib import Path

from fedproof.report.chart import TONES, Chart, Line, Mark, Points, Tone, numbers
from fedproof.report.page import Markup, section, table, tag, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import number, percent, picked, plural, rounded_up
from fedproof.summary import SweptRun

_MOST_CURVES = 5


def write_sweep_page(rows: Sequence[SweptRun], path: Path, *, title: str = "Sweep") -> Path:
    """Write a page that compares the runs of a sweep; return its path.

    Args:
        rows: one for each run, see `fedproof.summary.SweptRun`.
        path: the file to write.
        title: what the page is called.
    """
    chart, sizes = sweep_chart(rows), shown_sizes(rows)
    bold = "Bold: the best run for that k. The points in the figure mark the same."
    note = tag("p", f"{bold} {picked(len(rows))}", class_="note")
    return write_simple_page(
        path,
        title,
        _sentence(rows, sizes[len(sizes) // 2]),
        section("curves", chart.title, figure(chart)),
        section("rows", "Run by run", _table(rows, sizes), note),
    )


def shown_sizes(rows: Sequence[SweptRun]) -> list[int]:
    """At most five of the sizes that any run certifies, evenly spaced, zero among them."""
    largest = max((int(k) for row in rows for k, share in row.certified_accuracy.items() if share), default=0)
    count = min(_MOST_CURVES, largest + 1)
    return sorted({round(index * largest / max(count - 1, 1)) for index in range(count)})


def spent(row: SweptRun) -> float:
    """ε of a run, infinite without privacy."""
    return math.inf if row.epsilon is None else row.epsilon


def certified(row: SweptRun, size: int) -> float:
    """Certified accuracy of a run at a size."""
    return float(row.certified_accuracy.get(str(size), 0.0))


def best(rows: Sequence[SweptRun], size: int) -> SweptRun | None:
    """The run with the highest certified accuracy at a size, the most private of equals; None if all 0."""
    top = max(rows, key=lambda row: (certified(row, size), -spent(row)))
    return top if certified(top, size) > 0 else None


# --- the figure ---------------------------------------------------------------------------------------------


def sweep_chart(rows: Sequence[SweptRun]) -> Chart:
    """Certified accuracy over ε, one curve for each of some sizes, the best ε of each marked."""
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")
    private = [row for row in rows if row.epsilon is not None]
    sizes, tones = shown_sizes(rows), (Tone.BLUE, *TONES)
    if not private:
        return _without_privacy(rows, sizes)
    lines = [_line(private, size, tone) for size, tone in zip(sizes, tones, strict=False)]
    points = [_best_point(private, size, tone) for size, tone in zip(sizes, tones, strict=False)]
    epsilons = sorted({spent(row) for row in private})
    return Chart(
        name="sweep",
        title="Certified accuracy over ε",
        description=f"One curve for each of {len(sizes)} sizes over {len(epsilons)} privacy levels.",
        x_label="ε of one model",
        y_label="certified accuracy (share of the test inputs)",
        series=(*lines, *(point for point in points if point is not None)),
        marks=_best_mark(private, sizes[len(sizes) // 2]),
        shares=True,
        logarithmic=epsilons[0] > 0 and epsilons[-1] >= 8 * epsilons[0],
    )


def _without_privacy(rows: Sequence[SweptRun], sizes: Sequence[int]) -> Chart:
    """Where no run has an ε: certified accuracy over k, one curve for each run."""
    tones = (Tone.BLUE, *TONES)
    most = range(max(sizes) + 1)
    return Chart(
        name="sweep",
        title="Certified accuracy over k",
        description=f"One curve for each of {len(rows)} runs; none of them has a finite ε.",
        x_label="poisoned units k",
        y_label="certified accuracy (share of the test inputs)",
        series=tuple(
            Line(
                label=_settings(row),
                xs=numbers(most),
                ys=numbers([certified(row, size) for size in most]),
                tone=tones[place % len(tones)],
            )
            for place, row in enumerate(rows)
        ),
        shares=True,
    )


def _line(rows: Sequence[SweptRun], size: int, tone: Tone) -> Line:
    """Certified accuracy at a size over ε, the best of the runs with the same ε."""
    at: dict[float, float] = {}
    for row in sorted(rows, key=spent):
        at[spent(row)] = max(at.get(spent(row), 0.0), certified(row, size))
    label, xs, ys = f"k = {size}", numbers(list(at)), numbers(list(at.values()))
    return Line(label=label, short=label, xs=xs, ys=ys, tone=tone)


def _best_point(rows: Sequence[SweptRun], size: int, tone: Tone) -> Points | None:
    top = best(rows, size)
    if top is None:
        return None
    xs, ys = numbers([spent(top)]), numbers([certified(top, size)])
    return Points(label=f"best ε for k = {size}", xs=xs, ys=ys, tone=tone)


def _best_mark(rows: Sequence[SweptRun], size: int) -> tuple[Mark, ...]:
    top = best(rows, size)
    if top is None:
        return ()
    return (Mark(x=spent(top), label=f"best for k = {size}: ε = {number(spent(top))}"),)


# --- run by run ---------------------------------------------------------------------------------------------


def _sentence(rows: Sequence[SweptRun], size: int) -> str:
    top, runs = best(rows, size), plural(len(rows), "run")
    if top is None:
        return f"None of {runs} certifies anything."
    return (
        f"{percent(certified(top, size))} of the test inputs are certified at k = {size} "
        f"with {_settings(top)} (ε = {rounded_up(spent(top), 3)}), the best of {runs}."
    )


def _table(rows: Sequence[SweptRun], sizes: Sequence[int]) -> Markup:
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    cells = [
        [
            *(str(row.values.get(key, "")) for key in keys),
            rounded_up(spent(row)),
            percent(row.accuracy),
            *(_cell(row, size, rows) for size in sizes),
        ]
        for row in sorted(rows, key=spent)
    ]
    return table([*keys, "ε", "Accuracy", *(f"k = {size}" for size in sizes)], cells)


def _cell(row: SweptRun, size: int, rows: Sequence[SweptRun]) -> Markup | str:
    text = percent(certified(row, size))
    return tag("strong", text) if row is best(rows, size) else text


def _settings(row: SweptRun) -> str:
    """The varied values, each by the last part of its key: the table has all of it."""
    names = ((key.rpartition(".")[2].replace("_", " "), value) for key, value in row.values.items())
    return ", ".join(f"{name} {value}" for name, value in names)
