"""Linear softmax classifier and multilayer perceptron."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedproof.models.model import StackedModel, stacked
from fedproof.models.tape import Tape, Weights, layer


def mlp(shape: tuple[int, ...], num_classes: int, hidden: tuple[int, ...] = (64,)) -> StackedModel:
    """Fully connected layers with ReLU between them, for inputs of the given `shape`.

    >>> mlp((8, 8), 10, hidden=(16,)).layout.names
    ('fc0.weight', 'fc0.bias', 'fc1.weight', 'fc1.bias')
    """
    widths = (prod(shape), *hidden, num_classes)
    factory = partial(PlainMLP, widths)
    return stacked(factory, partial(_forward, num_layers=len(widths) - 1), num_classes)


def linear(shape: tuple[int, ...], num_classes: int) -> StackedModel:
    """Multinomial logistic regression for inputs of the given `shape`.

    >>> linear((8, 8), 10).layout.dim
    650
    """
    return mlp(shape, num_classes, hidden=())


def logistic(shape: tuple[int, ...], num_classes: int) -> StackedModel:
    """The model `linear` that starts from zero: a random start would only stand beside what users add to it.

    >>> float(logistic((8, 8), 10).initial(seed=3).abs().max())
    0.0
    """
    model = linear(shape, num_classes)
    return replace(model, start=torch.zeros(model.layout.dim))


class PlainMLP(nn.Module):
    """The multilayer perceptron as an ordinary module."""

    def __init__(self, widths: tuple[int, ...]) -> None:
        super().__init__()
        self.num_layers = len(widths) - 1
        for index, (width, height) in enumerate(pairwise(widths)):
            self.add_module(f"fc{index}", nn.Linear(width, height))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `(batch, classes)`."""
        hidden = inputs.flatten(1)
        for index in range(self.num_layers):
            hidden = self.get_submodule(f"fc{index}")(F.relu(hidden) if index else hidden)
        return hidden


def _forward(weights: Weights, inputs: Tensor, tape: Tape | None, num_layers: int) -> Tensor:
    hidden = inputs.flatten(2)
    for index in range(num_layers):
        hidden = layer(weights, f"fc{index}", F.relu(hidden) if index else hidden, tape)
    return hidden
