"""Mechanisms, guarantees and threats as plain JSON values, and back, exactly."""

from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from typing import Any, get_args, get_origin, get_type_hints

import numpy as np

from fedproof.certificates.privacy import ApproximateDP
from fedproof.mechanisms import (
    CohortOnce,
    Everyone,
    FedAvg,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    Median,
    Partition,
    PerLayer,
    PerLayerMedian,
    Poisson,
    Quantile,
    Queries,
    Query,
    UserFedAvg,
)
from fedproof.threat import ThreatModel

_KINDS: dict[str, type] = {
    "user-fedavg": UserFedAvg,
    "instance-fedsgd": InstanceFedSGD,
    "instance-fedavg": InstanceFedAvg,
    "cohort-once": CohortOnce,
    "partition": Partition,
    "fedavg": FedAvg,
    "queries": Queries,
    "query": Query,
    "poisson": Poisson,
    "fixed": FixedSize,
    "none": Everyone,
    "flat": Flat,
    "per-layer": PerLayer,
    "median": Median,
    "per-layer-median": PerLayerMedian,
    "quantile": Quantile,
    "approximate-dp": ApproximateDP,
    "threat": ThreatModel,
}
# Fields that files of version 1 lack: not written while they say nothing, so that old files stay as they are.
_LATER = frozenset({"population", "by_size"})
_NAMES = {cls: kind for kind, cls in _KINDS.items()}


def describe(value: Any) -> Any:
    """`value` as JSON: a description becomes an object with its `kind` and all its fields.

    >>> describe(UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1)))["sampling"]
    {'kind': 'poisson', 'probability': 0.1}
    """
    if is_dataclass(value) and not isinstance(value, type):
        if type(value) not in _NAMES:
            raise ValueError(f"{type(value).__name__} cannot be written to a certificate")
        parts = {
            field.name: describe(getattr(value, field.name))
            for field in fields(value)
            if field.name not in _LATER or getattr(value, field.name) not in (None, False)
        }
        if isinstance(value, ApproximateDP) and value.relation is None:
            del parts["relation"]  # as files of version 1 lack it
        return {"kind": _NAMES[type(value)]} | parts
    if isinstance(value, tuple):
        return [describe(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, str) else value


def restore(document: Any, *, name: str) -> Any:
    """The value that `describe` wrote; ValueError that names the field if the document is not one.

    Fields that an earlier release did not have may be missing if they have a default.

    >>> restore({"kind": "poisson", "probability": 0.1}, name="sampling")
    Poisson(probability=0.1)
    """
    if isinstance(document, list):
        return tuple(restore(part, name=name) for part in document)
    if not isinstance(document, Mapping):
        return document
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in _KINDS:
        raise ValueError(f"{name}.kind = {kind!r} must be one of {', '.join(_KINDS)}")
    cls = _KINDS[kind]
    given, known = set(document) - {"kind"}, {field.name for field in fields(cls)}
    odd = (given - known) | (_needed(cls) - given)
    if odd:
        raise ValueError(f"{name} of kind {kind} has missing or unknown fields: {', '.join(sorted(odd))}")
    parts = {key: restore(document[key], name=f"{name}.{key}") for key in known & given}
    hints = get_type_hints(cls)
    for key, part in parts.items():
        if not _fits(part, hints[key]):
            raise ValueError(f"{name}.{key} = {part!r} is not what {kind} has there")
    try:
        return cls(**parts)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{name} of kind {kind}: {error}") from error


def completed(document: Any) -> Any:
    """A document that `restore` has accepted, with the defaults of all fields that are missing in it.

    >>> completed({"kind": "threat", "unit": "user"})
    {'kind': 'threat', 'unit': 'user', 'relation': 'replace'}
    """
    if isinstance(document, list):
        return [completed(part) for part in document]
    if not isinstance(document, Mapping):
        return document
    whole = describe(restore(document, name=""))
    return {key: completed(document[key]) if key in document else value for key, value in whole.items()}


def _needed(cls: Any) -> set[str]:
    return {
        field.name for field in fields(cls) if field.default is MISSING and field.default_factory is MISSING
    }


_PLAIN: dict[Any, tuple[type, ...]] = {float: (int, float), int: (int,), str: (str,)}  # bool is none of them


def _fits(value: Any, hint: Any) -> bool:
    """Whether a field of type `hint` may hold `value`; enumerations are written as their texts."""
    if get_origin(hint) is tuple:
        return isinstance(value, tuple) and all(_fits(part, get_args(hint)[0]) for part in value)
    if get_args(hint):
        return any(_fits(value, kind) for kind in get_args(hint))
    if hint in _PLAIN:
        return isinstance(value, _PLAIN[hint]) and not isinstance(value, bool)
    return isinstance(value, str if issubclass(hint, Enum) else hint)
