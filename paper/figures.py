"""The figures of the page, drawn from rows alone; one file for each panel."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from fedproof.report.figures import new_figure, save_figure
from paper.rows import Row

WAYS = (
    ("the paper's formula", "paper", None),
    ("tight, adversaries join", "mean", "join"),
    ("tight, adversaries replace", "mean", "replace"),
)


def draw_panel(measure: str, title: str, rows: Sequence[Row], path: Path) -> bool:
    """Draw a panel's rows into `path`; False where there is nothing to draw."""
    drawers: dict[str, Callable[[Any, Sequence[Row]], None]] = {
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


def curve(row: Row, method: str, relation: str | None, sure: bool) -> list[float]:
    """Certified accuracy over k of one row; empty where it was not computed."""
    for found in row["result"].get("curves", ()):
        same = found["method"] == method and found["relation"] == relation
        if same and (found["failure_probability"] is not None) == sure:
            return list(found["accuracy"])
    return []


def label_of(row: Row) -> str:
    """What tells a row from its neighbours: ε where the noise varies, else the varied values."""
    values = row["values"]
    epsilon = row["result"].get("epsilon", {}).get("paper")
    if set(values) == {"mechanism.noise_multiplier"} and epsilon is not None:
        return f"ε = {epsilon:.4g}"
    names = {"poison_fraction": "α", "scale": "γ", "noise_multiplier": "σ"}
    parts = {key.rpartition(".")[2]: value for key, value in values.items()}
    return ", ".join(f"{names.get(key, key)} = {value}" for key, value in parts.items())


def _certified(figure: Any, rows: Sequence[Row]) -> None:
    """One picture for each way to certify the same scores; dotted: with confidence."""
    shown = [row for row in rows if row["result"].get("curves")]
    pictures = figure.subplots(1, len(WAYS), sharey=True)
    for axes, (title, method, relation) in zip(pictures, WAYS, strict=True):
        for row, colour in zip(shown, colours(len(shown)), strict=True):
            for sure, style in ((False, "-"), (True, ":")):
                ys = curve(row, method, relation, sure)
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
    found: list[dict[str, Any]]

    def values(self, key: str) -> list[float] | None:
        """Of every point, or None where one has none."""
        values = [one.get(key) for one in self.found]
        return None if None in values else [round(float(value), 4) for value in values if value is not None]


_TIGHT, _PAPER = "certified_lower", "paper_lower_exact"


def _attacked(figure: Any, rows: Sequence[Row]) -> None:
    """The attacker's cost over k, or over ε where one k was attacked, above its bounds."""
    axes = figure.subplots()
    found = [
        (row, name, [one for one in row["result"]["attacks"] if one["attack"] == name])
        for row in rows
        for name in dict.fromkeys(one["attack"] for one in row["result"]["attacks"])
    ]
    if all(len(attacks) == 1 for _, _, attacks in found) and len(rows) > 1:
        series = _over_epsilon(found)
        axes.set_xlabel("ε (paper)")
    else:
        series = _over_size(found)
        axes.set_xlabel("k")
        axes.xaxis.get_major_locator().set_params(integer=True)
    for one, marker in zip(series, cycle("os^Dv"), strict=False):
        costs = [attack["cost"] for attack in one.found]
        # Hollow and of different shapes: costs are often equal.
        look = {"color": one.colour, "markerfacecolor": "none", "markersize": 7}
        axes.plot(one.xs, costs, marker, label=f"J(D'), {one.label}", **look)
    _bounds(axes, series)
    axes.set(ylabel="attacker's cost", ylim=(0, None))


def _over_size(found: Sequence[tuple[Row, str, list[dict[str, Any]]]]) -> list[_Series]:
    return [
        _Series(
            label=f"{name}, {label_of(row)}".rstrip(", "),
            colour=colour,
            xs=[one["adversaries"] for one in attacks],
            found=attacks,
        )
        for (row, name, attacks), colour in zip(found, colours(len(found)), strict=True)
    ]


def _over_epsilon(found: Sequence[tuple[Row, str, list[dict[str, Any]]]]) -> list[_Series]:
    names = dict.fromkeys(name for _, name, _ in found)
    return [
        _Series(
            label=name,
            colour=colour,
            xs=[row["result"]["epsilon"]["paper"] for row, one, _ in found if one == name],
            found=[attacks[0] for _, one, attacks in found if one == name],
        )
        for name, colour in zip(names, colours(len(names)), strict=True)
    ]


def _bounds(axes: Any, series: Sequence[_Series]) -> None:
    """Both lower bounds: once where they are the same for all, else for each in its own colour."""
    alike = all(
        (one.values(_TIGHT), one.values(_PAPER)) == (series[0].values(_TIGHT), series[0].values(_PAPER))
        for one in series
    )
    styles = (
        (_TIGHT, "tight lower bound, 99 %", "-", "#0072B2"),
        (_PAPER, "the paper's lower bound", "-" if alike else "--", "#D55E00"),
    )
    for one in series[:1] if alike else series:
        for key, label, style, colour in styles:
            values = one.values(key)
            if values is not None:
                drawn = {"color": colour, "label": label} if alike else {"color": one.colour}
                axes.plot(one.xs, values, style, linewidth=1.8, **drawn)
    if not alike:
        for _, label, style, _ in styles:
            axes.plot([], [], style, color="#555555", linewidth=1.8, label=label)


def _needed(figure: Any, rows: Sequence[Row]) -> None:
    axes = figure.subplots()
    for row, colour in zip(rows, colours(len(rows)), strict=True):
        result = row["result"]
        for key, style in (("tight", "-"), ("paper", ":")):
            pairs = [(tau, k) for tau, k in zip(result["taus"], result[key], strict=True) if k is not None]
            label = label_of(row) if key == "tight" else None
            axes.plot(*zip(*pairs, strict=True), style, color=colour, linewidth=1.4, label=label)
    axes.set(xlabel="τ (dotted: the paper's bound)", ylabel="units needed", ylim=(0, None))


def _dopamine(figure: Any, rows: Sequence[Row]) -> None:
    curves = rows[0]["result"]["curves"]
    for axes, one in zip(figure.subplots(1, len(curves), sharey=True), curves, strict=True):
        for name, colour in (("InsDP-FedSGD", "#0072B2"), ("Dopamine", "#D55E00")):
            axes.plot(one["rounds"], one[name], color=colour, label=name if one is curves[0] else None)
        axes.set(xlabel="round", title=f"{one['cohort']} of 30 users", ylim=(0, None))
    figure.axes[0].set_ylabel("ε (paper)")


def colours(count: int) -> list[Any]:
    """As many colours as there are lines, from dark to light."""
    from matplotlib import colormaps

    return [colormaps["viridis"](0.9 * index / max(1, count - 1)) for index in range(count)]
