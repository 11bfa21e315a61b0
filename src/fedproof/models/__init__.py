"""Ordinary modules that stack well: models by their name in a configuration, and weights to begin with."""

from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedproof import check
from fedproof.federation import Federation
from fedproof.files import read_npz
from fedproof.functions import called, load_function
from fedproof.models.averaged import Averaged
from fedproof.models.model import Layout, Model, StackedModel, as_inputs
from fedproof.models.module import ModuleModel, check_repeats, from_module, try_out
from fedproof.models.networks import cifar_cnn, lenet, linear, logistic, lstm, mlp, mnist_cnn
from fedproof.models.precision import all_digits, seeded

__all__ = ["NAMES", "Layout", "Model", "as_model", "build", "with_weights"]


NAMES = ("linear", "logistic", "mlp", "mnist-cnn", "lenet", "cifar-cnn", "lstm")
SHAPED = {
    "linear": linear,
    "logistic": logistic,
    "mnist-cnn": mnist_cnn,
    "lenet": lenet,
    "cifar-cnn": cifar_cnn,
}  # by the shape of an input and the number of classes alone


@all_digits()
def build(
    name: str,
    federation: Federation,
    *,
    hidden: tuple[int, ...] = (),
    weights: Path | None = None,
    random_head: bool = False,
    copies: int = 1,
) -> Model:
    """The model called `name`, shaped for the inputs and classes of `federation`.

    One of `NAMES`, with widths of `hidden` layers, or `package.module:function` for a function that takes the
    federation and returns an `nn.Module`. It starts from the `weights` in an `.npz` file, see `with_weights`.
    Of several `copies`, trained from seeds of their own, confidences are averaged.
    """
    if copies != 1:
        one = build(name, federation, hidden=hidden, weights=weights, random_head=random_head)
        return Averaged(one=one, copies=copies)
    if ":" in name:
        if hidden or weights is not None:
            key, value = ("hidden", hidden) if hidden else ("weights", str(weights))
            raise ValueError(f"{key} = {value!r} is not used by model = {name!r}, which makes its own module")
        factory = partial(load_function("model", name), federation)
        with seeded(0):  # what is not trained must be the same in every process that uses the models
            module = called(name, factory)
        with seeded(0):
            again = called(name, factory)
        if isinstance(module, nn.Module) and isinstance(again, nn.Module):
            check_repeats(f"model = {name!r}", module, again)
        return replace(_fitting(name, module, federation), factory=factory)
    model = _built_in(name, federation, hidden)
    head = model.layout.names[-1].rpartition(".")[0]
    return model if weights is None else with_weights(model, weights, head, random_head=random_head)


def as_model(given: Model | nn.Module | str, federation: Federation) -> Model:
    """A model by what somebody has: the model itself, a module of her own, or a name."""
    if isinstance(given, str):
        return build(given, federation)
    return _fitting("model", given, federation) if isinstance(given, nn.Module) else given


def _fitting(name: str, module: object, federation: Federation) -> ModuleModel:
    """Somebody's module as a model, if it takes the inputs and gives a logit for each class."""
    if not isinstance(module, nn.Module):
        raise ValueError(f"{name} returned {type(module).__name__}; it must return a torch.nn.Module")
    model = from_module(module, federation.num_classes)
    shown = federation.test_features if len(federation.test_features) else federation.features
    inputs = as_inputs(shown[:4], torch.device("cpu"), torch.float32)
    try:
        with torch.no_grad():
            logits = model.logits(model.initial(0).unsqueeze(0), inputs.unsqueeze(0))
    except (RuntimeError, IndexError, TypeError) as error:
        raise ValueError(
            f"{name} does not take inputs of shape {tuple(inputs.shape[1:])}: {check.one_line(error)}"
        ) from error
    if logits.shape[-1] != federation.num_classes or logits.ndim != 3:
        raise ValueError(
            f"{name} gives {tuple(logits.shape[2:])} numbers for an input, must give one for each of "
            f"{federation.num_classes} classes"
        )
    try_out(name, model, inputs)
    return model


def _built_in(name: str, federation: Federation, hidden: tuple[int, ...]) -> StackedModel:
    shape = tuple(federation.test_features.shape[1:])
    classes = federation.num_classes
    if hidden and name not in ("mlp", "lstm"):
        raise ValueError(f"hidden = {hidden} is not used by model = {name!r}; only mlp and lstm have it")
    if name in SHAPED:
        return SHAPED[name](shape, classes)
    if name == "mlp":
        return mlp(shape, classes, hidden or (64,))
    if name == "lstm":
        if federation.vectors is None:
            raise ValueError(f"model = 'lstm' needs word vectors, {federation.name} has none")
        if len(hidden) > 1:
            raise ValueError(f"hidden = {hidden} must be one number for model = 'lstm', which has one layer")
        return lstm(federation.vectors, classes, *hidden)
    raise ValueError(f"model = {name!r} must be one of {', '.join(NAMES)}, or package.module:function")


def with_weights(model: StackedModel, path: Path, head: str, *, random_head: bool = False) -> StackedModel:
    """`model` that starts from the arrays of the `.npz` file `path`, by parameter name.

    Such a file cannot run code. Arrays called `head.*` that have another shape are replaced by a new head for
    other classes: zeros, or drawn by the seed of the initial model if `random_head`.
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
