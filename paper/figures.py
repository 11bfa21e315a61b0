"""The figures of the page, drawn from rows alone; one file for each panel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np

from fedproof.report.chart import new_figure, save_figure
from fedproof.threat import Relation
from paper.inefficacy import VIEWS, View
from paper.names import display_name, label_of
from paper.results import AS_PRINTED, Clean, CostCell, Dopamine, Needed, Renyi
from paper.rows import MeasuredRow, of_kind
from paper.shown import RELATIONS, Shown

Way = tuple[str, str | None, bool]
"""Method, relation and whether with confidence, as `Clean.curve` takes them."""


@dataclass(frozen=True, kw_only=True)
class _Picture:
    """One of the pictures of a panel: a solid line for each row, and another one in a style."""

    title: str
    solid: Way
    other: Way
    style: str

    @property
    def relation(self) -> Relation | None:
        return None if self.solid[1] is None else Relation(self.solid[1])


def _ours(relation: Relation) -> _Picture:
    """The default of fedproof, and the curve of mean confidences; both with confidence."""
    title = f"fedproof, adversaries {relation}"
    return _Picture(title=title, solid=("margin", relation, True), other=("mean", relation, True), style="--")


_PICTURES = (
    _Picture(
        title="the paper's formula", solid=("paper", None, False), other=("paper", None, True), style=":"
    ),
    *map(_ours, RELATIONS),
    _Picture(
        title="the paper's formula,\nat its printed ε",
        solid=(AS_PRINTED, None, False),
        other=(AS_PRINTED, None, True),
        style=":",
    ),
)
_STYLES = {
    "-": "the formula, without confidence; fedproof's default",
    ":": "the formula, with confidence",
    "--": "fedproof, by mean confidences",
}
_COLUMNS = {"certified": 3}  # of the legend
_FEW = 12  # points of a line that are marked one by one
_SEEN = 0.01  # of the largest value: differences below it are not seen
MARK = "†"  # of certificates that are no proof


def draw_panel(shown: Shown, path: Path) -> bool:
    """Draw a panel's rows into `path`; False where there is nothing to draw."""
    drawers: dict[str, Callable[[Any, Shown], None]] = {
        "certified": _certified,
        "attacked": _attacked,
        "costs": _attacked,
        "needed": _needed,
        "dopamine": _dopamine,
        "renyi": _renyi,
    }
    measure = shown.panel.measure
    if measure not in drawers or not shown.rows:
        return False
    several = measure == "costs" and len(measured_views(shown.rows)) > 1
    wide = several or measure in ("certified", "dopamine", "renyi")
    with new_figure((9.0 if wide else 6.0, 6.4 if several else 3.6)) as figure:
        figure.suptitle(shown.title, fontsize=11)
        drawers[measure](figure, shown)
        if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
            figure.legend(
                loc="outside lower center",
                ncols=_COLUMNS.get(measure, 4 if wide else 2),
                fontsize=8,
                frameon=False,
            )
        save_figure(figure, path)
    return True


def _certified(figure: Any, shown: Shown) -> None:
    """The paper's formula, without confidence and with it; our certificates, with confidence alone."""
    found = [(row, result) for row, result in of_kind(shown.rows, Clean) if result.curves]
    # Cohorts of a fixed size have no curve for adversaries that join.
    pictures = [one for one in _PICTURES if any(result.curve(*one.solid) for _, result in found)]
    drawn = figure.subplots(1, len(pictures), sharey=True, squeeze=False)[0]
    for axes, picture in zip(drawn, pictures, strict=True):
        relation = picture.relation
        unproved = [relation is not None and bool(shown.unproved(row, relation)) for row, _ in found]
        for (row, result), colour in zip(found, colours(len(found)), strict=True):
            mark = MARK if all(shown.unproved(row, one) for one in RELATIONS) else ""
            label = label_of(row) + mark if axes is drawn[0] else None
            for way, style in ((picture.solid, "-"), (picture.other, picture.style)):
                ys = result.curve(*way)
                look = {"color": colour, "linewidth": 1.4, "label": label if style == "-" else None}
                # Few steps: between two whole numbers nothing is certified.
                axes.plot(range(len(ys)), ys, style, marker="." if len(ys) <= _FEW else "", **look)
        heuristic = "\nheuristic" if all(unproved) else f"\n{MARK} heuristic" if any(unproved) else ""
        axes.set(xlabel=f"k ({shown.units})", title=f"{picture.title}{heuristic}", ylim=(0, 1))
        axes.title.set_fontsize(9)
        axes.xaxis.get_major_locator().set_params(integer=True)
    for style, name in _STYLES.items():
        drawn[0].plot([], [], style, color="0.3", linewidth=1.4, label=name)
    drawn[0].set_ylabel("certified accuracy")
    drawn[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


@dataclass(frozen=True, kw_only=True)
class _Series:
    """What one attack achieves along the axis of a figure, and the bounds on it."""

    label: str
    colour: Any
    xs: list[float]
    found: list[CostCell]

    @property
    def tight(self) -> list[float] | None:
        """Our lower bound at every point, or None where one has none."""
        return _known([one.lower for one in self.found])

    @property
    def paper(self) -> list[float] | None:
        """The paper's lower bound likewise."""
        return _known([one.paper_lower for one in self.found])


def _known(values: Sequence[float | None]) -> list[float] | None:
    return None if None in values else [round(value, 4) for value in values if value is not None]


def _attacked(figure: Any, shown: Shown) -> None:
    """The attacker's cost over k, or over ε where one k was attacked, above its bounds; a picture a cost."""
    rows = shown.rows
    views = measured_views(rows)
    pictures = figure.subplots(*((2, 2) if len(views) > 2 else (1, len(views))), squeeze=False).ravel()
    drawn = [_over_epsilon(rows, view) or _over_size(rows, view) for view in views]
    alike = all(map(_alike, drawn))  # in every picture: they have one legend
    for axes, view, series in zip(pictures, views, drawn, strict=True):
        axes.set_xlabel("ε (paper)" if _one_size(rows) else f"k ({shown.units})")
        if not _one_size(rows):
            axes.xaxis.get_major_locator().set_params(integer=True)
        first = axes is pictures[0]
        for one, marker in zip(series, cycle("os^Dv"), strict=False):
            costs = [cost.attacked for cost in one.found]
            # Hollow and of different shapes: costs are often equal.
            look = {"color": one.colour, "markerfacecolor": "none", "markersize": 7}
            axes.plot(one.xs, costs, marker, label=f"J(D'), {one.label}" if first else None, **look)
        _clean(axes, series, named=first)
        _bounds(axes, series, alike=alike, named=first)
        axes.set(ylabel="attacker's cost", ylim=(0, None))
        if len(views) > 1:
            axes.set_title(view.name, fontsize=9)


def measured_views(rows: Sequence[MeasuredRow]) -> list[View]:
    """The costs that every attack of the rows was measured by."""
    cells = [(row, one) for row in rows for one in row.attacks]
    return [view for view in VIEWS if all(view.of(row, one) is not None for row, one in cells)]


def _one_size(rows: Sequence[MeasuredRow]) -> bool:
    """Whether every attack was tried with one number of units, at several ε."""
    return len(rows) > 1 and all(
        [one.attack for one in row.attacks].count(name) == 1
        for row in rows
        for name in {one.attack for one in row.attacks}
    )


def _costs(row: MeasuredRow, name: str, view: View) -> list[CostCell]:
    found = (view.of(row, one) for one in row.attacks if one.attack == name)
    return [one for one in found if one is not None]


def _over_size(rows: Sequence[MeasuredRow], view: View) -> list[_Series]:
    found = [(row, name) for row in rows for name in dict.fromkeys(one.attack for one in row.attacks)]
    return [
        _Series(
            label=f"{display_name(name)}, {label_of(row)}".rstrip(", "),
            colour=colour,
            xs=[one.adversaries for one in row.attacks if one.attack == name],
            found=_costs(row, name, view),
        )
        for (row, name), colour in zip(found, colours(len(found)), strict=True)
    ]


def _over_epsilon(rows: Sequence[MeasuredRow], view: View) -> list[_Series]:
    """None where several numbers of units were tried."""
    if not _one_size(rows):
        return []
    names = dict.fromkeys(one.attack for row in rows for one in row.attacks)
    return [
        _Series(
            label=display_name(name),
            colour=colour,
            xs=[row.paper_epsilon or 0.0 for row in rows if _costs(row, name, view)],
            found=[one for row in rows for one in _costs(row, name, view)],
        )
        for name, colour in zip(names, colours(len(names)), strict=True)
    ]


def _clean(axes: Any, series: Sequence[_Series], named: bool) -> None:
    """The cost without attack: once where it is the same for all."""
    costs = [tuple(round(cost.clean, 4) for cost in one.found) for one in series]
    alike = len(set(costs)) == 1
    for one, values in list(zip(series, costs, strict=True))[: 1 if alike else None]:
        colour = "#555555" if alike else one.colour
        axes.plot(one.xs, values, ":", color=colour, linewidth=1.2, gid="clean")
    if named:
        axes.plot([], [], ":", color="#555555", linewidth=1.2, label="J(D), without attack")


def _alike(series: Sequence[_Series]) -> bool:
    """Whether the bounds are the same for all, as far as a picture shows."""
    same_places = all(one.xs == series[0].xs for one in series)
    return (
        same_places and _together([one.tight for one in series]) and _together([one.paper for one in series])
    )


def _together(every: Sequence[list[float] | None]) -> bool:
    """Whether nobody sees a difference between the curves, which are over the same places."""
    known = [values for values in every if values is not None]
    if len(known) < len(every):
        return not known
    return float(np.ptp(known, axis=0).max()) <= _SEEN * float(np.max(known))


def _bounds(axes: Any, series: Sequence[_Series], *, alike: bool, named: bool) -> None:
    """Both lower bounds: once where they are the same for all, else for each in its own colour."""
    styles = (
        ("our lower bound, 99 %", "-", "#0072B2"),
        ("the paper's lower bound", "-" if alike else "--", "#D55E00"),
    )
    for one in series[:1] if alike else series:
        for values, (label, style, colour) in zip((one.tight, one.paper), styles, strict=True):
            if values is not None:
                drawn = {
                    "color": colour if alike else one.colour,
                    "label": label if alike and named else None,
                }
                axes.plot(one.xs, values, style, linewidth=1.8, **drawn)
    if not alike and named:
        for label, style, _ in styles:
            axes.plot([], [], style, color="#555555", linewidth=1.8, label=label)


def _needed(figure: Any, shown: Shown) -> None:
    axes = figure.subplots()
    for (row, result), colour in zip(of_kind(shown.rows, Needed), colours(len(shown.rows)), strict=True):
        for units, style, label in ((result.tight, "-", label_of(row)), (result.paper, ":", None)):
            pairs = [(tau, k) for tau, k in zip(result.taus, units, strict=True) if k is not None]
            axes.plot(*zip(*pairs, strict=True), style, color=colour, linewidth=1.4, label=label)
    axes.set(xlabel="τ (dotted: the paper's bound)", ylabel=f"{shown.units} needed", ylim=(0, None))


def _dopamine(figure: Any, shown: Shown) -> None:
    curves = next(result for _, result in of_kind(shown.rows, Dopamine)).curves
    for axes, one in zip(figure.subplots(1, len(curves), sharey=True), curves, strict=True):
        for (name, values), colour in zip(one.named.items(), ("#0072B2", "#D55E00"), strict=True):
            axes.plot(one.rounds, values, color=colour, label=name if one is curves[0] else None)
        axes.set(xlabel="round", title=f"{one.cohort} of 30 users", ylim=(0, None))
    figure.axes[0].set_ylabel("ε (paper)")


def _renyi(figure: Any, shown: Shown) -> None:
    found = next(result for _, result in of_kind(shown.rows, Renyi))
    for axes, one in zip(figure.subplots(1, len(found.curves)), found.curves, strict=True):
        for (name, sizes), colour in zip(one.sizes.items(), colours(len(one.sizes)), strict=True):
            label = name if one is found.curves[0] else None
            axes.step(found.shares, sizes, where="post", color=colour, linewidth=1.4, label=label)
        axes.set(xlabel="share of the votes", title=one.training, yscale="symlog", ylim=(0, None))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.title.set_fontsize(9)
    figure.axes[0].set_ylabel("certified users")


def colours(count: int) -> list[Any]:
    """As many colours as there are lines, from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * index / max(1, count - 1)) for index in range(count)]
