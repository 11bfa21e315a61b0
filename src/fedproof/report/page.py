"""Pages: HTML that cannot be injected into, and one self-contained file that asks the network for nothing.

Whatever is not `Markup` is escaped when it enters a tag.
"""

import base64
import hashlib
import html
import json
from collections.abc import Iterable, Sequence
from importlib import resources
from pathlib import Path
from string import Template
from typing import Any

from fedproof.files import replace_file
from fedproof.statements import Statement


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


def bullets(items: Iterable[object], **attributes: object) -> Markup:
    """A list, one item below another."""
    return tag("ul", *(tag("li", item) for item in items), **attributes)


def note(text: object) -> Markup:
    """A remark in small print."""
    return tag("p", text, class_="note")


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


# --- the page and its parts ---------------------------------------------------------------------------------


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


def soundness_box(
    unmet: Sequence[Statement], *, certified: bool = True, training: str | None = None, more: object = ""
) -> Markup:
    """Whether something is proved: each condition that is not met, with its fix where one is known.

    `training` says what a training that was executed elsewhere is taken to have done.
    """
    if not certified:
        strong, text = "No certificate. ", "This mechanism proves nothing."
    elif unmet:
        strong = "Heuristic, not a proof. "
        text = "The numbers above would hold under these conditions; they are not met, so nothing is proved."
    elif training is not None:
        strong, text = "Sound if the training did exactly this: ", f"{training}."
    else:
        strong, text = "Sound. ", "Every condition of the theorem is met."
    listed = tag("ul", *map(_condition, unmet), class_="reasons") if unmet else ""
    kind = "heuristic" if unmet or not certified else "sound"
    box = tag("div", tag("p", tag("strong", strong), text), listed, more, class_=f"box {kind}")
    return section("soundness", "Can it be trusted?", box)


def _condition(statement: Statement) -> Markup:
    first = statement.sentence[:1].upper() + statement.sentence[1:] + "."
    fix = statement.fix
    return tag("li", first, tag("span", tag("b", "Fix: "), fix, class_="remedy") if fix else "")
