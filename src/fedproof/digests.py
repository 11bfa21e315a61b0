"""SHA-256 of numbers by their content: no container, file or division into parts changes it."""

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

PART_VALUES = 2_000_000  # values held at once as float64: 16 MB


def fingerprint(array: NDArray[Any]) -> str:
    """Hexadecimal sha256 of the type, the shape and the values in C order; the same for any container.

    >>> fingerprint(np.zeros(1))[:8]
    '7f772bdf'
    """
    digest = hashlib.sha256(f"{array.dtype.newbyteorder('<').str}{array.shape}".encode())
    for _, part in replica_parts(array):
        digest.update(np.ascontiguousarray(little_endian(part)).data)
    return digest.hexdigest()


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The same numbers, least byte first."""
    return array.astype(array.dtype.newbyteorder("<"), copy=False)


def replica_parts(array: NDArray[Any]) -> Iterator[tuple[int, NDArray[Any]]]:
    """Runs of leading entries, each of limited size, with the index of the first."""
    step = max(1, PART_VALUES // max(1, array[:1].size))
    for first in range(0, len(array), step):
        yield first, np.asarray(array[first : first + step])


def digest_of(said: Any, arrays: Mapping[str, NDArray[Any]]) -> str:
    """SHA-256 of what is `said`, which JSON can hold, and of named arrays."""
    content = [said, {name: fingerprint(array) for name, array in sorted(arrays.items())}]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def of_each(models: Mapping[str, NDArray[Any]]) -> list[str]:
    """The digest of each model; named parameters are `(models, ...)`."""
    count = len(next(iter(models.values()), ()))
    return [
        digest_of("model", {name: values[index] for name, values in models.items()}) for index in range(count)
    ]


def of_all(said: Any, each: Iterable[str]) -> str:
    """The digest of models in their order, from the digest of each, and of what is `said` of all of them.

    >>> models = {"weight": np.arange(6.0).reshape(3, 2)}
    >>> halves = ({"weight": models["weight"][:1]}, {"weight": models["weight"][1:]})
    >>> of_all("", of_each(models)) == of_all("", (digest for half in halves for digest in of_each(half)))
    True
    """
    return hashlib.sha256(json.dumps([said, *each], sort_keys=True).encode()).hexdigest()
