"""Pages of attack inefficacy and of sweeps: rows in, one self-contained file out."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

from fedproof.report.comparison_charts import (
    InefficacyRow,
    SweepRow,
    best,
    certified,
    inefficacy_chart,
    shown_sizes,
    sweep_chart,
)
from fedproof.report.markup import Markup, table, tag
from fedproof.report.page import figure, section, soundness_box, write_simple_page
from fedproof.report.words import number, percent, picked, plural, rounded_up


def write_inefficacy_page(
    rows: Sequence[InefficacyRow],
    path: Path,
    *,
    cost: float,
    cost_bound: float,
    title: str = "Attack inefficacy",
    unit: str = "user",
    needed: Mapping[str, float | None] | None = None,
    tau: float | None = None,
    reasons: Sequence[str] = (),
) -> Path:
    """Write a page of certified bounds on the attacker's expected cost; return its path.

    Args:
        rows: one for each method and number of poisoned units, see `InefficacyRow`.
        path: the file to write.
        cost: the expected cost without attack.
        cost_bound: the largest cost there is.
        title: what the page is called.
        unit: what one poisoned unit is.
        needed: for each method, the units an attack needs to divide the cost by `tau`; None: unknown.
        tau: see `needed`.
        reasons: why the bounds are only heuristic; none if they are sound.
    """
    chart = inefficacy_chart(rows, cost=cost, unit=unit)
    sentence = f"Without attack the expected cost is {number(cost)} of at most {number(cost_bound)}."
    parts = [section("bounds", chart.title, figure(chart))]
    if needed and tau is not None:
        most = max((value for value in needed.values() if value is not None), default=None)
        goal = f"To divide it by {number(tau)}, an attack needs"
        sentence += f" {goal} {plural(math.ceil(most), unit)} at least." if most is not None else ""
        cells = [
            (name, "more than searched" if value is None else number(value)) for name, value in needed.items()
        ]
        parts.append(
            section(
                "needed",
                f"Adversaries needed to divide the cost by {number(tau)}",
                table(("Method", f"Poisoned {unit}s"), cells),
            )
        )
    return write_simple_page(path, title, sentence, *parts, soundness_box(reasons))


def write_sweep_page(rows: Sequence[SweepRow], path: Path, *, title: str = "Sweep") -> Path:
    """Write a page that compares the runs of a sweep; return its path.

    Args:
        rows: one for each run, see `SweepRow`.
        path: the file to write.
        title: what the page is called.
    """
    chart, sizes = sweep_chart(rows), shown_sizes(rows)
    bold = "Bold: the best run for that k. The points in the figure mark the same."
    note = tag("p", f"{bold} {picked(len(rows))}", class_="note")
    return write_simple_page(
        path,
        title,
        _sweep_sentence(rows, sizes[len(sizes) // 2]),
        section("curves", chart.title, figure(chart)),
        section("rows", "Run by run", _sweep_table(rows, sizes), note),
    )


def _sweep_sentence(rows: Sequence[SweepRow], size: int) -> str:
    top, runs = best(rows, size), plural(len(rows), "run")
    if top is None:
        return f"None of {runs} certifies anything."
    return (
        f"{percent(certified(top, size))} of the test inputs are certified at k = {size} "
        f"with {_settings(top)} (ε = {rounded_up(top['epsilon'], 3)}), the best of {runs}."
    )


def _sweep_table(rows: Sequence[SweepRow], sizes: Sequence[int]) -> Markup:
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    cells = [
        [
            *(str(row["values"].get(key, "")) for key in keys),
            rounded_up(row["epsilon"]),
            percent(row["accuracy"]),
            *(_cell(row, size, rows) for size in sizes),
        ]
        for row in sorted(rows, key=lambda row: row["epsilon"])
    ]
    return table([*keys, "ε", "Accuracy", *(f"k = {size}" for size in sizes)], cells)


def _cell(row: SweepRow, size: int, rows: Sequence[SweepRow]) -> Markup | str:
    text = percent(certified(row, size))
    return tag("strong", text) if row is best(rows, size) else text


def _settings(row: SweepRow) -> str:
    """The varied values, each by the last part of its key: the table has all of it."""
    names = ((key.rpartition(".")[2].replace("_", " "), value) for key, value in row["values"].items())
    return ", ".join(f"{name} {value}" for name, value in names)
