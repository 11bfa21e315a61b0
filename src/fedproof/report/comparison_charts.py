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
    ordered = sorted(rows, key=lambda row: row["epsilon"])
    sizes = shown_sizes(ordered)
    tones = (Tone.BLUE, *TONES)
    series: list[Series] = []
    for size, tone in zip(sizes, tones, strict=False):
        at = {row["epsilon"]: 0.0 for row in ordered}
        for row in ordered:
            at[row["epsilon"]] = max(at[row["epsilon"]], certified(row, size))
        label = f"k = {size}"
        series.append(
            Line(label=label, short=label, xs=numbers(list(at)), ys=numbers(list(at.values())), tone=tone)
        )
    for size, tone in zip(sizes, tones, strict=False):
        top = best(ordered, size)
        if top is not None:
            place = (numbers([top["epsilon"]]), numbers([certified(top, size)]))
            series.append(Points(label=f"best ε for k = {size}", xs=place[0], ys=place[1], tone=tone))
    middle = best(ordered, sizes[len(sizes) // 2])
    epsilons = [row["epsilon"] for row in ordered]
    return Chart(
        name="sweep",
        title="Certified accuracy over ε",
        description=f"One curve for each of {len(sizes)} sizes over {len(set(epsilons))} privacy levels.",
        x_label="ε of one model",
        y_label="certified accuracy (share of the test inputs)",
        series=tuple(series),
        marks=(
            Mark(
                x=middle["epsilon"],
                label=f"best for k = {sizes[len(sizes) // 2]}: ε = {number(middle['epsilon'])}",
            ),
        )
        if middle
        else (),
        shares=True,
        logarithmic=min(epsilons) > 0 and max(epsilons) >= 8 * min(epsilons),
    )


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
