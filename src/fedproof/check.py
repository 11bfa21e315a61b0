"""Argument checks: one line that names the parameter, its value and what is allowed."""

import math
import numbers
import re
import unicodedata
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import fields
from enum import StrEnum
from typing import Any, TypeVar

Named = TypeVar("Named", bound=StrEnum)

_MOST_SENTENCES, _LONGEST = 100, 1000


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above zero."""
    _need(values, lambda value: _is_number(value) and 0 < value < math.inf, "a positive number")


def not_negative(**values: float) -> None:
    """Raise ValueError unless every value is a finite number, zero or above."""
    _need(values, lambda value: _is_number(value) and 0 <= value < math.inf, "zero or a positive number")


SMALLEST, LARGEST = 1e-30, 1e30  # with room for sums between them and where float32 ends


def in_float32(**values: float) -> None:
    """Raise ValueError unless every value may be a factor in the precision that models are trained in."""
    _need(values, lambda value: value <= LARGEST, f"at most {LARGEST:g}: float32 holds little more")


def summed_in_float32(**values: float) -> None:
    """Raise ValueError unless sums of vectors of such lengths keep, in float32, what is accounted of them."""
    for key, value in values.items():
        if not SMALLEST <= value <= LARGEST:
            raise ValueError(
                f"{key} = {value:g} must be from {SMALLEST:g} to {LARGEST:g}: float32 does not hold sums of "
                "such vectors as they are accounted"
            )


def count(**values: int) -> None:
    """Raise ValueError unless every value is a whole number of at least one that 64 bits can hold."""
    _need(values, lambda value: _is_whole(value) and value >= 1, "a whole number of at least 1")
    for name, value in values.items():
        if value >= 2**63:
            raise ValueError(f"{name} must be a whole number below 2**63")


def not_negative_count(**values: int) -> None:
    """Raise ValueError unless every value is a whole number of at least zero; seeds are of any length."""
    _need(values, lambda value: _is_whole(value) and value >= 0, "a whole number of at least 0")


def probability(**values: float) -> None:
    """Raise ValueError unless every value lies in (0, 1]."""
    _need(values, lambda value: _is_number(value) and 0 < value <= 1, "in (0, 1]")


def open_probability(**values: float) -> None:
    """Raise ValueError unless every value lies in (0, 1)."""
    _need(values, lambda value: _is_number(value) and 0 < value < 1, "in (0, 1)")


def member(kind: type[Named], **values: str) -> Named:
    """The member of `kind` that the one value names; ValueError says which there are."""
    _need(values, lambda value: value in list(kind), f"one of {', '.join(kind)}")
    (value,) = values.values()
    return kind(value)


def device(device: str) -> None:
    """Raise ValueError unless torch can compute on the device of this name, here and now.

    >>> device("cpu")
    >>> device("gpu")
    Traceback (most recent call last):
    ValueError: device = 'gpu' must be cpu, cuda or cuda:N
    """
    if device == "cpu":
        return
    if not re.fullmatch(r"cuda(:[0-9]{1,4})?", device):
        raise ValueError(f"device = {device!r} must be cpu, cuda or cuda:N")
    from torch import cuda  # only now: what proves works without torch

    if not cuda.is_available():
        raise ValueError(f"device = {device!r}: torch sees no CUDA device; use device = 'cpu'")
    number, there = int(device.partition(":")[2] or 0), cuda.device_count()
    if number >= there:
        raise ValueError(f"device = {device!r}: torch sees {there} CUDA devices, numbered from 0")


def plain(description: Any) -> None:
    """Let a frozen description hold Python's own numbers, whatever type they came in; call it once checked.

    NumPy's narrow ones wrap around (300 rounds of 300 steps are 24464 in uint16) and overflow (300² is
    infinite in float16, and noise without end certifies everything). They equal the right ones all the same,
    so curves that are kept for one description would serve the other.
    """
    for field in fields(description):
        value = getattr(description, field.name)
        if type(value) in (int, float, bool) or not isinstance(value, numbers.Real):
            continue
        with suppress(OverflowError):  # what no float can hold
            number = int(value) if isinstance(value, numbers.Integral) else float(value)
            object.__setattr__(description, field.name, number)


def _need(values: Mapping[str, Any], holds: Callable[[Any], bool], what: str) -> None:
    for name, value in values.items():
        if not holds(value):
            raise ValueError(f"{name} = {value!r} must be {what}")


def one_line(message: object) -> str:
    r"""What an error says, in one line whatever the file or the library put into it.

    >>> one_line(ValueError("first\nsecond"))
    'first second'
    """
    return " ".join(str(message).split()) or type(message).__name__


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # a whole number that no float can hold
        return False


def sentences(**values: tuple[str, ...]) -> None:
    """Every text is one line that shows all it holds, so that no reader is shown something else."""
    for name, texts in values.items():
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
