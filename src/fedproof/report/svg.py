"""A chart inside a page: inline SVG for wide and narrow screens, its legend, and the table behind it.

Colours come from the page's style.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from fedproof.report.chart import Band, Bars, Chart, Line, Points, Series
from fedproof.report.page import Markup, data_block, details, join, table, tag
from fedproof.report.words import number, percent


@dataclass(frozen=True, kw_only=True)
class Frame:
    """Size of the drawing and of its margins, in pixels; `named` has room for names beside the curves."""

    width: int
    height: int
    left: int = 58
    right: int = 20
    top: int = 26
    bottom: int = 50
    num_ticks: int = 8
    named: bool = True


WIDE = Frame(width=920, height=420)
_WIDEST_BAR = 56.0
NARROW = Frame(width=360, height=300, left=46, right=12, num_ticks=5, named=False)


@dataclass(frozen=True, kw_only=True)
class Scale:
    """From values between `low` and `high` to pixels between `start` and `end`."""

    low: float
    high: float
    start: float
    end: float
    logarithmic: bool = False

    def __call__(self, value: float) -> float:
        """The pixel of a value."""
        low, high, here = (
            (math.log(self.low), math.log(self.high), math.log(value))
            if self.logarithmic
            else (self.low, self.high, value)
        )
        return self.start + (self.end - self.start) * (here - low) / (high - low)


def figure(chart: Chart, *, remark: object = "") -> Markup:
    """A chart for wide and narrow screens, its values under the pointer, and the table behind it."""
    plot = tag(
        "div",
        draw(chart, WIDE, kind="wide"),
        draw(chart, NARROW, kind="narrow"),
        tag("div", class_="values", hidden=True),
        class_="plot",
        tabindex=0,
        role="group",
        aria_label=f"{chart.title}: the arrow keys read the values",
    )
    said = tag("p", class_="visually-hidden", aria_live="polite")
    return tag(
        "figure",
        tag("p", chart.y_label, class_="y-title"),
        plot,
        said,
        tag("figcaption", legend(chart), remark),
        _table(chart),
        data_block(_values(chart)),
        class_="figure",
        data_figure=chart.name,
    )


def legend(chart: Chart) -> Markup:
    """What each curve is, with a sample of its line; on wide screens their names stand beside them."""
    if len(chart.series) < 2:
        return Markup("")
    named = [series for series in chart.series if series.short]
    items = []
    for series in named or chart.series:
        swatch = tag("i", class_=f"swatch {_kind(series)} tone-{series.tone}", aria_hidden="true")
        items.append(tag("li", swatch, series.short or series.label))
    return tag("ul", *items, class_="legend beside" if named else "legend")


def _kind(series: Series) -> str:
    match series:
        case Band():
            return "band"
        case Line(dashed=dashed):
            return "line dashed" if dashed else "line"
    return "dot"


def _table(chart: Chart) -> Markup:
    columns = [column for series in chart.series for column in chart.texts(series)]
    rows = ([chart.place(x), *(column.get(x, "") for column in columns)] for x in chart.xs)
    return details("The numbers as a table", table(chart.header(), rows))


def _values(chart: Chart) -> dict[str, object]:
    """What the script shows under the pointer, as text: it formats nothing itself."""
    columns = []
    for series in chart.series:
        shown = chart.texts(series)
        texts = {x: " to ".join(dict.fromkeys(column[x] for column in shown)) for x in series.xs}
        # A curve that has come down to nothing stays there.
        after = chart.shown(0.0) if isinstance(series, Line) and series.ys and series.ys[-1] == 0 else ""
        column = [texts.get(x, after if series.xs and x > series.xs[-1] else "") for x in chart.xs]
        columns.append({"label": series.label, "tone": series.tone, "kind": _kind(series), "texts": column})
    names = [f"{chart.x_label} = {chart.place(x)}" for x in chart.xs]
    return {"xs": chart.xs, "names": names, "series": columns}


# --- the drawing --------------------------------------------------------------------------------------------


def draw(chart: Chart, frame: Frame, *, kind: str) -> Markup:
    """The chart in a frame; `kind` is the class by which the page shows it on wide or narrow screens."""
    x, y = scales(chart, frame)
    stacks: dict[float, float] = {}
    ordered = sorted(chart.series, key=_depth)
    behind = [series for series in ordered if isinstance(series, Band)]  # bands would hide the grid
    return tag(
        "svg",
        *(_shape(series, x, y, stacks) for series in behind),
        _grid(chart, frame, x, y),
        *(_shape(series, x, y, stacks) for series in ordered if series not in behind),
        *(_mark(mark.x, mark.label, frame, x) for mark in chart.marks),
        *(_labels(chart, frame, x, y) if frame.named else ()),
        tag("g", class_="probe"),
        class_=f"chart {kind}",
        viewBox=f"0 0 {frame.width} {frame.height}",
        data_low=x.low,
        data_high=x.high,
        data_start=x.start,
        data_end=x.end,
        data_top=frame.top,
        data_bottom=frame.height - frame.bottom,
        data_log=chart.logarithmic,
        role="img",
        aria_label=f"{chart.title}. {chart.description}",
    )


def scales(chart: Chart, frame: Frame) -> tuple[Scale, Scale]:
    """The two axes of a chart."""
    xs, bottom, top = chart.xs or (0.0, 1.0), *_y_range(chart)
    pad = 0.6 if any(isinstance(series, Bars) for series in chart.series) else 0.0
    low, high = min(xs) - pad, max(xs) + pad
    if low == high:
        low, high = (low / 2, high * 2) if chart.logarithmic else (low - 0.5, high + 0.5)
    x = Scale(
        low=low, high=high, start=frame.left, end=frame.width - frame.right, logarithmic=chart.logarithmic
    )
    y = Scale(low=bottom, high=top, start=frame.height - frame.bottom, end=frame.top)
    return x, y


def _y_range(chart: Chart) -> tuple[float, float]:
    if chart.shares:
        return 0.0, 1.0
    values = [0.0]
    stacks: dict[float, float] = {}
    for series in chart.series:
        if isinstance(series, Bars):
            for at, height in zip(series.xs, series.ys, strict=True):
                stacks[at] = stacks.get(at, 0.0) + height
        values += [*series.ys, *(series.highs if isinstance(series, Band) else ())]
    values += stacks.values()
    low, high = min(values), max(values)
    if low == high == 0:  # nothing to show still needs an axis
        return 0.0, 1.0
    margin = 0.06 * (high - low)
    return (low - margin if low < 0 else 0.0), (high + margin if high > 0 else 0.0)


def ticks(low: float, high: float, count: int) -> list[float]:
    """About `count` round numbers from `low` to `high`.

    >>> ticks(0, 1, 5)
    [0.0, 0.2, 0.4, 0.6, 0.8, 1.0]
    """
    rough = (high - low) / max(count, 1)
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= rough * 0.75)
    first = math.ceil(low / step - 1e-9)
    return [round(index * step, 12) for index in range(first, math.floor(high / step + 1e-9) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Round numbers for a logarithmic axis.

    >>> log_ticks(0.1, 3)
    [0.1, 0.2, 0.5, 1.0, 2.0]
    """
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    every = [round(factor * 10.0**power, 12) for power in powers for factor in (1, 2, 5)]
    return [value for value in every if low * 0.999 <= value <= high * 1.001]


def x_ticks(chart: Chart, x: Scale, count: int) -> list[float]:
    """Where the x axis is labelled: at whole numbers where x counts something."""
    if chart.logarithmic:
        return log_ticks(x.low, x.high)
    found = ticks(x.low, x.high, count)
    whole = all(value == int(value) for value in chart.xs)
    return [value for value in found if value == int(value)] if whole else found


# --- parts of the drawing -----------------------------------------------------------------------------------


def _grid(chart: Chart, frame: Frame, x: Scale, y: Scale) -> Markup:
    bottom, right = frame.height - frame.bottom, frame.width - frame.right
    parts: list[object] = []
    for value in ticks(y.low, y.high, 5):
        at = _pixel(y(value))
        text = percent(value, 0) if chart.shares else number(value)
        parts.append(tag("line", x1=frame.left, x2=right, y1=at, y2=at, class_="grid"))
        parts.append(tag("text", text, x=frame.left - 8, y=at, class_="tick y"))
    for value in x_ticks(chart, x, frame.num_ticks):
        at = _pixel(x(value))
        parts.append(tag("line", x1=at, x2=at, y1=bottom, y2=bottom + 5, class_="axis"))
        parts.append(tag("text", number(value), x=at, y=bottom + 20, class_="tick x"))
    parts.append(tag("line", x1=frame.left, x2=right, y1=bottom, y2=bottom, class_="axis"))
    middle = (frame.left + right) / 2
    parts.append(tag("text", chart.x_label, x=middle, y=frame.height - 8, class_="title"))
    return tag("g", *parts)


def _depth(series: Series) -> tuple[int, float]:
    """Bands at the back, the widest first, then thin curves, the strong one, and points in front."""
    match series:
        case Band(highs=highs):
            return 0, -sum(high - low for low, high in zip(series.ys, highs, strict=True))
        case Bars():
            return 0, 0.0
        case Line(strong=strong):
            return (2 if strong else 1), 0.0
    return 3, 0.0


def _shape(series: Series, x: Scale, y: Scale, stacks: dict[float, float]) -> Markup:
    tone = f"tone-{series.tone}"
    pairs = list(zip(series.xs, series.ys, strict=True))
    match series:
        case Line(dashed=dashed, strong=strong):
            style = f"line {tone}{' dashed' * dashed}{' strong' * strong}"
            return tag("path", d=_path(pairs, x, y), class_=style)
        case Band(highs=highs):
            back = list(zip(series.xs, highs, strict=True))[::-1]
            return tag("path", d=_path(pairs + back, x, y) + "Z", class_=f"band {tone}")
        case Points():
            return join(
                tag("circle", cx=_pixel(x(a)), cy=_pixel(y(b)), r=5, class_=f"point {tone}") for a, b in pairs
            )
    width = min(_WIDEST_BAR, 0.72 * abs(x(1.0) - x(0.0)))
    bars = []
    for at, height in pairs:
        base = stacks.get(at, 0.0)
        stacks[at] = base + height
        low, high = y(base), y(base + height)
        box = {"x": x(at) - width / 2, "y": high, "width": width, "height": low - high}
        if height:
            bars.append(tag("rect", **{key: _pixel(side) for key, side in box.items()}, class_=f"bar {tone}"))
    return join(bars)


def _mark(at: float, label: str, frame: Frame, x: Scale) -> Markup:
    """A dotted line with its name above it, kept inside the drawing."""
    place, half = x(at), 3.6 * len(label)
    line = tag("line", x1=_pixel(place), x2=_pixel(place), y1=frame.top - 4, y2=frame.height - frame.bottom)
    middle = min(max(place, half), frame.width - half)
    return tag("g", line, tag("text", label, x=_pixel(middle), y=frame.top - 10), class_="mark")


def _labels(chart: Chart, frame: Frame, x: Scale, y: Scale) -> Iterable[Markup]:
    """Names beside the curves, moved down where they would lie upon each other."""
    taken: list[tuple[float, float, float]] = []
    for series in chart.series:
        if not series.short or not series.xs:
            continue
        place_x, place = _label_place(series, x, y)
        width = 7.4 * len(series.short)
        before = isinstance(series, Line) and series.strong and place_x - width - 12 > frame.left
        left = place_x - 12 - width if before else min(place_x + 12, frame.width - frame.right - width)
        while any(left < end and begin < left + width and abs(place - at) < 17 for begin, end, at in taken):
            place += 6
        taken.append((left, left + width, place))
        style = f"name tone-{series.tone}"
        yield tag("text", series.short, x=_pixel(left), y=_pixel(place), class_=style)


def _label_place(series: Series, x: Scale, y: Scale) -> tuple[float, float]:
    """Where a curve has come two thirds down its fall (or rise), the strong one halfway."""
    low, high = min(series.ys), max(series.ys)
    level = low + (high - low) * (0.5 if isinstance(series, Line) and series.strong else 0.33)
    pairs = list(zip(series.xs, series.ys, strict=True))
    for (x0, y0), (x1, y1) in pairwise(pairs):
        if y0 != y1 and min(y0, y1) <= level <= max(y0, y1):
            share = (level - y0) / (y1 - y0)
            return x(x0) + share * (x(x1) - x(x0)), y(level)
    return x(pairs[-1][0]), y(pairs[-1][1])


def _path(pairs: list[tuple[float, float]], x: Scale, y: Scale) -> str:
    return "M" + "L".join(f"{_pixel(x(a))} {_pixel(y(b))}" for a, b in pairs)


def _pixel(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
