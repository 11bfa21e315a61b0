"""Argument checks: one line that names the parameter, its value and what is allowed."""

import math
import numbers


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
    for name, value in values.items():
        if not _is_whole(value) or value < 1:
            raise ValueError(f"{name} = {value!r} must be a whole number of at least 1")
        if value >= 2**63:
            raise ValueError(f"{name} must be a whole number below 2**63")


def not_negative_count(**values: int) -> None:
    """Raise ValueError unless every value is a whole number of at least zero; seeds are of any length."""
    for name, value in values.items():
        if not _is_whole(value) or value < 0:
            raise ValueError(f"{name} = {value!r} must be a whole number of at least 0")


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


def _is_whole(value: object) -> bool:
    return isinstance(value, numbers.Integral) and not isinstance(value, bool)


def _is_number(value: object) -> bool:
    if not isinstance(value, numbers.Real) or isinstance(value, bool):
        return False
    try:
        return not math.isnan(value)
    except OverflowError:  # a whole number that no float can hold
        return False
