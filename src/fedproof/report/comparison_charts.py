"""Figures of attack inefficacy and of sweeps, from rows whose schema is written here."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fedproof.certificates import Inefficacy
from fedproof.report.chart import TONES, Band, Chart, Line, Mark, Points, Series, Tone, check_rows, numbers
from fedproof.report.words import number

_MOST_CURVES = 5


class InefficacyRow(TypedDict):
    """What `k` units can make of the attacker's expected cost at most, by one `method`."""

    k: int
    method: str
    lower: float
    upper: float


class SweepRow(TypedDict):
    """One run of a sweep: the `values` of the varied keys, and what came of them.

    `certified_accuracy` is keyed by the size as a text, as in `summary.json`; a size it does not hold is
    certified for no input.
    """

    values: Mapping[str, Any]
    epsilon: float
    accuracy: float
    certified_accuracy: Mapping[str, float]


# --- attack inefficacy --------------------------------------------------------------------------------------


def inefficacy_rows(*results: Inefficacy) -> list[InefficacyRow]:
    """Rows for the page from what `fedproof.inefficacy` returns."""
    return [
        InefficacyRow(k=k, method=str(result.settings.method), lower=lower, upper=upper)
        for result in results
        for k, lower, upper in zip(result.sizes, result.lower, result.upper, strict=True)
    ]


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


# --- sweeps -------------------------------------------------------------------------------------------------


def sweep_chart(rows: Sequence[SweepRow]) -> Chart:
    """Certified accuracy over ε, one curve for each of some sizes, the best ε of each marked."""
    check_rows(rows, SweepRow)
    sizes = shown_sizes(rows)
    tones = (Tone.BLUE, *TONES)
    lines = [_sweep_line(rows, size, tone) for size, tone in zip(sizes, tones, strict=False)]
    points = [_best_point(rows, size, tone) for size, tone in zip(sizes, tones, strict=False)]
    epsilons = sorted({row["epsilon"] for row in rows})
    return Chart(
        name="sweep",
        title="Certified accuracy over ε",
        description=f"One curve for each of {len(sizes)} sizes over {len(epsilons)} privacy levels.",
        x_label="ε of one model",
        y_label="certified accuracy (share of the test inputs)",
        series=(*lines, *(point for point in points if point is not None)),
        marks=_best_mark(rows, sizes[len(sizes) // 2]),
        shares=True,
        logarithmic=epsilons[0] > 0 and epsilons[-1] >= 8 * epsilons[0],
    )


def _sweep_line(rows: Sequence[SweepRow], size: int, tone: Tone) -> Line:
    """Certified accuracy at a size over ε, the best of the runs with the same ε."""
    at: dict[float, float] = {}
    for row in sorted(rows, key=lambda row: row["epsilon"]):
        at[row["epsilon"]] = max(at.get(row["epsilon"], 0.0), certified(row, size))
    label, xs, ys = f"k = {size}", numbers(list(at)), numbers(list(at.values()))
    return Line(label=label, short=label, xs=xs, ys=ys, tone=tone)


def _best_point(rows: Sequence[SweepRow], size: int, tone: Tone) -> Points | None:
    top = best(rows, size)
    if top is None:
        return None
    xs, ys = numbers([top["epsilon"]]), numbers([certified(top, size)])
    return Points(label=f"best ε for k = {size}", xs=xs, ys=ys, tone=tone)


def _best_mark(rows: Sequence[SweepRow], size: int) -> tuple[Mark, ...]:
    top = best(rows, size)
    if top is None:
        return ()
    return (Mark(x=top["epsilon"], label=f"best for k = {size}: ε = {number(top['epsilon'])}"),)


def shown_sizes(rows: Sequence[SweepRow]) -> list[int]:
    """At most five of the sizes that any run certifies, evenly spaced, zero among them."""
    largest = max(
        (int(k) for row in rows for k, share in row["certified_accuracy"].items() if share), default=0
    )
    count = min(_MOST_CURVES, largest + 1)
    return sorted({round(index * largest / max(count - 1, 1)) for index in range(count)})


def certified(row: SweepRow, size: int) -> float:
    """Certified accuracy of a run at a size."""
    return float(row["certified_accuracy"].get(str(size), 0.0))


def best(rows: Sequence[SweepRow], size: int) -> SweepRow | None:
    """The run with the highest certified accuracy at a size, the most private of equals; None if all 0."""
    top = max(rows, key=lambda row: (certified(row, size), -row["epsilon"]))
    return top if certified(top, size) > 0 else None
