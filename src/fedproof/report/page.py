"""One self-contained page: template, style and script in one file that asks the network for nothing."""

import base64
import hashlib
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from string import Template

from fedproof.files import replace_file
from fedproof.report.chart import Band, Chart, Line, Series
from fedproof.report.markup import Markup, data_block, details, join, table, tag
from fedproof.report.svg import NARROW, WIDE, draw
from fedproof.report.words import number, remedy


def write_page(path: Path, *, title: str, body: Markup) -> Path:
    """Write a page; the only script it can run is ours, by its hash."""
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    text = Template(_resource("page.html")).substitute(
        title=join([title]), style=_resource("page.css"), script=script, hash=f"sha256-{digest}", body=body
    )
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, text.encode())
    return path


def write_simple_page(path: Path, title: str, sentence: str, *parts: Markup) -> Path:
    """Write a page that begins with what it says in one sentence."""
    head = tag(
        "header", tag("p", f"fedproof · {title}", class_="eyebrow"), tag("h1", sentence, id="headline")
    )
    return write_page(path, title=f"fedproof: {title}", body=tag("main", head, *parts, id="main"))


def _resource(name: str) -> str:
    return resources.files("fedproof.report").joinpath(name).read_text(encoding="utf-8")


def section(identifier: str, title: str, *children: object) -> Markup:
    """A part of the page with its heading."""
    heading = f"{identifier}-title"
    return tag("section", tag("h2", title, id=heading), *children, id=identifier, aria_labelledby=heading)


def soundness_box(reasons: Sequence[str], *, certified: bool = True, more: object = "") -> Markup:
    """Whether something is proved: each reason why not, with its remedy."""
    if not certified:
        strong, text = "No certificate. ", "This mechanism proves nothing."
    elif reasons:
        strong = "Heuristic, not a proof. "
        text = "The numbers above would hold under these conditions; they are not met, so nothing is proved."
    else:
        strong, text = "Sound. ", "Every condition of the theorem is met."
    listed = tag("ul", *map(_reason, reasons), class_="reasons") if reasons else ""
    kind = "heuristic" if reasons or not certified else "sound"
    box = tag("div", tag("p", tag("strong", strong), text), listed, more, class_=f"box {kind}")
    return section("soundness", "Can it be trusted?", box)


def _reason(reason: str) -> Markup:
    cure = remedy(reason)
    first = reason[:1].upper() + reason[1:] + "."
    return tag("li", first, tag("span", tag("b", "Remedy: "), cure, class_="remedy") if cure else "")


def figure(chart: Chart, *, note: object = "") -> Markup:
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
        tag("figcaption", legend(chart), note),
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
    items = (tag("li", _swatch(series), series.short or series.label) for series in named or chart.series)
    return tag("ul", *items, class_="legend beside" if named else "legend")


def _swatch(series: Series) -> Markup:
    return tag("i", class_=f"swatch {_kind(series)} tone-{series.tone}", aria_hidden="true")


def _kind(series: Series) -> str:
    match series:
        case Band():
            return "band"
        case Line(dashed=dashed):
            return "line dashed" if dashed else "line"
    return "dot"


def _table(chart: Chart) -> Markup:
    rows = (
        [number(x), *("" if value is None else chart.shown(value) for value in values)]
        for x, values in zip(chart.xs, (row[1:] for row in chart.rows()), strict=True)
    )
    return details("The numbers as a table", table(chart.header(), rows))


def _values(chart: Chart) -> dict[str, object]:
    """What the script shows under the pointer, as text: it formats nothing itself."""
    columns = []
    for series in chart.series:
        highs = series.highs if isinstance(series, Band) else series.ys
        texts = {
            x: chart.shown(low) if low == high else f"{chart.shown(low)} to {chart.shown(high)}"
            for x, low, high in zip(series.xs, series.ys, highs, strict=True)
        }
        # A curve that has come down to nothing stays there.
        after = chart.shown(0.0) if isinstance(series, Line) and series.ys and series.ys[-1] == 0 else ""
        column = [texts.get(x, after if series.xs and x > series.xs[-1] else "") for x in chart.xs]
        columns.append({"label": series.label, "tone": series.tone, "kind": _kind(series), "texts": column})
    return {
        "xs": chart.xs,
        "names": [f"{chart.x_label} = {number(x)}" for x in chart.xs],
        "series": columns,
    }
