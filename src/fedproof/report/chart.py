"""A figure as plain values: drawn as inline SVG, by matplotlib, or shown as the table behind it."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from itertools import cycle
from pathlib import Path
from typing import Any

from fedproof.federation import Federation, class_counts
from fedproof.report.words import at_least, at_most, number, percent, rounded_up


class Tone(StrEnum):
    """Colours of Okabe and Ito, which colour-blind readers tell apart; `INK` is the colour of text."""

    BLUE = "blue"
    VERMILLION = "vermillion"
    GREEN = "green"
    PURPLE = "purple"
    ORANGE = "orange"
    SKY = "sky"
    INK = "ink"


HEX = {
    Tone.BLUE: "#0072B2",
    Tone.VERMILLION: "#D55E00",
    Tone.GREEN: "#009E73",
    Tone.PURPLE: "#CC79A7",
    Tone.ORANGE: "#E69F00",
    Tone.SKY: "#56B4E9",
    Tone.INK: "#1b1f24",
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Values `ys` at `xs`; `short` is what is written beside it in the figure, nothing if empty."""

    label: str
    xs: Sequence[float]
    ys: Sequence[float]
    tone: Tone
    short: str = ""

    def __post_init__(self) -> None:
        for name in ("xs", "ys"):  # plain floats, whatever numbers were given
            object.__setattr__(self, name, tuple(map(float, getattr(self, name))))
        if len(self.xs) != len(self.ys):
            raise ValueError(f"{self.label}: {len(self.xs)} xs and {len(self.ys)} ys must agree")


@dataclass(frozen=True, kw_only=True)
class Line(Series):
    """A curve; `strong` marks the one that matters most."""

    dashed: bool = False
    strong: bool = False


@dataclass(frozen=True, kw_only=True)
class Points(Series):
    """Single observations."""


@dataclass(frozen=True, kw_only=True)
class Bars(Series):
    """Bars over whole numbers, stacked upon those before them."""


@dataclass(frozen=True, kw_only=True)
class Band(Series):
    """What lies between `ys` and `highs`."""

    highs: Sequence[float]

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "highs", tuple(map(float, self.highs)))


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place on the x axis that has a name."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure; the `description` is what one sees in it, for who cannot.

    With `shares`, y is a share between 0 and 1, shown in percent. `spent` names the axis, x or y, of which
    values are privacy losses: their texts are rounded up.
    """

    name: str
    title: str
    description: str
    x_label: str
    y_label: str
    series: tuple[Series, ...]
    marks: tuple[Mark, ...] = ()
    shares: bool = False
    logarithmic: bool = False
    spent: str = ""

    @property
    def xs(self) -> tuple[float, ...]:
        """All places on the x axis where something is known."""
        return tuple(sorted({x for series in self.series for x in series.xs}))

    def shown(self, value: float) -> str:
        """A y value as text."""
        if self.spent == "y":
            return rounded_up(value, 3)
        return percent(value) if self.shares else number(value)

    def place(self, x: float) -> str:
        """A place on the x axis as text."""
        return rounded_up(x, 3) if self.spent == "x" else number(x)

    def texts(self, series: Series) -> list[dict[float, str]]:
        """The columns of a series in the table, as text by place; the two of a band are rounded outward."""
        if not isinstance(series, Band):
            return [dict(zip(series.xs, map(self.shown, series.ys), strict=True))]
        lows, highs = map(at_least, series.ys), map(at_most, series.highs)
        return [dict(zip(series.xs, column, strict=True)) for column in (lows, highs)]

    def header(self) -> list[str]:
        """The columns of the table behind the figure."""
        columns = [self.x_label]
        for series in self.series:
            low_and_high = (f"{series.label}, at least", f"{series.label}, at most")
            columns += low_and_high if isinstance(series, Band) else [series.label]
        return columns

    def rows(self) -> list[list[float | None]]:
        """The table behind the figure: one row for each x, None where a series has no value."""
        columns: list[dict[float, float]] = []
        for series in self.series:
            columns.append(dict(zip(series.xs, series.ys, strict=True)))
            if isinstance(series, Band):
                columns.append(dict(zip(series.xs, series.highs, strict=True)))
        return [[x, *(column.get(x) for column in columns)] for x in self.xs]


def toned(names: Iterable[str], tones: Iterable[Tone] = Tone) -> dict[str, Tone]:
    """A colour for each name, the same ones over again if there are many."""
    return dict(zip(dict.fromkeys(names), cycle(tones)))


def check_rows(rows: Sequence[object]) -> None:
    """Raise ValueError unless there are rows."""
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")


# --- files: PNG, PDF and SVG by matplotlib, and the rows behind them as CSV ---------------------------------

FORMATS = ("png", "pdf", "svg")
_SIZE = (7.0, 4.0)  # inches
# Files without dates and random names: the same rows give the same bytes.
_METADATA: dict[str, dict[str, Any]] = {
    "png": {"Software": None},
    "pdf": {"CreationDate": None},
    "svg": {"Date": None},
}
_STYLE: dict[Any, Any] = {
    "svg.hashsalt": "fedproof",
    "svg.fonttype": "none",
    "font.size": 10.0,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#dfe3e8",
    "text.parse_math": False,  # names of classes and attacks are no formulas
}


def write_charts(charts: Iterable[Chart], destination: Path) -> tuple[Path, ...]:
    """Charts as files named after them."""
    destination.mkdir(parents=True, exist_ok=True)
    written: list[Path] = []
    for chart in charts:
        rows = destination / f"{chart.name}.csv"
        with rows.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([chart.header(), *chart.rows()])
        drawings = [destination / f"{chart.name}.{kind}" for kind in FORMATS]
        with new_axes() as axes:
            draw(chart, axes)
            for path in drawings:
                save_figure(axes.figure, path)
        written += [rows, *drawings]
    return tuple(written)


def draw_federation(federation: Federation, path: Path) -> Path:
    """Write a figure (.png, .pdf or .svg) of the classes that each user holds, largest user first."""
    counts = class_counts(federation)
    order = counts.sum(axis=1).argsort(kind="stable")[::-1]
    with new_axes() as axes:
        drawn = axes.imshow(counts[order].T, aspect="auto", interpolation="nearest", cmap="cividis")
        axes.grid(visible=False)
        axes.set(xlabel="users, by number of instances", ylabel="class", title=federation.name)
        axes.set_yticks(range(federation.num_classes), labels=federation.class_names)
        axes.figure.colorbar(drawn, label="instances")
        save_figure(axes.figure, path)
    return path


@contextmanager
def new_axes() -> Iterator[Any]:
    """Empty axes of matplotlib in our style."""
    with new_figure(_SIZE) as drawing:
        yield drawing.add_subplot()


@contextmanager
def new_figure(size: tuple[float, float]) -> Iterator[Any]:
    """An empty figure of matplotlib, so many inches wide and high; no window system, no global state."""
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise ImportError("figures need matplotlib: pip install 'fedproof[report]'") from error
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with mpl.rc_context(_STYLE):
        drawing = Figure(figsize=size, layout="constrained")
        FigureCanvasAgg(drawing)
        yield drawing


def save_figure(figure: Any, path: Path, dpi: int = 200) -> None:
    """Write a figure as the kind of file that its name says."""
    kind = path.suffix.removeprefix(".").lower()
    if kind not in FORMATS:
        raise ValueError(f"{path}: a figure's name must end in .png, .pdf or .svg")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=dpi, metadata=_METADATA[kind])


def draw(chart: Chart, axes: Any) -> None:
    """The chart on matplotlib's axes."""
    stacks: dict[float, float] = {}
    for series in chart.series:
        _draw_series(series, axes, stacks)
    for mark in chart.marks:
        axes.axvline(mark.x, color="#59636e", linewidth=0.8, linestyle=":")
        axes.annotate(
            mark.label, (mark.x, 1), xycoords=("data", "axes fraction"), ha="center", va="bottom", fontsize=9
        )
    axes.set(xlabel=chart.x_label, ylabel=chart.y_label)
    if chart.shares:
        axes.set_ylim(0, 1)
        axes.yaxis.set_major_formatter(lambda value, _: f"{100 * value:.0f} %")
    if chart.logarithmic:
        axes.set_xscale("log")
    if len(chart.series) > 1:
        axes.figure.legend(loc="outside lower center", ncols=2, fontsize=8, frameon=False)


def _draw_series(series: Series, axes: Any, stacks: dict[float, float]) -> None:
    colour = HEX[series.tone]
    match series:
        case Line(dashed=dashed, strong=strong):
            style, width = (":" if dashed else "-"), (2.6 if strong else 1.5)
            axes.plot(series.xs, series.ys, style, color=colour, linewidth=width, label=series.label)
        case Band(highs=highs):
            axes.fill_between(series.xs, series.ys, highs, color=colour, alpha=0.2, label=series.label)
        case Bars():
            base = [stacks.get(x, 0.0) for x in series.xs]
            axes.bar(series.xs, series.ys, 0.72, bottom=base, color=colour, label=series.label)
            stacks.update({x: low + y for x, low, y in zip(series.xs, base, series.ys, strict=True)})
        case _:
            axes.plot(series.xs, series.ys, "o", color=colour, label=series.label)
