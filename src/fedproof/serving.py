"""New inputs for the ensemble of a finished run."""

from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from fedproof.certificates import Certificate
from fedproof.encoders.load import seen
from fedproof.ensemble import Task, store
from fedproof.ensemble import predict as predict_scores
from fedproof.ensemble.engines import plan_for
from fedproof.experiment import certify_scores, ensemble_size, make_task
from fedproof.folder import RELEASE, read_config, seed_of
from fedproof.mechanisms import Releases, is_certified
from fedproof.models.model import as_inputs
from fedproof.release import load_release


def predict(folder: Path, inputs: NDArray[np.generic], *, device: str = "cpu") -> Certificate:
    """The certificate of a finished run's ensemble on new inputs, without labels.

    Inputs may be as the models see them, or as published where the run encodes or projects them.

    Guarantee: as for the run itself; the certified predictor is the mean of all its replicas, or the one
    model that was released.
    """
    config = read_config(folder)
    task = make_task(config, device, seed=seed_of(folder, config))
    if not is_certified(task.mechanism):
        raise ValueError(f"{folder}: fedavg adds no noise, its predictions have no certificate")
    expected = task.federation.test_features.shape[1:]
    if task.federation.encoded and inputs.shape[1:] != expected and len(inputs):
        inputs = seen(inputs, device=device, **config.data.model_dump())
    if inputs.ndim < 2 or inputs.shape[1:] != expected or not len(inputs):
        raise ValueError(
            f"inputs have shape {inputs.shape}, must be (inputs, {', '.join(map(str, expected))})"
        )
    scores = _scores_on(inputs, task, folder, ensemble_size(config, task))
    return certify_scores(config, task, scores, None)


def _scores_on(
    inputs: NDArray[np.generic], task: Task, folder: Path, num_replicas: int
) -> NDArray[np.floating]:
    """Scores `(replicas, inputs, classes)` of a finished run's models, part by part."""
    if task.mechanism.releases is Releases.MODEL:
        return load_release(folder / RELEASE).scores(inputs)[None]
    parts = plan_for(task, num_replicas, folder / "parts", None, any_engine=True)
    if not all(store.is_finished(folder / "parts", part) for part in parts):
        raise ValueError(f"{folder}: not all replicas are there; finish the run with --resume")
    device = torch.device(task.device)
    model, ready = task.model.to(device, task.dtype), as_inputs(inputs, device, task.dtype)
    scores = []
    for part in parts:
        named = store.read_models(folder / "parts", part)
        params = torch.cat([named[name].flatten(1) for name in task.model.layout.names], dim=1)
        scores.append(predict_scores(model, params.to(device, task.dtype), ready, cells=1 << 16))
    return np.concatenate(scores)
