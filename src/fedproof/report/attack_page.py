"""The page of attacks: what is certified as bands and curves, what attacks achieved as points."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from fedproof.mechanisms import Caveat
from fedproof.report.chart import TONES, Band, Chart, Line, Points, Series, Tone, numbers
from fedproof.report.page import Markup, section, soundness_box, table, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import number, percent, plural
from fedproof.robustness import AttackRow


def write_attack_page(
    rows: Sequence[AttackRow], path: Path, *, title: str = "Attacks", unit: str = "user"
) -> Path:
    """Write a page that sets what attacks achieved beside what is certified; return its path.

    Args:
        rows: one for each attack and number of poisoned units.
        path: the file to write.
        title: what the page is called.
        unit: what one poisoned unit is.
    """
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")
    charts = attack_charts(rows, unit=unit)
    parts = [section(chart.name, chart.title, figure(chart)) for chart in charts]
    parts.append(section("rows", "Attack by attack", _table(rows, unit)))
    return write_simple_page(path, title, verdict(rows), *parts, soundness_box(_caveats(rows)))


def verdict(rows: Sequence[AttackRow]) -> str:
    """Whether the attacks stayed within what is certified, in one sentence."""
    known = [row for row in rows if row.certified_cost is not None]
    if not known:
        return f"{plural(len(rows), 'attack')}, and nothing is certified: there is no bound to hold."
    broken = sum(not row.holds for row in known)
    if broken:
        return f"{broken} of {plural(len(known), 'attack')} went beyond what is certified."
    if len(known) == 1:
        return "The attack stayed within what is certified."
    return f"All {plural(len(known), 'attack')} stayed within what is certified."


# --- figures ------------------------------------------------------------------------------------------------


def attack_charts(rows: Sequence[AttackRow], *, unit: str = "user") -> tuple[Chart, Chart]:
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


def _certified_accuracy(rows: Sequence[AttackRow]) -> Iterator[Series]:
    known = {row.adversaries: row.certified_accuracy for row in rows}
    points = sorted((k, share) for k, share in known.items() if share is not None)
    if points:
        xs, ys = zip(*points, strict=True)
        yield Line(label="certified, at least", xs=numbers(xs), ys=numbers(ys), tone=Tone.BLUE, strong=True)


def _cost_bands(rows: Sequence[AttackRow]) -> Iterator[Series]:
    """One band if all attacks have the same bounds, else one for each: attackers differ in their goals."""
    known = [(row, *row.certified_cost) for row in rows if row.certified_cost is not None]
    bounds = {(row.adversaries, low, high) for row, low, high in known}
    if bounds and len({k for k, _, _ in bounds}) == len(bounds):
        yield _band("certified", bounds, Tone.BLUE)
        return
    for attack, tone in _tones([row for row, _, _ in known]):
        own = {(row.adversaries, low, high) for row, low, high in known if row.attack == attack}
        yield _band(f"{attack}, certified", own, tone)


def _band(label: str, bounds: set[tuple[int, float, float]], tone: Tone) -> Band:
    xs, low, high = zip(*sorted(bounds), strict=True)
    return Band(label=label, xs=numbers(xs), ys=numbers(low), highs=numbers(high), tone=tone)


def _points(rows: Sequence[AttackRow], key: str) -> Iterator[Series]:
    for attack, tone in _tones(rows):
        own = [row for row in rows if row.attack == attack]
        xs, ys = [row.adversaries for row in own], [getattr(row, key) for row in own]
        yield Points(label=attack, xs=numbers(xs), ys=numbers(ys), tone=tone)


def _tones(rows: Sequence[AttackRow]) -> Iterator[tuple[str, Tone]]:
    """The attacks in their order, each with its colour."""
    names = dict.fromkeys(row.attack for row in rows)
    for place, name in enumerate(names):
        yield name, TONES[place % len(TONES)]


# --- rows ---------------------------------------------------------------------------------------------------


def _table(rows: Sequence[AttackRow], unit: str) -> Markup:
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


def _cells(row: AttackRow) -> tuple[object, ...]:
    certified, bounds = row.certified_accuracy, row.certified_cost
    return (
        row.attack,
        row.adversaries,
        percent(row.accuracy),
        "–" if certified is None else f"≥ {percent(certified)}",
        number(row.cost),
        "–" if bounds is None else f"{number(bounds[0])} to {number(bounds[1])}",
        "–" if bounds is None else "yes" if row.holds else "no",
    )


def _caveats(rows: Sequence[AttackRow]) -> tuple[Caveat, ...]:
    """The caveats of all rows, each once."""
    return tuple(dict.fromkeys(caveat for row in rows for caveat in row.caveats))
