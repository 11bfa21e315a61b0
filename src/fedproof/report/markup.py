"""HTML that cannot be injected into: whatever is not `Markup` is escaped when it enters a tag."""

import html
import json
from collections.abc import Iterable, Sequence
from typing import Any


class Markup(str):
    """Text that is HTML already; made by `tag`, `join` and `data_block` only."""

    __slots__ = ()


def tag(name: str, *children: object, **attributes: object) -> Markup:
    """One element; children that are no `Markup` are escaped, attributes always.

    An attribute's trailing underscore is dropped and others become hyphens; None and False leave it out.

    >>> tag("p", "a < b", tag("b", "!"), class_="note", data_value=0.5)
    '<p class="note" data-value="0.5">a &lt; b<b>!</b></p>'
    """
    inside = "".join(map(_escaped, children))
    return Markup(f"<{name}{_attributes(attributes)}>{inside}</{name}>")


def void(name: str, **attributes: object) -> Markup:
    """One element without content.

    >>> void("img", alt='"x"')
    '<img alt="&quot;x&quot;">'
    """
    return Markup(f"<{name}{_attributes(attributes)}>")


def join(parts: Iterable[object]) -> Markup:
    """Parts one after another, escaped unless they are `Markup`."""
    return Markup("".join(map(_escaped, parts)))


def table(header: Sequence[object], rows: Iterable[Sequence[object]], *, caption: object = None) -> Markup:
    """A table that scrolls by itself on a narrow screen; the first column heads its row."""
    head = tag("thead", tag("tr", *(tag("th", cell, scope="col") for cell in header)))
    body = tag(
        "tbody",
        *(tag("tr", tag("th", row[0], scope="row"), *(tag("td", cell) for cell in row[1:])) for row in rows),
    )
    title = tag("caption", caption) if caption is not None else ""
    label = str(caption) if caption is not None else str(header[0])
    return tag(
        "div", tag("table", title, head, body), class_="scroll", tabindex=0, role="group", aria_label=label
    )


def details(summary: str, *children: object) -> Markup:
    """Something that opens on demand."""
    return tag("details", tag("summary", summary), *children)


def data_block(document: Any) -> Markup:
    r"""Values for the page's script, in a block that no value can end.

    >>> data_block("</script>")
    '<script type="application/json">"\\u003c/script\\u003e"</script>'
    """
    text = json.dumps(document, allow_nan=False, separators=(",", ":"))
    safe = text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")
    return Markup(f'<script type="application/json">{safe}</script>')


def _escaped(child: object) -> str:
    if child is None:
        return ""
    return child if isinstance(child, Markup) else html.escape(str(child))


def _attributes(attributes: dict[str, object]) -> str:
    parts = []
    for name, value in attributes.items():
        if value is None or value is False:
            continue
        key = name.rstrip("_").replace("_", "-")
        parts.append(f" {key}" if value is True else f' {key}="{html.escape(str(value))}"')
    return "".join(parts)
