"""A user's own data: a function named `my_package.module:function`."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays
from fedproof.federation import Federation
from fedproof.functions import load_function

MAX_CLASSES = 100_000  # labels beyond are account numbers or prices, and each class costs memory


def read(name: str) -> Arrays | Federation:
    """What the function of this name returns when it is called without arguments.

    It may return a Federation (used as it is), `Arrays`, or `(features, labels, test_features,
    test_labels)`, whose classes are the labels 0 to the largest one.
    """
    result = load_function("name", name)()
    if isinstance(result, Federation):
        return result
    if isinstance(result, Arrays):
        return result
    if isinstance(result, tuple | list) and len(result) == 4:
        return _from_arrays(name, *result)
    raise ValueError(
        f"{name} returned {type(result).__name__}; it must return a fedproof.federation.Federation, "
        "fedproof.data.Arrays, or (features, labels, test_features, test_labels)"
    )


def _from_arrays(name: str, features: Any, labels: Any, test_features: Any, test_labels: Any) -> Arrays:
    numbers, test_numbers = _labels(name, labels), _labels(name, test_labels)
    classes = 1 + int(max(numbers.max(initial=0), test_numbers.max(initial=0)))
    if classes > MAX_CLASSES:
        raise ValueError(f"{name}: label {classes - 1} is no class; number the classes from 0")
    return Arrays(
        features=_features(name, features),
        labels=numbers,
        test_features=_features(name, test_features),
        test_labels=test_numbers,
        class_names=tuple(str(label) for label in range(classes)),
        name=name,
    )


def _features(name: str, values: Any) -> NDArray[np.float32]:
    try:
        array = np.asarray(values, dtype=np.float32)
    except (ValueError, TypeError):
        raise ValueError(f"{name}: features must be an array of numbers, one row for each instance") from None
    if array.ndim < 2 or not np.isfinite(array).all():
        raise ValueError(f"{name}: features must be finite numbers, one row for each instance")
    return array


def _labels(name: str, values: Any) -> NDArray[np.int64]:
    array = np.asarray(values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or (len(array) and array.min() < 0):
        raise ValueError(
            f"{name}: labels must be one row of integers from 0, found {array.dtype} {array.shape}"
        )
    return array.astype(np.int64)
