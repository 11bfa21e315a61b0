"""Argument checks: one line that names the parameter, its value and what is allowed."""

import math
import numbers
from collections.abc import Mapping


def positive(**values: float) -> None:
    """Raise ValueError unless every value is a finite number above zero."""
    for name, value in values.items():
        if not (_is_number(value) and 0 < value < math.inf):
            raise ValueError(f"{name} = {value!r} must be a positive number")


def not_negative(**values: float) -> None:
    """Raise ValueError unless every value is a finite number, zero or above."""
    for name, value in values.items():
        if not (_is_number(value) and 0 <= value < math.inf):
            raise ValueError(f"{name} = {value!r} must be zero or a positive number")


def count(**values: int) -> None:
    """Raise ValueError unless every value is a whole number of at least one that 64 bits can hold."""
    _count_from(1, values)


def not_negative_count(**values: int) -> None:
    """Raise ValueError unless every value is a whole number of at least zero that 64 bits can hold."""
    _count_from(0, values)


def _count_from(least: int, values: Mapping[str, int]) -> None:
    for name, value in values.items():
        if not isinstance(value, numbers.Integral) or isinstance(value, bool) or value < least:
            raise ValueError(f"{name} = {value!r} must be a whole number of at least {least}")
        if value >= 2**63:
            raise ValueError(f"{name} must be a whole number below 2**63")


def probability(**values: float) -> None:
    """Raise ValueError unless every value lies in (0, 1]."""
    for name, value in values.items():
        if not (_is_number(value) and 0 < value <= 1):
            raise ValueError(f"{name} = {value!r} must be in (0, 1]")


def open_probability(**values: float) -> None:
    """Raise ValueError unless every value lies in (0, 1)."""
    for name, value in values.items():
        if not (_is_number(value) and 0 < value < 1):
            raise ValueError(f"{name} = {value!r} must be in (0, 1)")


def one_line(message: object) -> str:
    r"""What an error says, in one line whatever the file or the library put into it.

    >>> one_line(ValueError("first\nsecond"))
    'first second'
    """
    return " ".join(str(message).split()) or type(message).__name__


def _is_number(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # a whole number that no float can hold
        return False
