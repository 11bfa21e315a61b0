"""Write the parts of the user guide that are computed: the configuration's keys and the production table.

Usage: python docs/build.py. A test fails if the committed pages are not what this writes.
"""

import inspect
import re
import types
from enum import Enum
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

import fedproof as fp
from fedproof.config import Config, Section

DOCS = Path(__file__).parent


def configuration_page() -> str:
    """`configuration.md`: every section and key with what is allowed and its default."""
    lines = [
        "# The configuration file",
        "",
        "TOML. Unknown keys are errors, every default is written back into the run directory as",
        "`config.toml`, and `--set section.key=value` changes one key on the command line. This page is made",
        "from the code that validates the file.",
    ]
    for name, field in Config.model_fields.items():
        section = field.annotation
        assert isinstance(section, type)
        assert issubclass(section, Section)
        about = (inspect.getdoc(section) or "").partition(": ")[2]
        lines += [
            "",
            f"## [{name}]",
            "",
            about[:1].upper() + about[1:],
            "",
            "| key | allowed | default |",
            "|---|---|---|",
        ]
        lines += [
            f"| `{key}` | {_allowed(inner)} | {_default(inner)} |"
            for key, inner in section.model_fields.items()
        ]
    return "\n".join(lines) + "\n"


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


def with_block(page: str, name: str, content: str) -> str:
    """The page with the computed block `name` renewed."""
    pattern = rf"(<!-- {name}: begin[^>]*-->\n).*?(<!-- {name}: end -->)"
    return re.sub(pattern, lambda match: f"{match[1]}{content}\n{match[2]}", page, flags=re.S)


def pages() -> dict[Path, str]:
    """What each computed page should contain."""
    certificates = DOCS / "certificates.md"
    return {
        DOCS / "configuration.md": configuration_page(),
        certificates: with_block(certificates.read_text(), "production", production_table()),
    }


if __name__ == "__main__":
    for path, content in pages().items():
        path.write_text(content)
