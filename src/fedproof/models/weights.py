"""Parameters to start from, read from a file that cannot run code."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.models.model import StackedModel
from fedproof.npz import read_npz


def with_weights(model: StackedModel, path: Path, head: str, *, random_head: bool = False) -> StackedModel:
    """`model` that starts from the arrays of the `.npz` file `path`, by parameter name.

    Arrays called `head.*` that have another shape are replaced by a new head for other classes: zeros, or
    drawn by the seed of the initial model if `random_head`.
    """
    arrays = {name: _tensor(array, name, path) for name, array in read_npz(path).items()}
    named, drawn = {}, []
    for name, shape in zip(model.layout.names, model.layout.shapes, strict=True):
        found = tuple(arrays[name].shape) if name in arrays else None
        if found == shape:
            named[name] = arrays[name]
        elif name.startswith(f"{head}."):
            named[name] = torch.zeros(shape)
            drawn.append(name)
        else:
            raise ValueError(f"{path}: {name} must have shape {shape}, found {found or 'nothing'}")
    return replace(model, start=model.layout.flatten(named), drawn=tuple(drawn) if random_head else ())


def _tensor(array: NDArray[Any], name: str, path: Path) -> Tensor:
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{path}: {name} has type {array.dtype}, must be numbers")
    with np.errstate(over="ignore"):
        numbers = array.astype(np.float32)
    if not np.isfinite(numbers).all():
        raise ValueError(f"{path}: {name} holds numbers that are not finite")
    return torch.from_numpy(numbers)
