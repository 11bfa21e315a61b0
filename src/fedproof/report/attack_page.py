"""The page of attacks: what is certified as bands and curves, what attacks achieved as points."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from fedproof.report.chart import TONES, Band, Chart, Line, Points, Series, Tone, check_rows, numbers
from fedproof.report.page import Markup, section, soundness_box, table, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import number, percent, plural


class AttackRow(TypedDict):
    """One poisoned training beside what is certified, as `fedproof.attacks.evaluate.Row.values()` gives it.

    Attributes:
        attack: its name.
        adversaries: number k of poisoned units.
        accuracy: of the ensemble under attack.
        cost: the attacker's expected cost J(D') under attack.
        certified_accuracy: share of the inputs certified for k and correct; None where nothing is certified.
        certified_lower: certified bounds on J(D'); None where nothing is certified.
        certified_upper: likewise.
        clean_accuracy: without attack.
        holds_on_certified: whether no certified prediction was changed, beyond Monte-Carlo error.
        holds_on_cost: whether the cost lies within its bounds, up to Monte-Carlo error.
        reasons: why the bounds are only heuristic, joined by "; "; empty if they are sound.
    """

    attack: str
    adversaries: int
    accuracy: float
    cost: float
    certified_accuracy: float | None
    certified_lower: float | None
    certified_upper: float | None
    clean_accuracy: NotRequired[float]
    holds_on_certified: NotRequired[bool | None]
    holds_on_cost: NotRequired[bool | None]
    reasons: NotRequired[str | Sequence[str]]


def write_attack_page(
    rows: Sequence[Mapping[str, Any]], path: Path, *, title: str = "Attacks", unit: str = "user"
) -> Path:
    """Write a page that sets what attacks achieved beside what is certified; return its path.

    Args:
        rows: one for each attack and number of poisoned units, see `AttackRow`.
        path: the file to write.
        title: what the page is called.
        unit: what one poisoned unit is.
    """
    check_rows(rows, AttackRow)
    charts = attack_charts(rows, unit=unit)
    parts = [section(chart.name, chart.title, figure(chart)) for chart in charts]
    parts.append(section("rows", "Attack by attack", _table(rows, unit)))
    return write_simple_page(path, title, verdict(rows), *parts, soundness_box(_reasons(rows)))


def verdict(rows: Sequence[Mapping[str, Any]]) -> str:
    """Whether the attacks stayed within what is certified, in one sentence."""
    known = [row for row in rows if row["certified_lower"] is not None]
    if not known:
        return f"{plural(len(rows), 'attack')}, and nothing is certified: there is no bound to hold."
    broken = sum(not holds(row) for row in known)
    if broken:
        return f"{broken} of {plural(len(known), 'attack')} went beyond what is certified."
    if len(known) == 1:
        return "The attack stayed within what is certified."
    return f"All {plural(len(known), 'attack')} stayed within what is certified."


def holds(row: Mapping[str, Any]) -> bool:
    """Whether an attack stayed within its bounds: as was tested against Monte-Carlo error, else as it is."""
    tested = [row[key] for key in ("holds_on_certified", "holds_on_cost") if row.get(key) is not None]
    if tested:
        return all(tested)
    within = row["certified_lower"] <= row["cost"] <= row["certified_upper"]
    return bool(within and row["accuracy"] >= (row["certified_accuracy"] or 0.0))


# --- figures ------------------------------------------------------------------------------------------------


def attack_charts(rows: Sequence[Mapping[str, Any]], *, unit: str = "user") -> tuple[Chart, Chart]:
    """Accuracy over a certified curve, and the attacker's cost over certified bands."""
    places = f"poisoned {unit}s k"
    accuracy = Chart(
        name="attack-accuracy",
        title="Accuracy under attack",
        description="Certified accuracy as a curve, the accuracy under each attack as points above it.",
        x_label=places,
        y_label="accuracy",
        series=(*_certified_accuracy(rows), *_points(rows, "accuracy")),
        shares=True,
    )
    cost = Chart(
        name="attack-cost",
        title="The attacker's cost",
        description="Certified bounds on the attacker's expected cost as bands, what it was as points.",
        x_label=places,
        y_label="attacker's expected cost",
        series=(*_cost_bands(rows), *_points(rows, "cost")),
    )
    return accuracy, cost


def _certified_accuracy(rows: Sequence[Mapping[str, Any]]) -> Iterator[Series]:
    known = {row["adversaries"]: row["certified_accuracy"] for row in rows}
    points = sorted((k, share) for k, share in known.items() if share is not None)
    if points:
        xs, ys = zip(*points, strict=True)
        yield Line(label="certified, at least", xs=numbers(xs), ys=numbers(ys), tone=Tone.BLUE, strong=True)


def _cost_bands(rows: Sequence[Mapping[str, Any]]) -> Iterator[Series]:
    """One band if all attacks have the same bounds, else one for each: attackers differ in their goals."""
    known = [row for row in rows if row["certified_lower"] is not None]
    bounds = {(row["adversaries"], row["certified_lower"], row["certified_upper"]) for row in known}
    if bounds and len({k for k, _, _ in bounds}) == len(bounds):
        yield _band("certified", bounds, Tone.BLUE)
        return
    for attack, tone in _tones(known):
        own = {
            (row["adversaries"], row["certified_lower"], row["certified_upper"])
            for row in known
            if row["attack"] == attack
        }
        yield _band(f"{attack}, certified", own, tone)


def _band(label: str, bounds: set[tuple[int, float, float]], tone: Tone) -> Band:
    xs, low, high = zip(*sorted(bounds), strict=True)
    return Band(label=label, xs=numbers(xs), ys=numbers(low), highs=numbers(high), tone=tone)


def _points(rows: Sequence[Mapping[str, Any]], key: str) -> Iterator[Series]:
    for attack, tone in _tones(rows):
        own = [row for row in rows if row["attack"] == attack]
        xs, ys = [row["adversaries"] for row in own], [row[key] for row in own]
        yield Points(label=attack, xs=numbers(xs), ys=numbers(ys), tone=tone)


def _tones(rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[str, Tone]]:
    """The attacks in their order, each with its colour."""
    names = dict.fromkeys(str(row["attack"]) for row in rows)
    for place, name in enumerate(names):
        yield name, TONES[place % len(TONES)]


# --- rows ---------------------------------------------------------------------------------------------------


def _table(rows: Sequence[Mapping[str, Any]], unit: str) -> Markup:
    header = (
        "Attack",
        f"Poisoned {unit}s",
        "Accuracy",
        "Certified",
        "Cost",
        "Certified cost",
        "Within bounds",
    )
    return table(header, map(_cells, rows))


def _cells(row: Mapping[str, Any]) -> tuple[object, ...]:
    certified, low = row["certified_accuracy"], row["certified_lower"]
    return (
        row["attack"],
        row["adversaries"],
        percent(row["accuracy"]),
        "–" if certified is None else f"≥ {percent(certified)}",
        number(row["cost"]),
        "–" if low is None else f"{number(low)} to {number(row['certified_upper'])}",
        "–" if low is None else "yes" if holds(row) else "no",
    )


def _reasons(rows: Sequence[Mapping[str, Any]]) -> tuple[str, ...]:
    """The reasons of all rows, each once."""
    found: dict[str, None] = {}
    for row in rows:
        given = row.get("reasons") or ()
        found |= dict.fromkeys(given.split("; ") if isinstance(given, str) else given)
    return tuple(found)
