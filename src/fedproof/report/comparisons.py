"""Pages of many runs beside each other: of a sweep over ε, and of mechanisms on the same data."""

import math
from collections.abc import Sequence
from itertools import cycle
from pathlib import Path

from fedproof.report.chart import Chart, Line, Mark, Points, Tone, check_rows, toned
from fedproof.report.page import Markup, join, note, section, table, tag, write_simple_page
from fedproof.report.svg import figure
from fedproof.report.words import (
    NOT_PROVED,
    amount,
    chosen_size,
    data_size,
    duration,
    equation,
    of_whom,
    percent,
    percent_down,
    picked,
    plural,
    rounded_up,
    why_not,
)
from fedproof.statements import Statement, sentences
from fedproof.summary import ComparedRun, SweptRun
from fedproof.threat import changed_in_words


def certified_at(row: SweptRun | ComparedRun, size: int) -> float:
    """Certified accuracy of a row at a size."""
    return float(row.certified_accuracy.get(str(size), 0.0))


def _largest(rows: Sequence[SweptRun] | Sequence[ComparedRun]) -> int:
    """The largest size for which any row certifies anything."""
    sizes = (int(k) for row in rows for k, share in row.certified_accuracy.items() if share)
    return max(sizes, default=0)


def _cell(row: SweptRun | ComparedRun, size: int, top: SweptRun | ComparedRun | None) -> Markup | str:
    """Certified accuracy of a row at a size, bold if no row has more."""
    text = percent(certified_at(row, size))
    return tag("strong", text) if row is top else text


def _tests_of_users(rows: Sequence[SweptRun | ComparedRun]) -> list[Markup]:
    """That the page must not be published, where test inputs are users'."""
    if not any(row.tests_of_users for row in rows):
        return []
    return [note(f"This page must not be published: {Statement.of('tests-of-users').text}.")]


# --- a sweep ------------------------------------------------------------------------------------------------

_MOST_CURVES = 5


def write_sweep_page(rows: Sequence[SweptRun], path: Path, *, title: str = "Sweep") -> Path:
    """Write a page that compares the runs of a sweep; return its path."""
    chart, sizes = sweep_chart(rows), shown_sizes(rows)
    bold = (
        "Bold: the best run for that k, of those that prove something if any does. The figure marks the same."
    )
    remark = note(f"{bold} {' '.join(what_epsilon_is(rows))} {picked(len(rows))}")
    return write_simple_page(
        path,
        title,
        _sweep_headline(rows, sizes[len(sizes) // 2]),
        *_tests_of_users(rows),
        section("curves", chart.title, figure(chart)),
        section("rows", "Run by run", _sweep_table(rows, sizes), remark),
        section("soundness", "Can it be trusted?", _soundness([(_settings(row), row) for row in rows])),
    )


def what_epsilon_is(rows: Sequence[SweptRun]) -> list[str]:
    """Which ε stands in the table, and why it bounds nothing where it does not; nothing without privacy."""
    private = [row.spent for row in rows if row.spent is not None]
    if not private:
        return []
    return [f"ε is the paper's, of one model, for {of_whom(private[0])}.", *why_not(private)]


def shown_sizes(rows: Sequence[SweptRun]) -> list[int]:
    """At most five of the sizes that any run certifies, evenly spaced, zero among them."""
    largest = _largest(_proved(rows))
    count = min(_MOST_CURVES, largest + 1)
    return sorted({round(index * largest / max(count - 1, 1)) for index in range(count)})


def _proved(rows: Sequence[SweptRun]) -> Sequence[SweptRun]:
    """The runs that prove something; all of them where none does."""
    return [row for row in rows if row.sound] or rows


def spent(row: SweptRun) -> float:
    """ε of a run, infinite without privacy or where none holds."""
    return row.spent.epsilon if row.spent is not None and row.spent.holds else math.inf


def best_run(rows: Sequence[SweptRun], size: int) -> SweptRun | None:
    """The run with the highest certified accuracy at a size, the most private of equals; None if all 0.

    Of those that prove something; where none does, of all.
    """
    top = max(_proved(rows), key=lambda row: (certified_at(row, size), -spent(row)))
    return top if certified_at(top, size) > 0 else None


def sweep_chart(rows: Sequence[SweptRun]) -> Chart:
    """Certified accuracy over ε, one curve for each of some sizes, the best ε of each marked."""
    check_rows(rows)
    private = [row for row in _proved(rows) if row.spent is not None and row.spent.holds]
    sizes = shown_sizes(rows)
    if not private:
        return _without_privacy(rows, sizes)
    tops = {size: best_run(private, size) for size in sizes}
    tones = dict(zip(sizes, Tone, strict=False))
    points = [
        Points(label=f"best ε for k = {k}", xs=[spent(top)], ys=[certified_at(top, k)], tone=tones[k])
        for k, top in tops.items()
        if top is not None
    ]
    epsilons = sorted({spent(row) for row in private})
    middle = sizes[len(sizes) // 2]
    marked = [spent(top) for top in (tops[middle],) if top is not None]
    return Chart(
        name="sweep",
        title="Certified accuracy over ε",
        description=f"One curve for each of {len(sizes)} sizes over {len(epsilons)} privacy levels.",
        x_label="ε of one model (paper)",
        y_label="certified accuracy (share of the test inputs)",
        series=(*(_over_epsilon(private, size, tone) for size, tone in tones.items()), *points),
        marks=tuple(Mark(x=x, label=f"best for k = {middle}: ε = {rounded_up(x, 3)}") for x in marked),
        shares=True,
        logarithmic=epsilons[0] > 0 and epsilons[-1] >= 8 * epsilons[0],
        spent="x",
    )


def _without_privacy(rows: Sequence[SweptRun], sizes: Sequence[int]) -> Chart:
    """Where no run has an ε that holds: certified accuracy over k, one curve for each run."""
    most = range(max(sizes) + 1)
    lines = [
        Line(label=_settings(row), xs=most, ys=[certified_at(row, size) for size in most], tone=tone)
        for row, tone in zip(rows, cycle(Tone))
    ]
    return Chart(
        name="sweep",
        title="Certified accuracy over k",
        description=f"One curve for each of {len(rows)} runs; none of them has an ε that holds.",
        x_label="poisoned units k",
        y_label="certified accuracy (share of the test inputs)",
        series=tuple(lines),
        shares=True,
    )


def _over_epsilon(rows: Sequence[SweptRun], size: int, tone: Tone) -> Line:
    """Certified accuracy at a size over ε, the best of the runs with the same ε."""
    at: dict[float, float] = {}
    for row in sorted(rows, key=spent):
        at[spent(row)] = max(at.get(spent(row), 0.0), certified_at(row, size))
    label = f"k = {size}"
    return Line(label=label, short=label, xs=list(at), ys=list(at.values()), tone=tone)


def _sweep_headline(rows: Sequence[SweptRun], size: int) -> str:
    top, runs = best_run(rows, size), plural(len(rows), "run")
    if top is None:
        return f"None of {runs} certifies anything."
    verb = "are" if top.sound else "would be"
    private = "" if top.spent is None else f" ({equation(top.spent)})"
    return (
        f"{percent_down(certified_at(top, size))} of the test inputs {verb} certified at k = {size} "
        f"with {_settings(top)}{private}, the best of {runs}."
    )


def _sweep_table(rows: Sequence[SweptRun], sizes: Sequence[int]) -> Markup:
    keys = list(dict.fromkeys(key for row in rows for key in row.values))
    cells = [
        [
            *(str(row.values.get(key, "")) for key in keys),
            amount(row.spent, 4),
            percent(row.accuracy),
            *(_cell(row, size, best_run(rows, size)) for size in sizes),
        ]
        for row in sorted(rows, key=spent)
    ]
    return table([*keys, "ε (paper)", "Accuracy", *(f"k = {size}" for size in sizes)], cells)


def _settings(row: SweptRun) -> str:
    """The varied values, each by the last part of its key: the table has all of it."""
    names = ((key.rpartition(".")[2].replace("_", " "), value) for key, value in row.values.items())
    return ", ".join(f"{name} {value}" for name, value in names)


# --- mechanisms on the same data ----------------------------------------------------------------------------

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


def units_of(rows: Sequence[ComparedRun]) -> list[str]:
    """What the rows certify, users before instances."""
    return sorted({row.unit for row in rows}, reverse=True)


def compare_charts(rows: Sequence[ComparedRun]) -> list[Chart]:
    """Certified accuracy over k, one figure for each unit: a poisoned user is not a poisoned instance."""
    check_rows(rows)
    tone = toned(row.name for row in rows)
    charts = []
    for unit in units_of(rows):
        own = [row for row in rows if row.unit == unit and row.certified_accuracy]
        charts.append(
            Chart(
                name=f"compare-{unit}",
                title=f"Certified accuracy over poisoned {unit}s",
                description=f"One curve for each of {len(own)} ways to certify; dashed: what is not proved.",
                x_label=f"poisoned {unit}s k",
                y_label="certified accuracy",
                series=tuple(_line(row, tone[row.name]) for row in own),
                shares=True,
            )
        )
    return charts


def _line(row: ComparedRun, tone: Tone) -> Line:
    sizes = sorted(map(int, row.certified_accuracy))
    private = "" if row.one is None else f", {equation(row.one)}"
    proved = "" if row.sound or row.certificate == "paper" else f", {NOT_PROVED}"
    return Line(
        label=label_of(row) + private + proved,
        xs=sizes,
        ys=[certified_at(row, size) for size in sizes],
        tone=tone,
        dashed=not row.sound,
    )


def table_sizes(rows: Sequence[ComparedRun]) -> list[int]:
    """Sizes for the columns of a table: 1, 2, 5, 10, 20, … as far as any row certifies."""
    steps = [factor * 10**power for power in range(7) for factor in (1, 2, 5)]
    return [size for size in steps if size <= max(_largest(rows), 1)]


def write_compare_page(
    rows: Sequence[ComparedRun], path: Path, *, sizes: Sequence[int] | None = None, title: str = "Comparison"
) -> Path:
    """Write a page that compares mechanisms; return its path. `sizes` are columns of the table."""
    charts = compare_charts(rows)
    shown = table_sizes(rows) if sizes is None else list(sizes)
    bold = "Bold: the most of all proved rows of that unit."
    remark = note(f"{bold} {_COUNTED} {picked(len({row.name for row in rows}))}")
    return write_simple_page(
        path,
        title,
        headline(rows),
        *_tests_of_users(rows),
        *(section(chart.name, chart.title, figure(chart)) for chart in charts),
        section("rows", "Row by row", _table(rows, shown), remark),
        section("published", "What is published, and what a user sends", _published(rows)),
        section("soundness", "Can it be trusted?", _soundness([(label_of(row), row) for row in rows])),
    )


def headline(rows: Sequence[ComparedRun]) -> str:
    """Which row certifies most, at the size that the best one still certifies well."""
    unit = units_of(rows)[0]
    proved = [row for row in rows if row.sound and row.unit == unit and row.certified_accuracy]
    size = max((chosen_size(row.certified_accuracy) for row in proved), default=0)
    top = best(rows, unit, size)
    if top is None:
        return f"None of {plural(len(rows), 'row')} proves anything."
    share = percent_down(certified_at(top, size))
    return f"At k = {size} poisoned {unit}s, {label_of(top)} certifies most: {share} of the test inputs."


def best(rows: Sequence[ComparedRun], unit: str, size: int) -> ComparedRun | None:
    """The proved row of a unit with the highest certified accuracy at a size; None if all certify nothing."""
    proved = [row for row in rows if row.sound and row.unit == unit]
    top = max(proved, key=lambda row: certified_at(row, size), default=None)
    return top if top is not None and certified_at(top, size) > 0 else None


def _table(rows: Sequence[ComparedRun], sizes: Sequence[int]) -> Markup:
    header = ["Mechanism", "Unit", "ε", "Accuracy", *(f"k = {size}" for size in sizes), "Time", "Sent up"]
    cells = [
        [
            label_of(row),
            row.unit,
            amount(row.one),
            percent(row.accuracy),
            *(_cell(row, size, best(rows, row.unit, size)) for size in sizes),
            duration(row.seconds),
            data_size(row.bytes),
        ]
        for row in rows
    ]
    return table(header, cells)


def _published(rows: Sequence[ComparedRun]) -> Markup:
    cells = [(label_of(row), *published(row)) for row in rows]
    remark = note(OTHER_RELATION) if any(row.other_relation for row in rows) else ""
    void = why_not([row.published for row in rows if row.published is not None])
    return tag("div", table(PUBLISHED, cells), remark, *map(note, void))


def published(row: ComparedRun) -> tuple[str, ...]:
    """The predictor, ε of everything that is published with its relation, and what one user sends."""
    relation = "–" if row.published is None else changed_in_words(row.published.relation)
    sent = "–"
    if row.uploads_per_user is not None and row.bytes_per_user is not None:
        sent = (
            f"{row.uploads_per_user:.3g} × {data_size(row.bytes_per_user / max(row.uploads_per_user, 1e-9))}"
        )
    return row.predictor or "–", amount(row.published), relation, amount(row.replaced), sent


def _soundness(rows: Sequence[tuple[str, SweptRun | ComparedRun]]) -> Markup:
    """Which named rows are proofs, and why the others are none."""
    proved = [name for name, row in rows if row.sound]
    first = tag("p", tag("strong", "Proved: "), ", ".join(proved) or "none", ".")
    items = (
        tag("li", tag("strong", name), ": ", "; ".join(sentences(row.unmet)), ".")
        for name, row in rows
        if not row.sound
    )
    return tag("div", first, tag("ul", join(items)), class_="box sound" if proved else "box heuristic")
