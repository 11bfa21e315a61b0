"""Pages of what attacks achieve beside what is certified, and of bounds on what they cost the attacker."""

import math
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from fedproof.certificates import Bound, Inefficacy
from fedproof.certificates.certificate import CostSettings
from fedproof.certificates.soundness import executed
from fedproof.report.chart import Band, Chart, Line, Points, Series, Tone, check_rows, toned
from fedproof.report.page import (
    Markup,
    bullets,
    details,
    join,
    note,
    section,
    soundness_box,
    table,
    tag,
    write_simple_page,
)
from fedproof.report.svg import figure
from fedproof.report.words import (
    NOT_PROVED,
    at_least,
    at_most,
    confidence,
    needed_units,
    number,
    percent,
    percent_down,
    plural,
)
from fedproof.robustness import AttackRow
from fedproof.statements import sentences

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
    rows: Sequence[AttackRow], path: Path, *, unit: str = "user", cost_bound: float | None = None
) -> Path:
    """Write a page that sets what attacks achieved beside what is certified; return its path.

    `unit` is what one poisoned unit is, `cost_bound` the largest cost there is, where it is known.
    """
    check_rows(rows)
    parts = [section(chart.name, chart.title, figure(chart)) for chart in attack_charts(rows, unit=unit)]
    warnings = map(note, saturated(rows, cost_bound) if cost_bound is not None else ())
    parts.append(section("rows", "Attack by attack", *_tables(rows), *warnings, _meanings(unit)))
    unmet = tuple(dict.fromkeys(statement for row in rows for statement in row.unmet))
    return write_simple_page(path, "Attacks", verdict(rows), *parts, soundness_box(unmet))


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
        proved = all(row.sound for row in rows)
        label = "certified, at least" if proved else NOT_PROVED
        yield Line(label=label, xs=xs, ys=ys, tone=Tone.BLUE, strong=True, dashed=not proved)


def _cost_bands(rows: Sequence[AttackRow]) -> Iterator[Series]:
    """One band if all attacks have the same bounds, else one for each: attackers differ in their goals."""
    known = [(row, *row.certified_cost) for row in rows if row.certified_cost is not None]
    bounds = {(row.adversaries, low, high) for row, low, high in known}
    if bounds and len({k for k, _, _ in bounds}) == len(bounds):
        yield _band(_named(rows), bounds, Tone.BLUE)
        return
    for attack, tone in _tones(row for row, _, _ in known):
        own = {(row.adversaries, low, high) for row, low, high in known if row.attack == attack}
        yield _band(f"{attack}, {_named(rows)}", own, tone)


def _named(rows: Sequence[AttackRow]) -> str:
    """What bounds are called: nothing is certified where a condition is not met."""
    return "certified" if all(row.sound for row in rows) else NOT_PROVED


def _band(label: str, bounds: set[tuple[int, float, float]], tone: Tone) -> Band:
    xs, low, high = zip(*sorted(bounds), strict=True)
    return Band(label=label, xs=xs, ys=low, highs=high, tone=tone)


def _points(rows: Sequence[AttackRow], key: str) -> Iterator[Series]:
    for attack, tone in _tones(rows):
        own = [row for row in rows if row.attack == attack]
        xs, ys = [row.adversaries for row in own], [getattr(row, key) for row in own]
        yield Points(label=attack, xs=xs, ys=ys, tone=tone)


def _tones(rows: Iterable[AttackRow]) -> Iterable[tuple[str, Tone]]:
    """The attacks in their order, each with its colour; blue is the certificate's."""
    return toned((row.attack for row in rows), tuple(Tone)[1:]).items()


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
                "–" if row.certified_accuracy is None else f"≥ {percent_down(row.certified_accuracy)}",
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
                "–" if row.certified_lower is None else at_least(row.certified_lower),
                "–" if row.certified_upper is None else at_most(row.certified_upper),
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


# --- attack inefficacy: what poisoned units can make of the expected cost at most ---------------------------


def write_inefficacy_page(result: Inefficacy, path: Path) -> Path:
    """Write a page of certified bounds on the attacker's expected cost; return its path."""
    settings, chart = result.settings, inefficacy_chart(result)
    unit, tau, most = settings.threat.unit, settings.tau, settings.cost_bound
    verb, reach = (
        ("multiply", f"at least {number(-most)}")
        if settings.negative
        else ("divide", f"at most {number(most)}")
    )
    sentence = f"Without attack the expected cost is {number(result.cost)} of {reach}."
    parts = [section("bounds", chart.title, figure(chart, remark=note(_how_sure(settings))))]
    if tau is not None:
        needed = "more than searched"
        if result.needed is not None:
            # A hair above a whole number is what rounding made of it.
            whole = math.ceil(result.needed * (1 - 1e-9) - 1e-9)
            needed, least = needed_units(result.needed), plural(whole, unit)
            sentence += f" To {verb} it by {number(tau)}, an attack needs {least} at least."
        found = table(("Method", f"Poisoned {unit}s"), [(settings.method, needed)])
        parts.append(section("needed", f"Adversaries needed to {verb} the cost by {number(tau)}", found))
    return write_simple_page(path, "Attack inefficacy", sentence, *parts, _soundness(result))


def _how_sure(settings: CostSettings) -> str:
    """With which chance all of the bounds hold."""
    if settings.bound is Bound.NONE:
        return "The mean over the replicas is taken as exact."
    return f"All bounds together hold with {confidence(settings.failure_probability)} confidence."


def _soundness(result: Inefficacy) -> Markup:
    """Whether it is a proof if the training was what it is taken to have been, and what that is."""
    settings = result.settings
    source = settings.mechanism or settings.privacy
    assert source is not None, "checked by the settings"
    training = executed(source, settings.threat, replicas=result.num_replicas)
    taken = tag("p", f"Taken to have been executed: {training}.") if result.unmet else ""
    granted = details("What is taken for granted", bullets(sentences(result.assumptions)))
    return soundness_box(result.unmet, training=training, more=join([taken, granted]))


def inefficacy_chart(result: Inefficacy) -> Chart:
    """Bounds on the attacker's expected cost as a band, and its value without attack."""
    unit, rows = result.settings.threat.unit, zip(result.sizes, result.lower, result.upper, strict=True)
    sizes, lows, highs = zip(*sorted(rows), strict=True)
    clean = [result.cost] * len(sizes)
    label = f"{result.settings.method}{'' if result.sound else f', {NOT_PROVED}'}"
    return Chart(
        name="inefficacy",
        title="The attacker's expected cost",
        description=f"Whatever {unit}s are poisoned, the expected cost stays within the band.",
        x_label=f"poisoned {unit}s k",
        y_label="attacker's expected cost",
        series=(
            Band(label=label, xs=sizes, ys=lows, highs=highs, tone=Tone.BLUE),
            Line(label="without attack", xs=sizes, ys=clean, tone=Tone.INK, dashed=True),
        ),
    )
