"""New inputs for the ensemble of a finished run."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.certificates import Certificate, loads
from fedproof.certificates.api import certificate_of_scores
from fedproof.encoders.load import seen
from fedproof.ensemble import Task, store
from fedproof.ensemble import predict as predict_scores
from fedproof.ensemble.engines import plan_for
from fedproof.experiment import certify_scores, ensemble_size, make_task
from fedproof.files import RESULTS, read_npz, read_whole
from fedproof.folder import CERTIFICATE, CONFIG, MODELS, RELEASE, read_config, seed_of
from fedproof.mechanisms import Mechanism, Releases, is_certified
from fedproof.models.model import Layout, as_inputs
from fedproof.release import load_release


def predict(folder: Path, inputs: NDArray[np.generic], *, device: str = "cpu") -> Certificate:
    """The certificate of a finished run's ensemble on new inputs, without labels.

    Inputs may be as the models see them, or as published where the run encodes or projects them.

    Guarantee: as for the run itself; the certified predictor is the mean of all its replicas, or the one
    model that was released.

    A federation's directory has no configuration: there the certificate says what holds, and the release or
    the linear models that lie beside it answer, for inputs as nodes' heads see them.
    """
    if not (folder / CONFIG).exists() and (folder / CERTIFICATE).exists():
        return _answered(folder, inputs)
    config = read_config(folder)
    task = make_task(config, device, seed=seed_of(folder, config))
    if not is_certified(task.mechanism):
        raise ValueError(f"{folder}: fedavg adds no noise, its predictions have no certificate")
    federation, expected = task.federation, task.federation.test_features.shape[1:]
    if federation.encoded and inputs.shape[1:] != expected and inputs.size:
        # An encoder looks at its inputs itself.
        published = _numbers(inputs) if config.data.encoder is None else inputs
        inputs = seen(published, device=device, **config.data.model_dump())
    if inputs.ndim < 2 or inputs.shape[1:] != expected or not len(inputs):
        raise ValueError(
            f"inputs have shape {inputs.shape}, must be (inputs, {', '.join(map(str, expected))})"
        )
    numbers = _numbers(inputs, token_ids=federation.features.dtype.kind != "f")
    scores = _scores_on(numbers, task, folder, ensemble_size(config, task))
    return certify_scores(config, task, scores, None)


def _numbers(inputs: NDArray[np.generic], *, token_ids: bool = False) -> NDArray[np.generic]:
    """Inputs as numbers like those that models were trained on; what may mean something else is refused."""
    kind = inputs.dtype.kind
    if token_ids and kind not in "iu":
        raise ValueError(f"inputs have type {inputs.dtype}, must be token ids, which are whole numbers")
    if token_ids:
        return inputs
    if inputs.dtype == np.uint8:
        raise ValueError(
            "inputs are bytes (uint8), must be numbers on the scale of the training features: of pixels make "
            "float32, divided by 255 if that was done there"
        )
    if kind not in "iuf":
        raise ValueError(f"inputs have type {inputs.dtype}, must be numbers")
    wrong = np.argwhere(~np.isfinite(np.atleast_1d(inputs)))
    if len(wrong):
        raise ValueError(f"inputs hold a number that is not finite, in input {wrong[0][0]}")
    return inputs if kind == "f" else inputs.astype(np.float32)


def _answered(folder: Path, inputs: NDArray[np.generic]) -> Certificate:
    """The certificate of a federation's models on new inputs, by the settings of its own certificate."""
    known = loads(read_whole(folder / CERTIFICATE, RESULTS))
    if inputs.ndim != 2 or not len(inputs):
        raise ValueError(f"inputs have shape {inputs.shape}, must be (inputs, features)")
    inputs = _numbers(inputs)
    scores: NDArray[np.floating]
    if (folder / RELEASE).exists():
        scores = _released(folder, known.mechanism, inputs)
    else:
        scores = _linear_scores(folder / MODELS, inputs)
    if len(scores) != known.num_replicas:
        raise ValueError(f"{folder}: holds {len(scores)} models, the certificate is of {known.num_replicas}")
    if scores.shape[2] != known.num_classes:
        raise ValueError(
            f"{folder}: models know {scores.shape[2]} classes, the certificate is of {known.num_classes}"
        )
    return certificate_of_scores(known.settings, scores, None)


def _released(folder: Path, mechanism: Mechanism | None, inputs: NDArray[np.generic]) -> NDArray[np.floating]:
    """Scores of the release in a folder, which must be of the mechanism that is certified."""
    release = load_release(folder / RELEASE)
    if release.mechanism != mechanism:
        raise ValueError(f"{folder}: {RELEASE} is of another mechanism than the one that is certified")
    return release.scores(inputs)[None]


def _linear_scores(path: Path, inputs: NDArray[np.generic]) -> NDArray[np.floating]:
    """Softmax scores of the models in a file: a weight `(models, classes, features)`, and a bias or none."""
    if not path.exists():
        raise ValueError(f"{path.parent}: holds neither {RELEASE} nor {MODELS}, which answer new inputs")
    arrays = {name.rpartition(".")[2]: array for name, array in read_npz(path).items()}
    weight, bias = arrays.pop("weight", None), arrays.pop("bias", None)
    if arrays or weight is None or weight.ndim != 3 or inputs.shape[1] != weight.shape[2]:
        raise ValueError(
            f"{path}: must hold a weight (models, classes, {inputs.shape[1]}) and at most a bias"
        )
    bias = np.zeros(weight.shape[:2]) if bias is None else bias
    if bias.shape != weight.shape[:2] or not all(
        each.dtype.kind == "f" and np.isfinite(each).all() for each in (weight, bias)
    ):
        raise ValueError(f"{path}: weight and bias must be finite floats, one bias for each model and class")
    weight, bias = weight.astype(np.float64), bias.astype(np.float64)
    layers = torch.tensor(weight, dtype=torch.float64).mT
    ready = torch.tensor(inputs, dtype=torch.float64)
    logits = torch.stack([ready @ layer.clone() for layer in layers])  # each by itself, as in `_scores_on`
    found = torch.softmax(logits + torch.from_numpy(bias)[:, None, :], dim=2)
    if not found.isfinite().all():
        raise ValueError(f"{path}: numbers are too large to compute with")
    return found.numpy()


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


def _scores_on(
    inputs: NDArray[np.generic], task: Task, folder: Path, num_replicas: int
) -> NDArray[np.floating]:
    """Scores `(replicas, inputs, classes)` of a finished run's models, part by part."""
    if task.mechanism.releases is Releases.MODEL:
        return _released(folder, task.mechanism, inputs)
    parts = plan_for(task, num_replicas, folder / "parts", None, any_engine=True)
    if not all(store.is_finished(folder / "parts", part) for part in parts):
        raise ValueError(f"{folder}: not all replicas are there; finish the run with --resume")
    device = torch.device(task.device)
    model, ready = task.model.to(device, task.dtype), as_inputs(inputs, device, task.dtype)
    scores = []
    for part in parts:
        named = store.read_models(folder / "parts", part)
        _check_models(named, part, task.model.layout, folder / "parts")
        params = torch.cat([named[name].flatten(1) for name in task.model.layout.names], dim=1)
        # Each by itself where whoever joins moves the others by a place, which would change their last bits.
        for some in torch.split(params, 1 if task.mechanism.apart else len(params)):
            placed = some.to(device, task.dtype, copy=True)
            scores.append(predict_scores(model, placed, ready, cells=1 << 16))
    return np.concatenate(scores)
