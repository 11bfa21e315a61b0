"""What tells one task from another, and one version of the engine: parts on disk are known by it."""

import hashlib
import inspect
import secrets
import sys
from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache, partial
from pathlib import Path
from types import FunctionType

import numpy as np
import torch
from torch import Tensor

import fedproof
from fedproof.ensemble.task import Task
from fedproof.rounds.randomness import initial_seed


@cache
def engine_version() -> str:
    """SHA-256 over the code that decides the bits of a replica, and versions of what computes for it.

    Finished parts of another version are not mixed with new ones: a certificate assumes that all replicas
    were made alike.
    """
    digest = hashlib.sha256(repr((torch.__version__, np.__version__)).encode())
    package = Path(fedproof.__file__).parent
    rooms = ("aggregation", "rounds", "models", "mechanisms", "seeds.py", "release.py", "ensemble/train.py")
    for room in rooms:
        path = package / room
        for file in [path] if path.suffix else sorted(path.rglob("*.py")):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:32]


def fingerprint(task: Task) -> str:
    """SHA-256 over all of a task that decides the results: a stored part is used only if it matches."""
    digest = hashlib.sha256()
    parts = (task.mechanism, task.local, task.seed, task.dtype, torch.device(task.device).type)
    digest.update(
        repr(
            (*parts, task.model.layout, task.model.module(), _name(task.aggregation), _name(task.attack))
        ).encode()
    )
    # Said only where they are there: parts that were stored without them stay valid.
    if code := _own_code(task):
        digest.update(repr(sorted(code.items())).encode())
    if values := _own_values(task):
        digest.update(repr(values).encode())
    if task.secure_noise:
        digest.update(b"secure noise")
    if task.own_start:
        digest.update(b"own start")
    federation = task.federation
    arrays = (
        federation.features,
        federation.labels,
        federation.offsets,
        federation.test_features,
        federation.who,
        federation.which,
        np.array(federation.most_instances or 0),
    )
    start = task.model.initial(initial_seed(task.seed)).numpy()
    # Of a user's own module: what is not trained decides the results as much as what is.
    frozen = getattr(task.model, "frozen", {})
    still = [frozen[name].cpu().reshape(-1).view(torch.uint8).numpy() for name in sorted(frozen)]
    for array in (*arrays, start, federation.vectors, federation.public_features, *still):
        if array is not None:
            digest.update(f"{array.dtype}{array.shape}".encode())
            digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()


def _name(rule: object) -> str:
    """What tells one rule from another: name and captured values of a function, `repr` of anything else."""
    return _said(rule) if isinstance(rule, FunctionType) else repr(rule)


def _captured(function: FunctionType) -> list[object]:
    return [cell.cell_contents for cell in function.__closure__ or ()]


def _said(value: object, above: tuple[int, ...] = ()) -> str:
    """A value as text that is the same in every process: of arrays all numbers, of no object its address.

    What is inside an object of another kind is not told apart; nor is a value inside itself.
    """
    inside = partial(_said, above=(*above, id(value)))
    match value:
        case _ if id(value) in above:
            return "itself"
        case Enum():
            return f"{_called(type(value))}.{value.name}"
        case None | int() | float() | complex() | str() | bytes() | np.generic() | torch.dtype():
            return repr(value)
        case Tensor():  # of any type, also those that NumPy has not
            return inside(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
        case np.ndarray():
            digest = hashlib.sha256(np.ascontiguousarray(value).data).hexdigest()
            return f"{value.dtype}{value.shape} {digest}"
        case tuple() | list():
            return f"[{', '.join(map(inside, value))}]"
        case set() | frozenset():
            return f"{{{', '.join(sorted(map(inside, value)))}}}"
        case Mapping():
            return f"{{{', '.join(f'{inside(key)}: {inside(one)}' for key, one in value.items())}}}"
        case partial():
            return f"partial {inside([value.func, value.args, value.keywords])}"
        case FunctionType():
            # Lambdas of one function share its name; their places in the file differ.
            place = list(value.__code__.co_positions()) if _is_own(value) else ""
            return f"{_called(value)} {place} {inside(_captured(value))}"
        case _ if is_dataclass(value) and not isinstance(value, type):
            held = {one.name: getattr(value, one.name) for one in fields(value)}
            return f"{_called(type(value))} {inside(held)}"
    return _called(value if isinstance(value, type) else type(value))


def _called(thing: type | FunctionType) -> str:
    return f"{thing.__module__}.{thing.__qualname__}"


def _own_code(task: Task) -> dict[str, str]:
    """The source of what the user wrote herself, by name: of rule, attack, and every part of the model.

    `engine_version` speaks of this package's code, and of the version of torch.
    """
    parts = (task.aggregation, task.attack, *task.model.module().modules())
    found = {thing for part in parts for thing in _written(part) if _is_own(thing)}
    return {f"{thing.__module__}.{thing.__qualname__}": _source(thing) for thing in found}


def _own_values(task: Task) -> list[tuple[str, str]]:
    """What the user's own modules hold, and her rule has captured: the code does not tell."""
    rule = getattr(task.aggregation, "function", None)
    captures = isinstance(rule, FunctionType) and _is_own(rule) and _captured(rule)
    found = [("rule", _said(rule))] if captures else []
    for path, part in task.model.module().named_modules():
        held = vars(part) if _is_own(type(part)) else {}
        found += [(f"{path}.{name}", _said(held[name])) for name in sorted(held.keys() - _OF_EVERY_MODULE)]
    return found


_OF_EVERY_MODULE = vars(torch.nn.Module()).keys()


def _written(part: object) -> Iterator[type | FunctionType]:
    """The code that a part may call: a function, or the classes of a value and the functions it holds."""
    if isinstance(part, FunctionType):
        yield part
        return
    yield from type(part).__mro__
    for value in getattr(part, "__dict__", {}).values():
        if isinstance(value, FunctionType) or is_dataclass(value):
            yield from _written(value)


def _is_own(thing: type | FunctionType) -> bool:
    return (thing.__module__ or "").partition(".")[0] not in (
        "abc",
        "builtins",
        "fedproof",
        "torch",
        "typing",
    )


def _source(thing: type | FunctionType) -> str:
    """The file that a function or class stands in: a function that it calls may stand there too."""
    for place in (sys.modules.get(thing.__module__), thing):  # a notebook is no file, but has cells
        try:
            return inspect.getsource(place)  # type: ignore[arg-type]
        except (OSError, TypeError):
            continue
    return f"{_PROCESS} {id(thing)}"


_PROCESS = secrets.token_hex()
"""Stands for code that was typed at a prompt: another process cannot know whether it has the same."""
