"""What certificates may hold: a file may say anything where a name or a description is expected."""

import unicodedata
from collections.abc import Iterable, Mapping
from enum import StrEnum
from types import NoneType
from typing import Any

from fedproof.certificates.privacy import ApproximateDP
from fedproof.mechanisms import Mechanism
from fedproof.threat import ThreatModel

_DESCRIPTIONS: dict[str, tuple[type, ...]] = {
    "mechanism": (Mechanism, NoneType),
    "privacy": (ApproximateDP, NoneType),
    "threat": (ThreatModel,),
}

_MOST_SENTENCES, _LONGEST = 100, 1000


def become_members(settings: Any, kinds: Mapping[str, type[StrEnum]]) -> None:
    """Replace names by members of their kinds; ValueError that lists them where there is no such name."""
    for name, kind in kinds.items():
        value = getattr(settings, name)
        if value not in list(kind):
            raise ValueError(f"{name} = {value!r} must be one of {', '.join(kind)}")
        object.__setattr__(settings, name, kind(value))


def check_types(settings: Any, **more: tuple[type, ...]) -> None:
    """Mechanism, privacy, threat and whatever is named have their types, and a guarantee is known."""
    for name, kinds in (_DESCRIPTIONS | more).items():
        value = getattr(settings, name)
        if not isinstance(value, kinds):
            names = ", ".join(kind.__name__ for kind in kinds)
            raise ValueError(f"{name} = {value!r} must be one of {names}")
    if settings.mechanism is None and settings.privacy is None:
        raise ValueError("mechanism = None needs privacy=ApproximateDP(epsilon=..., delta=..., relation=...)")


def check_sentences(**sentences: tuple[str, ...]) -> None:
    """Every text is one line that shows all it holds, so that no reader is shown something else."""
    for name, texts in sentences.items():
        if not isinstance(texts, tuple) or not all(isinstance(text, str) for text in texts):
            raise ValueError(f"{name} = {texts!r} must be texts")
        if len(texts) > _MOST_SENTENCES:
            raise ValueError(f"{name} has {len(texts)} entries, must have at most {_MOST_SENTENCES}")
        for text in texts:
            if not text or text != text.strip() or len(text) > _LONGEST or not shows_all(text):
                raise ValueError(
                    f"{name} = {text[:80]!r} must be one line of 1 to {_LONGEST} characters that can be shown"
                )


def shows_all(text: str) -> bool:
    r"""Whether a text holds no character that is invisible, ends the line, or turns the direction of reading.

    >>> shows_all("ψ < 1 %"), shows_all("safe\u202eefas"), shows_all("two\nlines")
    (True, False, False)
    """
    return text.isprintable() and unicodedata.is_normalized("NFC", text)


def check_columns(result: Any, names: Iterable[str], length: int) -> None:
    """All columns of `result` that are there have `length` entries."""
    for name in names:
        values = getattr(result, name)
        if values is not None and len(values) != length:
            raise ValueError(f"{name} has {len(values)} entries, must have {length}")
