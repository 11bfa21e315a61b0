"""A figure as plain values: drawn as inline SVG, by matplotlib, or shown as the table behind it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fedproof.report.words import number, percent

Numbers = tuple[float, ...]


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
    xs: Numbers
    ys: Numbers
    tone: Tone
    short: str = ""

    def __post_init__(self) -> None:
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

    highs: Numbers


@dataclass(frozen=True, kw_only=True)
class Mark:
    """A place on the x axis that has a name."""

    x: float
    label: str


@dataclass(frozen=True, kw_only=True)
class Chart:
    """One figure.

    Attributes:
        name: of its files.
        title: what it shows, as a heading.
        description: what one sees in it, for who cannot.
        shares: whether y is a share between 0 and 1, shown in percent.
        logarithmic: whether x is.
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

    @property
    def xs(self) -> Numbers:
        """All places on the x axis where something is known."""
        return tuple(sorted({x for series in self.series for x in series.xs}))

    def shown(self, value: float) -> str:
        """A y value as text."""
        return percent(value) if self.shares else number(value)

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


# What comes after the colour of the certificate itself.
TONES = (Tone.VERMILLION, Tone.GREEN, Tone.PURPLE, Tone.ORANGE, Tone.SKY, Tone.INK)


def check_rows(rows: Sequence[Mapping[str, Any]], schema: Any) -> None:
    """Raise ValueError unless there are rows, all with the keys that the TypedDict `schema` requires."""
    if not rows:
        raise ValueError("rows are empty: there is nothing to show")
    for place, row in enumerate(rows):
        missing = sorted(schema.__required_keys__ - set(row))
        if missing:
            raise ValueError(f"rows[{place}] has no {', '.join(missing)}")


def numbers(values: Sequence[float]) -> Numbers:
    """Values as plain floats.

    >>> numbers([1, 2])
    (1.0, 2.0)
    """
    return tuple(float(value) for value in values)
