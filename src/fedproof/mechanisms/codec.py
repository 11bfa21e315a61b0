"""Descriptions as plain JSON values, and back, exactly: the one way into certificates and ledgers.

Every kind is registered here, by one line. A file holds `kind` and all fields of the dataclass.
"""

from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any, TypeVar, get_args, get_origin, get_type_hints

import numpy as np

from fedproof.mechanisms.clipping import Flat, Median, PerLayer, PerLayerMedian, Quantile
from fedproof.mechanisms.cohort_once import Bagging, CohortOnce
from fedproof.mechanisms.contract import Mechanism, Query
from fedproof.mechanisms.instance import InstanceFedAvg, InstanceFedSGD
from fedproof.mechanisms.local import Local
from fedproof.mechanisms.one_round import OneRound, Smoothed
from fedproof.mechanisms.partition import NoisyPartition, Partition
from fedproof.mechanisms.queries import Queries
from fedproof.mechanisms.sampling import Everyone, FixedSize, Poisson
from fedproof.mechanisms.uploads import UPLOADS
from fedproof.mechanisms.user_fedavg import FedAvg, UserFedAvg
from fedproof.statements import Statement
from fedproof.threat import ThreatModel

Kind = TypeVar("Kind", bound=type)

KINDS: dict[str, Any] = {}


def register(kind: Kind) -> Kind:
    """Let files hold values of this frozen dataclass, under its `kind`."""
    KINDS[kind.kind] = kind  # type: ignore[attr-defined]
    return kind


_DRAWN = (UserFedAvg, InstanceFedSGD, InstanceFedAvg, CohortOnce, Bagging)
for _kind in (*_DRAWN, Partition, NoisyPartition, OneRound, Local, Smoothed, FedAvg, Queries):
    register(_kind)
for _part in (Query, Poisson, FixedSize, Everyone, Flat, PerLayer, Median, PerLayerMedian, Quantile):
    register(_part)
for _upload in UPLOADS.values():
    register(_upload)
register(ThreatModel)


def trainable_kinds() -> dict[str, type[Mechanism]]:
    """The mechanisms that can be executed, by their names."""
    found = {name: kind for name, kind in KINDS.items() if issubclass(kind, Mechanism)}
    return {name: kind for name, kind in found.items() if kind.executor is not None}


def describe(value: Any) -> Any:
    """`value` as JSON: a description becomes an object with its `kind` and all its fields.

    >>> describe(UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1)))["sampling"]
    {'kind': 'poisson', 'probability': 0.1}
    """
    if isinstance(value, Statement):
        return value.document()
    if is_dataclass(value) and not isinstance(value, type):
        name = getattr(type(value), "kind", None)
        if name is None or KINDS.get(name) is not type(value):
            raise ValueError(f"{type(value).__name__} cannot be written to a certificate")
        return {"kind": name} | {one.name: describe(getattr(value, one.name)) for one in fields(value)}
    if isinstance(value, tuple):
        return [describe(part) for part in value]
    if isinstance(value, np.generic):
        return value.item()
    return str(value) if isinstance(value, str) else value


def restore(document: Any, *, name: str) -> Any:
    """The value that `describe` wrote; ValueError that names the field if the document is not one.

    >>> restore({"kind": "poisson", "probability": 0.1}, name="sampling")
    Poisson(probability=0.1)
    """
    if isinstance(document, list):
        return tuple(restore(part, name=name) for part in document)
    if not isinstance(document, Mapping):
        return document
    if "code" in document:
        return _statement(document, name)
    kind = document.get("kind")
    if not isinstance(kind, str) or kind not in KINDS:
        raise ValueError(f"{name}.kind = {kind!r} must be one of {', '.join(KINDS)}")
    cls = KINDS[kind]
    known = {field.name for field in fields(cls)}
    odd = (set(document) - {"kind"}) ^ known
    if odd:
        raise ValueError(f"{name} of kind {kind} has missing or unknown fields: {', '.join(sorted(odd))}")
    parts = {key: restore(document[key], name=f"{name}.{key}") for key in known}
    hints = get_type_hints(cls)
    for key, part in parts.items():
        if not _fits(part, hints[key]):
            raise ValueError(f"{name}.{key} = {part!r} is not what {kind} has there")
    try:
        return cls(**parts)
    except (TypeError, ValueError, AttributeError, OverflowError) as error:
        raise ValueError(f"{name} of kind {kind}: {error}") from error


def _statement(document: Mapping[str, Any], name: str) -> Statement:
    if set(document) != {"code", "arguments"}:
        raise ValueError(f"{name} holds a statement with missing or unknown fields: {', '.join(document)}")
    try:
        return Statement(**document)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name}: {error}") from error


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
