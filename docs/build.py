"""Write the parts of the user guide that are computed: keys, the Python reference, tables, a picture.

Usage: python docs/build.py. A test fails if the committed pages are not what this writes.
"""

import ast
import inspect
import json
import re
import sys
import tempfile
import textwrap
import types
from dataclasses import is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic import TypeAdapter
from pydantic.fields import FieldInfo

import fedproof as fp
from fedproof.config import Config, Section
from fedproof.report.chart import draw, new_axes, save_figure
from fedproof.report.comparisons import certified_at, compare_charts, label_of
from fedproof.report.words import SPACE, amount, data_size, duration, percent
from fedproof.summary import ComparedRun

DOCS = Path(__file__).parent
EXPERIMENTS = DOCS.parent / "experiments"
sys.path.insert(0, str(DOCS.parent))  # paper/ is not installed

from paper import Rows, load_studies, records, write_page  # noqa: E402
from paper.page import page  # noqa: E402
from paper.run import ROWS  # noqa: E402
from paper.study import FOLDER, RECORDS  # noqa: E402


def configuration_page() -> str:
    """`configuration.md`: every section and key with what is allowed and its default."""
    lines = [
        "# The configuration file",
        "",
        "TOML. Unknown keys are errors, and so are keys that decide nothing beside the others, as",
        "`dirichlet_alpha` where `partition` is another. Every default that decides something is written",
        "back into the run directory as `config.toml`. `--set section.key=value` changes one key on the",
        "command line; where that is another choice, what the file says for the old one alone is left",
        "behind. This page is made from the code that validates the file.",
    ]
    for name, field in Config.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        about, meanings = (inspect.getdoc(section) or "").partition(": ")[2], _meanings(section)
        lines += [
            "",
            f"## [{name}]",
            "",
            about[:1].upper() + about[1:],
            "",
            "| key | what it is | allowed | default |",
            "|---|---|---|---|",
        ]
        lines += [
            f"| `{key}` | {meanings[key]} | {_allowed(inner)} | {_default(inner)} |"
            for key, inner in section.model_fields.items()
        ]
    return "\n".join(lines) + "\n"


def _meanings(section: type[Section]) -> dict[str, str]:
    """What the comment beside each key says, or that above it."""
    found, above = {}, []
    for line in inspect.getsource(section).splitlines():
        if line.startswith("    # "):
            above.append(line.removeprefix("    # "))
        elif key := re.match(r"    (\w+): [^#]*(?:  # (.*))?$", line):
            found[key[1]] = key[2] or " ".join(above)
            above = []
    return found


def _allowed(field: FieldInfo) -> str:
    limits = [
        f"{symbol} {getattr(rule, name)}"
        for rule in field.metadata
        for name, symbol in (("ge", ">="), ("gt", ">"), ("le", "<="), ("lt", "<"))
        if getattr(rule, name, None) is not None
    ]
    return ", ".join([_kind(field.annotation), *limits])


def _kind(annotation: Any) -> str:
    origin = get_origin(annotation)
    if origin is Literal:
        return " or ".join(f'`"{value}"`' for value in get_args(annotation))
    if origin is types.UnionType or str(origin) == "typing.Union":
        return " or ".join(_kind(part) for part in get_args(annotation) if part is not type(None))
    if origin is tuple:
        return f"list of: {_kind(get_args(annotation)[0])}"
    if hasattr(annotation, "__metadata__"):
        limits = [f">= {rule.ge}" for rule in annotation.__metadata__[0].metadata if hasattr(rule, "ge")]
        return ", ".join([_kind(get_args(annotation)[0]), *limits])
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return " or ".join(f'`"{value.value}"`' for value in annotation)
    return {bool: "true or false", int: "whole number", float: "number", str: "text"}[annotation]


def _default(field: FieldInfo) -> str:
    value = field.default.value if isinstance(field.default, Enum) else field.default
    if value is None:
        return "-"
    if isinstance(value, bool):
        return f"`{value}`".lower()
    if isinstance(value, str):
        return f'`"{value}"`'
    return f"`{list(value) if isinstance(value, tuple) else value}`"


# --- the Python reference ---------------------------------------------------------------------------------


def api_page() -> str:
    """`api.md`: every public name with its signature and docstring."""
    lines = [
        "# Python",
        "",
        "`import fedproof as fp` gives these names; they are imported when they are first used, and none of",
        "them needs torch. This page is made from the code.",
    ]
    for name in fp.__all__:
        found = getattr(fp, name)
        lines += ["", f"## {name}", "", "```python", signature(found), "```", "", prose(found.__doc__ or "")]
        if isinstance(found, type):
            lines += _members(found)
    return "\n".join(lines) + "\n"


def signature(found: Any) -> str:
    """How a function or class is called, with the annotations as they stand in the source."""
    if not inspect.isfunction(found) and not is_dataclass(found):
        return f"class {found.__name__}({', '.join(base.__name__ for base in found.__bases__)})"
    tree = ast.parse(textwrap.dedent(inspect.getsource(found))).body[0]
    if isinstance(tree, ast.FunctionDef):
        head, tail, parts = f"def {tree.name}(", f") -> {ast.unparse(tree.returns or tree)}", _arguments(tree)
    else:
        assert isinstance(tree, ast.ClassDef)
        head, tail, fields = f"{tree.name}(", ")", _fields(tree)
        parts = ["*", *fields] if fields else []
    short = head + ", ".join(parts) + tail
    return short if len(short) <= 88 else "\n".join([head, *(f"    {part}," for part in parts), tail])


def _arguments(tree: ast.FunctionDef) -> list[str]:
    """Arguments with annotation and default, and the star before those that need their name."""
    given = tree.args
    defaults = [None] * (len(given.args) - len(given.defaults)) + list(given.defaults)
    first = [_argument(*row) for row in zip(given.args, defaults, strict=True)]
    named = [_argument(*row) for row in zip(given.kwonlyargs, given.kw_defaults, strict=True)]
    others = [f"**{_argument(given.kwarg, None)}"] if given.kwarg else []
    return [*first, *(["*", *named] if named else []), *others]


def _argument(arg: ast.arg, default: ast.expr | None) -> str:
    annotation = f": {ast.unparse(arg.annotation)}" if arg.annotation else ""
    return f"{arg.arg}{annotation}" + (f" = {ast.unparse(default)}" if default else "")


def _fields(tree: ast.ClassDef) -> list[str]:
    """Fields of a dataclass that a caller gives."""
    rows = [row for row in tree.body if isinstance(row, ast.AnnAssign)]
    return [
        ast.unparse(row.target) + f": {ast.unparse(row.annotation)}" + _field_default(row.value)
        for row in rows
        if not ast.unparse(row.annotation).startswith("ClassVar")
    ]


def _field_default(value: ast.expr | None) -> str:
    if value is None:
        return ""
    if isinstance(value, ast.Call) and ast.unparse(value.func) == "field":
        options = {keyword.arg: ast.unparse(keyword.value) for keyword in value.keywords}
        made = options.get("default") or (
            f"{options['default_factory']}()" if "default_factory" in options else ""
        )
        return f" = {made}" if made else ""
    return f" = {ast.unparse(value)}"


def _members(found: type) -> list[str]:
    """Values of an enumeration; methods and properties with their first line."""
    if issubclass(found, Enum):
        return ["", *(f"* `{found.__name__}.{member.name}` = `{member.value!r}`" for member in found)]
    rows = [
        (name, member.fget if isinstance(member, property) else getattr(member, "__func__", member), member)
        for name, member in vars(found).items()
        if not name.startswith("_") and found.__module__.startswith("fedproof.")
    ]
    shown = [
        f"* `{name}{'' if isinstance(member, property) else '(' + ', '.join(_names(function)) + ')'}`: "
        f"{about.splitlines()[0]}"
        for name, function, member in rows
        if inspect.isfunction(function) and (about := inspect.getdoc(getattr(found, name)))
    ]
    return ["", "Members:", "", *shown] if shown else []


def _names(function: Any) -> list[str]:
    return [name for name in inspect.signature(function).parameters if name not in ("self", "cls")]


def prose(docstring: str) -> str:
    """A docstring in Google's style as Markdown: sections in bold, arguments as a list, doctests as code."""
    lines: list[str] = []
    paragraphs = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    for paragraph in paragraphs:
        if paragraph.startswith(">>>"):
            lines += ["```pycon", paragraph, "```", ""]
            continue
        head, _, body = paragraph.partition("\n")
        if re.fullmatch(r"[A-Z]\w+:", head):
            lines += [f"**{head[:-1]}**", "", *_entries(textwrap.dedent(body)), ""]
        else:
            lines += [
                re.sub(r"^((Guarantee|Assumes|Reference)[^:\n]*:)", r"\n**\1**", paragraph, flags=re.M),
                "",
            ]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(lines)).strip()


def _entries(body: str) -> list[str]:
    """`name: text` with hanging lines as one item each."""
    joined = re.sub(r"\n\s+", " ", body)
    return [re.sub(r"^(\w+): ", r"* `\1`: ", line) for line in joined.splitlines()]


# --- numbers ----------------------------------------------------------------------------------------------


def production_table() -> str:
    """Certified sizes of a federation of production scale, at infinite O."""
    mechanism = fp.UserFedAvg(rounds=2000, noise_multiplier=7.0, sampling=fp.Poisson(probability=6500 / 4e6))
    rows = ["| confidences | `join` | `replace` |", "|---|---|---|"]
    for top in (0.8, 0.9, 0.97, 0.995):
        sizes = [
            _largest(mechanism, fp.ThreatModel(relation=fp.Relation(relation)), top)
            for relation in ("join", "replace")
        ]
        rows.append(f"| {top:g} against {1 - top:.3g} | {sizes[0]} | {sizes[1]} |")
    return "\n".join(rows)


def _largest(mechanism: fp.UserFedAvg, threat: fp.ThreatModel, top: float) -> int:
    low, high = 0, 1024
    while high - low > 1:
        middle = (low + high) // 2
        curve = fp.tradeoff(mechanism, threat, middle)
        low, high = (middle, high) if curve.lower(top) > curve.upper(1 - top) else (low, middle)
    return low


def comparison_rows() -> list[ComparedRun]:
    """Rows of a real comparison: `compare.json` of the configurations in `experiments/compare/mnist-10`."""
    rows = json.loads((DOCS / "images" / "choosing.json").read_text())["rows"]
    return TypeAdapter(list[ComparedRun]).validate_python(rows)


def comparison_picture() -> str:
    """Certified accuracy over poisoned users, drawn from the rows of the comparison."""
    chart, *_ = compare_charts(comparison_rows())
    with new_axes() as axes, tempfile.TemporaryDirectory() as folder:
        draw(chart, axes)
        path = Path(folder) / "choosing.svg"
        save_figure(axes.figure, path)
        return path.read_text()


def comparison_table() -> str:
    """The same rows as a table."""
    sizes = (1, 10, 20, 50, 100)
    lines = [
        f"| configuration | unit | ε | {' | '.join(f'k = {size}' for size in sizes)} | time | sent up |",
        "|---" * (len(sizes) + 5) + "|",
    ]
    for row in comparison_rows():
        shares = [percent(certified_at(row, size)) for size in sizes]
        cells = [
            label_of(row),
            row.unit,
            amount(row.one),
            *shares,
            duration(row.seconds),
            data_size(row.bytes),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines).replace(SPACE, " ")


def with_block(page: str, name: str, content: str) -> str:
    """The page with the computed block `name` renewed."""
    pattern = rf"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{content}\n{match[2]}", page, flags=re.S)


def pages() -> dict[Path, str]:
    """What each computed page should contain."""
    certificates, choosing = DOCS / "certificates.md", DOCS / "choosing.md"
    return {
        choosing: with_block(choosing.read_text(), "comparison", comparison_table()),
        DOCS / "images" / "choosing.svg": comparison_picture(),
        DOCS / "configuration.md": configuration_page(),
        DOCS / "api.md": api_page(),
        DOCS / "reproduction.md": page(load_studies(EXPERIMENTS), EXPERIMENTS, committed_rows()),
        DOCS / records.PAGE: records.page(
            load_studies(EXPERIMENTS, RECORDS), EXPERIMENTS, committed_rows(RECORDS)
        ),
        certificates: with_block(certificates.read_text(), "production", production_table()),
    }


def committed_rows(folder: str = FOLDER) -> Rows:
    """What was measured, mostly on one GPU, see `fedproof reproduce` and `fedproof records`."""
    return Rows(EXPERIMENTS / "results" / ROWS[folder])


if __name__ == "__main__":
    write_page(load_studies(EXPERIMENTS), EXPERIMENTS, committed_rows(), DOCS)
    for path, content in pages().items():
        path.write_text(content)
