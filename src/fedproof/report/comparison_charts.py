"""Figures of attacks, of attack inefficacy and of sweeps, from rows whose schema is written here."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict

from fedproof.report.chart import Band, Chart, Line, Mark, Points, Series, Tone, numbers
from fedproof.report.words import number

_TONES = (Tone.VERMILLION, Tone.GREEN, Tone.PURPLE, Tone.ORANGE, Tone.SKY, Tone.INK)
_MOST_CURVES = 5


class AttackRow(TypedDict):
    """One poisoned training: `attack` with `k` units reached `empirical`; what is certified for k units."""

    k: int
    attack: str
    empirical: float
    certified_lower: float
    certified_upper: float


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


def check_rows(rows: Sequence[Mapping[str, Any]], schema: type) -> None:
    """Raise ValueError unless there are rows, all with the keys of `schema`."""
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")
    for place, row in enumerate(rows):
        missing = [key for key in schema.__annotations__ if key not in row]
        if missing:
            raise ValueError(f"rows[{place}] has no {', '.join(missing)}")


# --- attacks ------------------------------------------------------------------------------------------------


def attack_chart(rows: Sequence[AttackRow], *, measure: str, unit: str) -> Chart:
    """The certified bounds as a band, each attack as points."""
    check_rows(rows, AttackRow)
    sizes = sorted({row["k"] for row in rows})
    lower = [min(row["certified_lower"] for row in rows if row["k"] == k) for k in sizes]
    upper = [max(row["certified_upper"] for row in rows if row["k"] == k) for k in sizes]
    bounds = Band(
        label="certified", xs=numbers(sizes), ys=numbers(lower), highs=numbers(upper), tone=Tone.BLUE
    )
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    series: list[Series] = [bounds]
    for place, attack in enumerate(attacks):
        own = [row for row in rows if row["attack"] == attack]
        series.append(
            Points(
                label=attack,
                xs=numbers([row["k"] for row in own]),
                ys=numbers([row["empirical"] for row in own]),
                tone=_TONES[place % len(_TONES)],
            )
        )
    return Chart(
        name="attack",
        title=f"{measure.capitalize()} under attack",
        description=f"Certified bounds on the {measure} as a band, {len(attacks)} attacks as points.",
        x_label=f"poisoned {unit}s k",
        y_label=measure,
        series=tuple(series),
        shares=_are_shares(measure, rows),
    )


def outside(rows: Sequence[AttackRow]) -> list[AttackRow]:
    """The measurements that lie outside of their certified bounds."""
    return [row for row in rows if not row["certified_lower"] <= row["empirical"] <= row["certified_upper"]]


def _are_shares(measure: str, rows: Sequence[AttackRow]) -> bool:
    return "accuracy" in measure and all(0 <= row["empirical"] <= 1 for row in rows)


# --- attack inefficacy --------------------------------------------------------------------------------------


def inefficacy_chart(rows: Sequence[InefficacyRow], *, cost: float, unit: str) -> Chart:
    """Bounds on the attacker's expected cost as one band for each method, and its value without attack."""
    check_rows(rows, InefficacyRow)
    tones = (Tone.BLUE, Tone.VERMILLION, Tone.GREEN)
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
    tones = (Tone.BLUE, *_TONES)
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
        y_label="share of the test inputs that keep their correct label",
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
