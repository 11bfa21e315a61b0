"""The page of attack inefficacy: what poisoned units can make of the attacker's expected cost at most."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypedDict

from fedproof.certificates import Inefficacy
from fedproof.mechanisms import Caveat
from fedproof.report.chart import TONES, Band, Chart, Line, Series, Tone, check_rows, numbers
from fedproof.report.page import section, soundness_box, table, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import number, plural


class InefficacyRow(TypedDict):
    """What `k` units can make of the attacker's expected cost at most, by one `method`."""

    k: int
    method: str
    lower: float
    upper: float


def inefficacy_rows(*results: Inefficacy) -> list[InefficacyRow]:
    """Rows for the page from what `fedproof.inefficacy` returns."""
    return [
        InefficacyRow(k=k, method=str(result.settings.method), lower=lower, upper=upper)
        for result in results
        for k, lower, upper in zip(result.sizes, result.lower, result.upper, strict=True)
    ]


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
    reasons: Sequence[Caveat | str] = (),
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


def inefficacy_chart(rows: Sequence[InefficacyRow], *, cost: float, unit: str) -> Chart:
    """Bounds on the attacker's expected cost as one band for each method, and its value without attack."""
    check_rows(rows, InefficacyRow)
    tones = (Tone.BLUE, *TONES)
    methods = list(dict.fromkeys(row["method"] for row in rows))
    series: list[Series] = []
    for place, method in enumerate(methods):
        own = sorted((row for row in rows if row["method"] == method), key=lambda row: row["k"])
        series.append(
            Band(
                label=method,
                xs=numbers([row["k"] for row in own]),
                ys=numbers([row["lower"] for row in own]),
                highs=numbers([row["upper"] for row in own]),
                tone=tones[place % len(tones)],
            )
        )
    sizes = sorted({row["k"] for row in rows})
    clean = numbers([cost] * len(sizes))
    series.append(Line(label="without attack", xs=numbers(sizes), ys=clean, tone=Tone.INK, dashed=True))
    return Chart(
        name="inefficacy",
        title="The attacker's expected cost",
        description=f"Whatever {unit}s are poisoned, the expected cost stays within the band.",
        x_label=f"poisoned {unit}s k",
        y_label="attacker's expected cost",
        series=tuple(series),
    )
