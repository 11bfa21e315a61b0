"""Pages of attacks, attack inefficacy and sweeps: rows in, one self-contained file out."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from fedproof.report.comparison_charts import (
    AttackRow,
    InefficacyRow,
    SweepRow,
    attack_chart,
    best,
    certified,
    inefficacy_chart,
    outside,
    shown_sizes,
    sweep_chart,
)
from fedproof.report.markup import Markup, table, tag
from fedproof.report.page import figure, section, write_page
from fedproof.report.words import number, percent, plural, remedy, rounded_up


def write_attack_page(
    rows: Sequence[AttackRow],
    path: Path,
    *,
    title: str = "Attacks",
    measure: str = "accuracy",
    unit: str = "user",
    reasons: Sequence[str] = (),
) -> Path:
    """Write a page that sets what attacks achieved beside what is certified; return its path.

    Args:
        rows: one for each attack and number of poisoned units, see `AttackRow`.
        path: the file to write.
        title: what the page is called.
        measure: what `empirical` and the bounds are: an accuracy or a cost.
        unit: what one poisoned unit is.
        reasons: why the bounds are only heuristic; none if they are sound.
    """
    chart = attack_chart(rows, measure=measure, unit=unit)
    beyond = outside(rows)
    sentence = (
        f"All {plural(len(rows), 'measurement')} lie within the certified bounds."
        if not beyond
        else f"{len(beyond)} of {plural(len(rows), 'measurement')} lie outside the certified bounds."
    )
    cells = [
        (
            row["attack"],
            row["k"],
            *(chart.shown(row[key]) for key in ("empirical", "certified_lower", "certified_upper")),
        )
        for row in rows
    ]
    header = ("Attack", f"Poisoned {unit}s", f"Measured {measure}", "Certified at least", "Certified at most")
    return _write(
        path,
        title,
        sentence,
        section("bounds", chart.title, figure(chart)),
        section("rows", "Attack by attack", table(header, cells)),
        _soundness(reasons),
    )


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
        sentence += f" {goal} {plural(int(most), unit)} at least." if most is not None else ""
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
    return _write(path, title, sentence, *parts, _soundness(reasons))


def write_sweep_page(rows: Sequence[SweepRow], path: Path, *, title: str = "Sweep") -> Path:
    """Write a page that compares the runs of a sweep; return its path.

    Args:
        rows: one for each run, see `SweepRow`.
        path: the file to write.
        title: what the page is called.
    """
    chart = sweep_chart(rows)
    sizes = shown_sizes(rows)
    middle = sizes[len(sizes) // 2]
    top = best(rows, middle)
    sentence = (
        f"{percent(certified(top, middle))} are certified at k = {middle} with {_settings(top)} "
        f"(ε = {rounded_up(top['epsilon'], 3)}), the best of {plural(len(rows), 'run')}."
        if top is not None
        else f"None of {plural(len(rows), 'run')} certifies anything."
    )
    keys = list(dict.fromkeys(key for row in rows for key in row["values"]))
    header = [*keys, "ε", "Accuracy", *(f"k = {size}" for size in sizes)]
    cells = [
        [
            *(str(row["values"].get(key, "")) for key in keys),
            rounded_up(row["epsilon"]),
            percent(row["accuracy"]),
            *(_cell(row, size, rows) for size in sizes),
        ]
        for row in sorted(rows, key=lambda row: row["epsilon"])
    ]
    note = tag("p", "Bold: the best run for that k. The points in the figure mark the same.", class_="note")
    return _write(
        path,
        title,
        sentence,
        section("curves", chart.title, figure(chart)),
        section("rows", "Run by run", table(header, cells), note),
    )


def _cell(row: SweepRow, size: int, rows: Sequence[SweepRow]) -> Markup | str:
    text = percent(certified(row, size))
    return tag("strong", text) if row is best(rows, size) else text


def _settings(row: SweepRow) -> str:
    return ", ".join(f"{key} = {value}" for key, value in row["values"].items())


def _soundness(reasons: Sequence[str]) -> Markup:
    if not reasons:
        box = tag("p", tag("strong", "Sound. "), "Every condition of the theorem is met.")
        return section("soundness", "Can it be trusted?", tag("div", box, class_="box sound"))
    items = (tag("li", reason, tag("span", remedy(reason), class_="remedy")) for reason in reasons)
    return section(
        "soundness",
        "Can it be trusted?",
        tag(
            "div",
            tag("p", tag("strong", "Heuristic, not a proof.")),
            tag("ul", *items),
            class_="box heuristic",
        ),
    )


def _write(path: Path, title: str, sentence: str, *parts: Markup) -> Path:
    head = tag(
        "header", tag("p", f"fedproof · {title}", class_="eyebrow"), tag("h1", sentence, id="headline")
    )
    return write_page(path, title=f"fedproof: {title}", body=tag("main", head, *parts, id="main"))
