"""What the models of a run answer: networks, which need torch, and the data that a run knows them by."""

from collections.abc import Mapping
from itertools import chain
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.certificates import Certificate
from fedproof.digests import of_all, of_each
from fedproof.encoders.load import seen
from fedproof.ensemble import Task, store
from fedproof.ensemble import predict as predict_scores
from fedproof.ensemble.engines import plan_for
from fedproof.experiment import ensemble_size, make_task
from fedproof.folder import CONFIG, read_config, seed_of
from fedproof.mechanisms.codec import describe
from fedproof.models.model import Layout, as_inputs
from fedproof.serving import data_section, numbers
from fedproof.serving.beside import check_about


def scores_of(
    folder: Path, known: Certificate, inputs: NDArray[np.generic], *, device: str
) -> NDArray[np.floating]:
    """Scores `(replicas, inputs, classes)` of a finished run's models, which its certificate must name."""
    config = read_config(folder)
    task = make_task(config, device, seed=seed_of(folder, config))
    if task.mechanism != known.mechanism:
        raise ValueError(f"{folder / CONFIG} describes another mechanism than the one that is certified")
    scores, sha256 = answers_of(
        task, folder, ensemble_size(config, task), _as_seen(task, inputs, folder, device)
    )
    check_about(known, sha256, folder / "parts")
    return scores


def answers_of(
    task: Task, folder: Path, num_replicas: int, ready: NDArray[np.generic]
) -> tuple[NDArray[np.floating], str]:
    """Scores `(replicas, inputs, classes)` of a finished run's models, part by part, and their digest."""
    parts = plan_for(task, num_replicas, folder, None, any_engine=True)
    if not all(store.is_finished(folder, part) for part in parts):
        raise ValueError(f"{folder}: not all replicas are there; finish the run with --resume")
    torch_device = torch.device(task.device)
    model, rows = task.model.to(torch_device, task.dtype), as_inputs(ready, torch_device, task.dtype)
    scores, digests = [], []
    for part in parts:
        named = store.read_models(folder, part)
        _check_models(named, part, task.model.layout, folder / "parts")
        digests.append(of_each({name: values.numpy() for name, values in named.items()}))
        params = torch.cat([named[name].flatten(1) for name in task.model.layout.names], dim=1)
        # Each by itself where whoever joins moves the others by a place, which would change their last bits.
        for some in torch.split(params, 1 if task.mechanism.apart else len(params)):
            placed = some.to(torch_device, task.dtype, copy=True)
            scores.append(predict_scores(model, placed, rows, cells=1 << 16))
    return np.concatenate(scores), of_all(describe(task.mechanism), chain.from_iterable(digests))


def _as_seen(task: Task, inputs: NDArray[np.generic], folder: Path, device: str) -> NDArray[np.generic]:
    """Inputs as models see them; those as published go through the encoder and the map of the task's data."""
    federation, expected = task.federation, task.federation.test_features.shape[1:]
    if federation.encoded and inputs.shape[1:] != expected and inputs.size:
        view = federation.view
        entered = seen(
            inputs if view.encoder else numbers(inputs), view, device=device, **data_section(folder)
        )
        if view.map is not None and entered.shape[1:] != view.shape:
            shape = ", ".join(map(str, view.shape or ()))
            raise ValueError(
                f"inputs have shape {inputs.shape}, must be (inputs, {shape}), or as models see them"
            )
        inputs = entered if view.map is None else view.map(entered)
    if inputs.ndim < 2 or inputs.shape[1:] != expected or not len(inputs):
        raise ValueError(
            f"inputs have shape {inputs.shape}, must be (inputs, {', '.join(map(str, expected))})"
        )
    return numbers(inputs, token_ids=federation.features.dtype.kind != "f")


def _check_models(named: Mapping[str, Tensor], part: store.Part, layout: Layout, folder: Path) -> None:
    """Raise ValueError unless these are the models of the part, of this layout: each counts as one."""
    wanted = {
        name: (len(part.replicas), *shape) for name, shape in zip(layout.names, layout.shapes, strict=True)
    }
    found = {name: tuple(values.shape) for name, values in named.items() if values.is_floating_point()}
    if found != wanted or found.keys() != named.keys():
        raise ValueError(
            f"{folder}: part {part.index} must hold {len(part.replicas)} models of floats: "
            f"{', '.join(f'{name} {shape}' for name, shape in wanted.items())}"
        )
