"""The figures of the page, drawn from rows alone; one file for each panel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from fedproof.report.chart import new_figure, save_figure
from paper.rows import AttackCell, Clean, Dopamine, MeasuredRow, Needed, of_kind

WAYS = (
    ("the paper's formula", "paper", None),
    ("tight, adversaries join", "mean", "join"),
    ("tight, adversaries replace", "mean", "replace"),
)


def draw_panel(measure: str, title: str, rows: Sequence[MeasuredRow], path: Path) -> bool:
    """Draw a panel's rows into `path`; False where there is nothing to draw."""
    drawers: dict[str, Callable[[Any, Sequence[MeasuredRow]], None]] = {
        "certified": _certified,
        "attacked": _attacked,
        "needed": _needed,
        "dopamine": _dopamine,
    }
    if measure not in drawers or not rows:
        return False
    wide = measure in ("certified", "dopamine")
    with new_figure((9.0 if wide else 6.0, 3.6)) as figure:
        figure.suptitle(title, fontsize=11)
        drawers[measure](figure, rows)
        if any(axes.get_legend_handles_labels()[0] for axes in figure.axes):
            figure.legend(loc="outside lower center", ncols=4 if wide else 2, fontsize=7, frameon=False)
        save_figure(figure, path)
    return True


def label_of(row: MeasuredRow) -> str:
    """What tells a row from its neighbours: ε where the noise varies, else the varied values."""
    if set(row.values) == {"mechanism.noise_multiplier"} and row.paper_epsilon is not None:
        return f"ε = {row.paper_epsilon:.4g}"
    names = {"poison_fraction": "α", "scale": "γ", "noise_multiplier": "σ"}
    parts = {key.rpartition(".")[2]: value for key, value in row.values.items()}
    return ", ".join(f"{names.get(key, key)} = {value}" for key, value in parts.items())


def _certified(figure: Any, rows: Sequence[MeasuredRow]) -> None:
    """One picture for each way to certify the same scores; dotted: with confidence."""
    shown = [(row, result) for row, result in of_kind(rows, Clean) if result.curves]
    pictures = figure.subplots(1, len(WAYS), sharey=True)
    for axes, (title, method, relation) in zip(pictures, WAYS, strict=True):
        for (row, result), colour in zip(shown, colours(len(shown)), strict=True):
            for sure, style in ((False, "-"), (True, ":")):
                ys = result.curve(method, relation, sure)
                label = label_of(row) if axes is pictures[0] and not sure else None
                axes.plot(range(len(ys)), ys, style, color=colour, linewidth=1.4, label=label)
        axes.set(xlabel="k (dotted: with confidence)", title=title, ylim=(0, 1))
        axes.title.set_fontsize(9)
    pictures[0].set_ylabel("certified accuracy")
    pictures[0].yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")


@dataclass(frozen=True, kw_only=True)
class _Series:
    """What one attack achieves along the axis of a figure, and the bounds on it."""

    label: str
    colour: Any
    xs: list[float]
    found: list[AttackCell]

    @property
    def tight(self) -> list[float] | None:
        """Our lower bound at every point, or None where one has none."""
        return _known([one.certified_lower for one in self.found])

    @property
    def paper(self) -> list[float] | None:
        """The paper's lower bound likewise."""
        return _known([one.paper_lower_exact for one in self.found])


def _known(values: Sequence[float | None]) -> list[float] | None:
    return None if None in values else [round(value, 4) for value in values if value is not None]


def _attacked(figure: Any, rows: Sequence[MeasuredRow]) -> None:
    """The attacker's cost over k, or over ε where one k was attacked, above its bounds."""
    axes = figure.subplots()
    found = [
        (row, name, [one for one in row.attacks if one.attack == name])
        for row in rows
        for name in dict.fromkeys(one.attack for one in row.attacks)
    ]
    if all(len(attacks) == 1 for _, _, attacks in found) and len(rows) > 1:
        series = _over_epsilon(found)
        axes.set_xlabel("ε (paper)")
    else:
        series = _over_size(found)
        axes.set_xlabel("k")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for one, marker in zip(series, cycle("os^Dv"), strict=False):
        costs = [attack.cost for attack in one.found]
        # Hollow and of different shapes: costs are often equal.
        look = {"color": one.colour, "markerfacecolor": "none", "markersize": 7}
        axes.plot(one.xs, costs, marker, label=f"J(D'), {one.label}", **look)
    _bounds(axes, series)
    axes.set(ylabel="attacker's cost", ylim=(0, None))


def _over_size(found: Sequence[tuple[MeasuredRow, str, list[AttackCell]]]) -> list[_Series]:
    return [
        _Series(
            label=f"{name}, {label_of(row)}".rstrip(", "),
            colour=colour,
            xs=[one.adversaries for one in attacks],
            found=attacks,
        )
        for (row, name, attacks), colour in zip(found, colours(len(found)), strict=True)
    ]


def _over_epsilon(found: Sequence[tuple[MeasuredRow, str, list[AttackCell]]]) -> list[_Series]:
    names = dict.fromkeys(name for _, name, _ in found)
    return [
        _Series(
            label=name,
            colour=colour,
            xs=[row.paper_epsilon or 0.0 for row, one, _ in found if one == name],
            found=[attacks[0] for _, one, attacks in found if one == name],
        )
        for name, colour in zip(names, colours(len(names)), strict=True)
    ]


def _bounds(axes: Any, series: Sequence[_Series]) -> None:
    """Both lower bounds: once where they are the same for all, else for each in its own colour."""
    alike = all((one.tight, one.paper) == (series[0].tight, series[0].paper) for one in series)
    styles = (
        ("tight lower bound, 99 %", "-", "#0072B2"),
        ("the paper's lower bound", "-" if alike else "--", "#D55E00"),
    )
    for one in series[:1] if alike else series:
        for values, (label, style, colour) in zip((one.tight, one.paper), styles, strict=True):
            if values is not None:
                drawn = {"color": colour, "label": label} if alike else {"color": one.colour}
                axes.plot(one.xs, values, style, linewidth=1.8, **drawn)
    if not alike:
        for label, style, _ in styles:
            axes.plot([], [], style, color="#555555", linewidth=1.8, label=label)


def _needed(figure: Any, rows: Sequence[MeasuredRow]) -> None:
    axes = figure.subplots()
    for (row, result), colour in zip(of_kind(rows, Needed), colours(len(rows)), strict=True):
        for units, style, label in ((result.tight, "-", label_of(row)), (result.paper, ":", None)):
            pairs = [(tau, k) for tau, k in zip(result.taus, units, strict=True) if k is not None]
            axes.plot(*zip(*pairs, strict=True), style, color=colour, linewidth=1.4, label=label)
    axes.set(xlabel="τ (dotted: the paper's bound)", ylabel="units needed", ylim=(0, None))


def _dopamine(figure: Any, rows: Sequence[MeasuredRow]) -> None:
    curves = next(result for _, result in of_kind(rows, Dopamine)).curves
    for axes, one in zip(figure.subplots(1, len(curves), sharey=True), curves, strict=True):
        for (name, values), colour in zip(one.named.items(), ("#0072B2", "#D55E00"), strict=True):
            axes.plot(one.rounds, values, color=colour, label=name if one is curves[0] else None)
        axes.set(xlabel="round", title=f"{one.cohort} of 30 users", ylim=(0, None))
    figure.axes[0].set_ylabel("ε (paper)")


def colours(count: int) -> list[Any]:
    """As many colours as there are lines, from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * index / max(1, count - 1)) for index in range(count)]
