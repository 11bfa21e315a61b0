"""Parameters to start from, read from a file that cannot run code."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from fedproof.models.model import StackedModel


def with_weights(model: StackedModel, path: Path, head: str) -> StackedModel:
    """`model` that starts from the arrays of the `.npz` file `path`, by parameter name.

    Arrays called `head.*` that have another shape are replaced by zeros: a new head for other classes.
    """
    with np.load(path, allow_pickle=False) as file:
        arrays = {name: torch.from_numpy(np.asarray(file[name], dtype=np.float32)) for name in file.files}
    named = {}
    for name, shape in zip(model.layout.names, model.layout.shapes, strict=True):
        found = tuple(arrays[name].shape) if name in arrays else None
        if found == shape:
            named[name] = arrays[name]
        elif name.startswith(f"{head}."):
            named[name] = torch.zeros(shape)
        else:
            raise ValueError(f"{path}: {name} must have shape {shape}, found {found or 'nothing'}")
    return replace(model, start=model.layout.flatten(named))
