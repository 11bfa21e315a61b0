"""A user's own function, named `my_package.module:function` in a configuration."""

import os
import sys
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Any

from fedproof import check


def load_function(option: str, name: str) -> Callable[..., Any]:
    """The function called `name`, from an installed module or one in the current folder.

    The `option` is what errors call it.

    >>> load_function("model", "math:sqrt")(9.0)
    3.0
    """
    module, _, attribute = name.partition(":")
    if not module or module.startswith("."):
        raise ValueError(f"{option} = {name!r} must look like 'my_package.module:function'")
    try:
        with _current_folder():
            function = getattr(import_module(module), attribute, None)
    except ModuleNotFoundError as error:
        raise ValueError(
            f"{option} = {name!r} cannot be imported: module {error.name!r} is not found; install it, "
            "extend PYTHONPATH, or run this in the folder that holds it"
        ) from error
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"{option} = {name!r} cannot be imported: {error}") from error
    if not callable(function):
        raise ValueError(f"{option} = {name!r}: module {module!r} has no function {attribute!r}")
    return function  # type: ignore[no-any-return]


@contextmanager
def _current_folder() -> Iterator[None]:
    """Modules are found in the current folder too, but last: no file there hides what is installed."""
    folder = os.getcwd()
    if folder in sys.path:
        yield
        return
    sys.path.append(folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def check_options(what: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise ValueError if an option is given that `what` does not have."""
    for option in given:
        if option not in known:
            raise ValueError(f"{option} is no parameter of {what}; it has {', '.join(known) or 'none'}")


def called(name: str, function: Callable[[], Any]) -> Any:
    """What somebody's own function returns; an error of hers in one line that names it."""
    try:
        return function()
    except ValueError:
        raise  # hers or ours: it says what is wrong
    except Exception as error:
        raise ValueError(f"{name} failed with {type(error).__name__}: {check.one_line(error)}") from error
