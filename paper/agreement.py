"""One sentence for each study: how far its rows agree with what the paper prints."""

import math
from collections.abc import Iterator, Sequence
from statistics import fmean

from paper.clean import CLOSE, Comparison, compare_clean
from paper.compared import UNDER
from paper.defences import DEFENCES, defended
from paper.inefficacy import once, saturated
from paper.printed import Printed
from paper.published import POINTS, Published
from paper.results import Budgets
from paper.rows import MeasuredRow, Rows, of_kind
from paper.shown import Shown
from paper.sizes import PANELS, best, sizes_of
from paper.study import Panel, Study


def agreement(study: Study, rows: Rows, published: Published, clean: Sequence[Comparison]) -> str:
    """The sentence; empty where the paper prints nothing that could be compared.

    `clean` are the accuracies of all studies: one may have trained as the paper did what another shows.
    """
    found = [(panel, Shown.of(study, panel, rows, {}).rows) for panel in study.panel]
    facts = [
        *_clean(study, rows, published, clean),
        *_best_epsilon(study, rows, published),
        *_defences(found, published),
        *_bounds(found),
        *_budgets(found),
    ]
    return "; ".join(facts)


def _clean(study: Study, rows: Rows, published: Published, clean: Sequence[Comparison]) -> Iterator[str]:
    own = {one.published for one in compare_clean([study], rows, published)}
    compared = [one for one in clean if one.published in own and not one.substitute]
    if compared:
        near = sum(one.close for one in compared)
        others = any(one.shown is not None and one.shown != one.measured for one in compared)
        apart = ", of models trained as there, which those in the tables below need not be" if others else ""
        yield f"{near} of {len(compared)} published clean accuracies are within {CLOSE} points{apart}"


def _best_epsilon(study: Study, rows: Rows, published: Published) -> Iterator[str]:
    """At which ε the paper's formula reaches furthest, there and here."""
    for name, (_, key) in PANELS.items():
        panels = [panel for panel in study.panel if key == f"{study.name}/{panel.name}"]
        found = sizes_of(rows, key)
        if panels and found and panels[0].substitute is None:
            yield (
                f"on {panels[0].title}: the largest K, {best(found)}, is reached at "
                f"ε = {best(found).epsilon:.4g}, in the paper at {published.best_epsilon(name):g}"
            )


def _defences(found: Sequence[tuple[Panel, Sequence[MeasuredRow]]], published: Published) -> Iterator[str]:
    differences = [
        one.ours - one.theirs
        for panel, rows in found
        if panel.published == DEFENCES
        for one in defended(rows, published)
        if one.theirs is not None
    ]
    if differences:
        near = sum(abs(one) <= CLOSE for one in differences)
        yield (
            f"{near} of {len(differences)} published accuracies under attack are within {CLOSE} points, "
            f"ours being {fmean(differences):+.1f} points on average"
        )


def _bounds(found: Sequence[tuple[Panel, Sequence[MeasuredRow]]]) -> Iterator[str]:
    every = [(row, one) for _, rows in found for row in rows for one in row.attacks]
    bounded = once([(row, one) for row, one in every if one.holds_on_cost is not None])
    if bounded:
        held = sum(bool(one.holds_on_cost and one.holds_on_certified) for _, one in bounded)
        full = sum(saturated(row, one) for row, one in bounded)
        trivial = f" ({full} of them trivially, the cost being at its bound before and after)" if full else ""
        yield f"{held} of {len(bounded)} attacked ensembles stay within what is certified{trivial}"


def _budgets(found: Sequence[tuple[Panel, Sequence[MeasuredRow]]]) -> Iterator[str]:
    for _, rows in found:
        for _, budgets in of_kind(rows, Budgets):
            yield f"{budgets.equal} of {len(budgets.rows)} values are equal to four decimals"


# --- every printed number -----------------------------------------------------------------------------------


def _shown_above(one: Printed) -> bool:
    """Points of the paper are in the tables of budgets and accuracies, attacks in those of the defences."""
    return one.ours is not None and (one.place[0] == POINTS or one.table.startswith(UNDER))


def _own(value: float | None) -> str:
    assert value is not None
    return "none" if math.isnan(value) else f"{value:.4g}"


def printed_section(found: Sequence[Printed]) -> Iterator[str]:
    """Per table how many numbers agree, every miss, and the numbers that no other section shows."""
    tables: dict[str, list[Printed]] = {}
    for one in found:
        tables.setdefault(one.table, []).append(one)
    yield "\n## Every printed number\n"
    yield (
        f"Accuracies count as the same within {CLOSE} points, ε to the digits printed, the ε of a largest K "
        "if no other of ours is nearer to the printed one, K if it is rounded to the printed number, "
        "settings if they are equal. Not compared is what is taken from the paper, or not trained yet.\n"
    )
    yield "| table | printed | the same | not the same | not compared | share |\n|---|---|---|---|---|---|"
    for table, entries in tables.items():
        counts = [sum(one.close is said for one in entries) for said in (True, False, None)]
        share = f"{counts[0] / (counts[0] + counts[1]):.0%}" if counts[0] + counts[1] else "-"
        yield f"| {table} | {len(entries)} | {' | '.join(map(str, counts))} | {share} |"
    yield "\n### Not the same\n"
    yield "| table | which | published | ours | why |\n|---|---|---|---|---|"
    for one in found:
        if one.close is False:
            cells = (one.what, f"{one.published:g}", _own(one.ours), one.why or "unexplained")
            yield f"| {one.table} | {' | '.join(cells)} |"
    yield "\n### Settings and other numbers, one by one\n"
    yield "| table | which | published | ours |\n|---|---|---|---|"
    for one in found:
        if not _shown_above(one):
            ours = one.why or "not trained yet" if one.ours is None else _own(one.ours)
            yield f"| {one.table} | {one.what} | {one.published:g} | {ours} |"
