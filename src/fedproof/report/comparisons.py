"""Pages of many trainings beside each other: attacks, and mechanisms.

Of attacks: what is certified as bands and curves, what they achieved as points. Of mechanisms on the same
data: what they certify, and what each costs.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fedproof.mechanisms import Caveat
from fedproof.report.chart import TONES, Band, Chart, Line, Points, Series, Tone, numbers
from fedproof.report.page import Markup, details, join, section, soundness_box, table, tag, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import (
    chosen_size,
    data_size,
    duration,
    number,
    percent,
    picked,
    plural,
    rounded_up,
)
from fedproof.robustness import AttackRow
from fedproof.summary import ComparedRun

COLUMNS = {
    "k": "poisoned units",
    "accuracy": "share of the test inputs that the attacked ensemble labels correctly, as in run and compare",
    "certified": "share that is proved to keep its correct label whatever k units do",
    "success": "share of the attacker's inputs, those with the trigger of a backdoor, answered as it wants",
    "clean, cost": "the attacker's loss without and with the attack, on average over the replicas: minus the "
    "logarithm of the confidence in what it wants; of one released model the share of its inputs that are "
    "not answered as it wants",
    "at least, at most": "what k units can make of the cost, certified",
    "holds": "the attack stayed within what is certified, up to Monte-Carlo error",
}
"""What the columns of both tables mean."""

_HOLDS = {True: "yes", False: "no", None: "–"}
_SATURATED = 0.95  # of the bound: a larger mean says little about the attack


def write_attack_page(
    rows: Sequence[AttackRow],
    path: Path,
    *,
    title: str = "Attacks",
    unit: str = "user",
    cost_bound: float | None = None,
) -> Path:
    """Write a page that sets what attacks achieved beside what is certified; return its path.

    Args:
        rows: one for each attack and number of poisoned units.
        path: the file to write.
        title: what the page is called.
        unit: what one poisoned unit is.
        cost_bound: the largest cost there is, where it is known.
    """
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")
    charts = attack_charts(rows, unit=unit)
    parts = [section(chart.name, chart.title, figure(chart)) for chart in charts]
    warnings = saturated(rows, cost_bound) if cost_bound is not None else ()
    noted = (tag("p", sentence, class_="note") for sentence in warnings)
    parts.append(section("rows", "Attack by attack", *_tables(rows), *noted, _meanings(unit)))
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


def saturated(rows: Sequence[AttackRow], cost_bound: float) -> tuple[str, ...]:
    """Attacks whose cost is at its bound without attack already, so that it cannot show what they do."""
    found = dict.fromkeys(row.attack for row in rows if row.clean_cost >= _SATURATED * cost_bound)
    if not found:
        return ()
    return (
        f"without attack the cost of {', '.join(found)} is at its bound already, attack.cost_bound = "
        f"{cost_bound:g}, so it hardly shows what an attack does; try "
        f"--set attack.cost_bound={4 * cost_bound:g}",
    )


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


def _tables(rows: Sequence[AttackRow]) -> tuple[Markup, Markup]:
    """What the models answer, and what that costs the attacker."""
    answers = table(
        ("Attack", "k", "Accuracy", "Certified", "Success", "Holds"),
        [
            (
                row.attack,
                row.adversaries,
                percent(row.accuracy),
                "–" if row.certified_accuracy is None else f"≥ {percent(row.certified_accuracy)}",
                "–" if row.success is None else percent(row.success),
                _HOLDS[row.holds_on_certified],
            )
            for row in rows
        ],
        caption="What the models answer",
    )
    costs = table(
        ("Attack", "k", "Clean", "Cost", "At least", "At most", "Holds"),
        [
            (
                row.attack,
                row.adversaries,
                number(row.clean_cost),
                number(row.cost),
                *(("–", "–") if row.certified_cost is None else map(number, row.certified_cost)),
                _HOLDS[row.holds_on_cost],
            )
            for row in rows
        ],
        caption="What it costs the attacker",
    )
    return answers, costs


def _meanings(unit: str) -> Markup:
    listed = COLUMNS | {"k": f"poisoned {unit}s"}
    rows = [(name[:1].upper() + name[1:], meaning) for name, meaning in listed.items()]
    return details("What the columns mean", table(("Column", "Meaning"), rows))


def _caveats(rows: Sequence[AttackRow]) -> tuple[Caveat, ...]:
    """The caveats of all rows, each once."""
    return tuple(dict.fromkeys(caveat for row in rows for caveat in row.caveats))


# --- mechanisms ---------------------------------------------------------------------------------------------

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
        rows: of `fedproof.sweep.compare`.
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
