"""From a TOML text to a validated value; errors name the key, its value and what is allowed."""

import difflib
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import ValidationError

from fedproof import check
from fedproof.config.experiment import Config
from fedproof.config.mechanism import MechanismSection, known_keys
from fedproof.config.sections import Section

Kind = TypeVar("Kind", bound=Section)


def load_config(path: Path, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a TOML file, with `a.b=value` overrides.

    Raises:
        ValueError: one line that names the file, the key, its value and what is allowed.
    """
    try:
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError as error:
        raise ValueError(f"{path}: there is no such file") from error
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path}: cannot be read: {error}") from error
    return parse_config(text, str(path), overrides)


def parse_config(text: str, name: str, overrides: Iterable[str] = ()) -> Config:
    """The configuration in a TOML text; `name` is what errors call it."""
    try:
        document = tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{name}: not valid TOML: {check.one_line(error)}") from error
    said = [_set(document, override) for override in overrides]
    if "mechanism.kind" in said:
        _forget_old_kind(document["mechanism"], said)
    return validated(Config, document, name)


def validated(model: type[Kind], document: Mapping[str, Any], name: str) -> Kind:
    """The document as `model`, or ValueError of one line that starts with `name`."""
    try:
        return model.model_validate(_floats(document, model))
    except ValidationError as error:
        # A misspelt key also makes a key missing: the spelling is what helps.
        worst = min(error.errors(), key=lambda one: one["type"] != "extra_forbidden")
        raise ValueError(f"{name}: {check.one_line(_explain(worst, model))}") from error


def _forget_old_kind(section: dict[str, Any], said: Sequence[str]) -> None:
    """Where an override changes the kind, what the file says for the old one alone is left behind."""
    known = known_keys(str(section["kind"]))
    for key in [key for key in section if known and key not in known and f"mechanism.{key}" not in said]:
        if key in MechanismSection.model_fields:
            del section[key]


def _set(document: dict[str, Any], override: str) -> str:
    """Apply one `a.b=value` and say which key it was; the value is TOML, or else a plain string."""
    key, equals, text = override.partition("=")
    section, dot, field = key.strip().partition(".")
    if not equals or not dot or not section or not field:
        raise ValueError(f"--set {override!r} must look like section.key=value")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, RecursionError):
        value = text.strip()
    table = document.setdefault(section, {})
    if not isinstance(table, dict):
        raise ValueError(f"--set {override!r}: {section} is not a section")
    table[field] = value
    return f"{section}.{field}"


def _floats(document: Mapping[str, Any], model: type[Section]) -> dict[str, Any]:
    """Whole numbers where a float is wanted are floats: `noise_multiplier = 2` is what people write."""
    result: dict[str, Any] = {}
    for key, value in document.items():
        field = model.model_fields.get(key)
        kind = field.annotation if field else None
        if isinstance(value, dict) and isinstance(kind, type) and issubclass(kind, Section):
            result[key] = _floats(value, kind)
        elif type(value) is int and _wants_float(kind):
            result[key] = _as_float(value)
        else:
            result[key] = value
    return result


def _as_float(value: int) -> float | int:
    try:
        return float(value)
    except OverflowError:  # left to the field, which says what is allowed
        return value


def _wants_float(kind: Any) -> bool:
    return kind is float or any(_wants_float(part) for part in get_args(kind) if part is not int)


def _explain(error: Any, model: type[Section]) -> str:
    """One line from pydantic's first error."""
    path = ".".join(str(part) for part in error["loc"])
    if error["type"] == "extra_forbidden":
        return f"{path} is not a known key{_nearest(error['loc'], model)}"
    if error["type"] == "missing":
        return f"{path} is missing"
    message = str(error["msg"]).removeprefix("Value error, ")
    if error["type"] == "value_error":
        section = f"{path}." if path and "." not in message.split(" ")[0] else ""
        return f"{section}{message}"
    return f"{path} = {error['input']!r}: {message[0].lower()}{message[1:]}"


def _nearest(location: tuple[int | str, ...], model: type[Section]) -> str:
    """The known key closest to an unknown one, or all known ones."""
    for part in location[:-1]:
        annotation = model.model_fields[str(part)].annotation
        assert isinstance(annotation, type)
        model = annotation
    known = list(model.model_fields)
    close = difflib.get_close_matches(str(location[-1]), known, n=1) or [
        key for key in known if key.startswith(str(location[-1]))
    ]
    return f"; did you mean {close[0]}?" if close else f"; known are {', '.join(known)}"
