"""Networks without memory: linear, fully connected, and the convolutional ones of the paper."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from fedproof.models.convolution import (
    average_pool_relu,
    average_relu,
    convolution,
    disjoint_max_pool_relu,
    max_pool_relu,
)
from fedproof.models.model import Model, StackedModel, stacked
from fedproof.models.tape import Tape, Weights, layer


def mlp(shape: tuple[int, ...], num_classes: int, hidden: tuple[int, ...] = (64,)) -> StackedModel:
    """Fully connected layers with ReLU between them, for inputs of the given `shape`.

    >>> mlp((8, 8), 10, hidden=(16,)).layout.names
    ('fc0.weight', 'fc0.bias', 'fc1.weight', 'fc1.bias')
    """
    widths = (prod(shape), *hidden, num_classes)
    factory = partial(PlainMLP, widths)
    return stacked(factory, partial(_mlp_forward, num_layers=len(widths) - 1), num_classes)


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


def is_linear(model: Model) -> bool:
    """Whether logits are one weight matrix times the input plus a bias, and parameters just these two.

    >>> is_linear(logistic((8, 8), 10)), is_linear(mlp((8, 8), 10))
    (True, False)
    """
    module = model.module()
    return isinstance(module, PlainMLP) and module.num_layers == 1


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


def _mlp_forward(weights: Weights, inputs: Tensor, tape: Tape | None, num_layers: int) -> Tensor:
    hidden = inputs.flatten(2)
    for index in range(num_layers):
        hidden = layer(weights, f"fc{index}", F.relu(hidden) if index else hidden, tape)
    return hidden


def mnist_cnn(shape: tuple[int, ...], num_classes: int) -> StackedModel:
    """Two convolutions and two linear layers for images of 28 by 28.

    >>> mnist_cnn((28, 28), 2).layout.dim
    25746
    """
    if shape not in ((28, 28), (1, 28, 28)):
        raise ValueError(f"mnist-cnn needs inputs of shape (28, 28) or (1, 28, 28), not {shape}")
    return stacked(partial(PlainMnistCNN, num_classes), _mnist_forward, num_classes)


def lenet(shape: tuple[int, ...], num_classes: int) -> StackedModel:
    """Two convolutions of 5 by 5 with disjoint pools and two linear layers for images of 28 by 28.

    On the few hundred images of a cohort drawn once it is some three points better than `mnist-cnn`.

    >>> lenet((28, 28), 10).layout.dim
    46730
    """
    if shape not in ((28, 28), (1, 28, 28)):
        raise ValueError(f"lenet needs inputs of shape (28, 28) or (1, 28, 28), not {shape}")
    return stacked(partial(PlainLeNet, num_classes), _lenet_forward, num_classes)


def cifar_cnn(shape: tuple[int, ...], num_classes: int) -> StackedModel:
    """Four convolutions with average pools and one linear layer for images of 3 by 32 by 32.

    >>> cifar_cnn((3, 32, 32), 2).layout.num_layers
    5
    """
    if shape != (3, 32, 32):
        raise ValueError(f"cifar-cnn needs inputs of shape (3, 32, 32), not {shape}")
    return stacked(partial(PlainCifarCNN, num_classes), _cifar_forward, num_classes)


class PlainMnistCNN(nn.Module):
    """The MNIST network as an ordinary module."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 8, stride=2, padding=3)
        self.conv2 = nn.Conv2d(16, 32, 4, stride=2)
        self.fc1 = nn.Linear(512, 32)
        self.fc2 = nn.Linear(32, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(batch, classes)`."""
        hidden = F.max_pool2d(F.relu(self.conv1(images.reshape(-1, 1, 28, 28))), 2, 1)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2, 1)
        logits: Tensor = self.fc2(F.relu(self.fc1(hidden.flatten(1))))
        return logits


class PlainLeNet(nn.Module):
    """The network for few images as an ordinary module."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5)
        self.conv2 = nn.Conv2d(16, 32, 5)
        self.fc1 = nn.Linear(512, 64)
        self.fc2 = nn.Linear(64, num_classes)
        for part in (self.conv1, self.conv2, self.fc1, self.fc2):
            nn.init.kaiming_normal_(part.weight)
            if part.bias is not None:
                nn.init.zeros_(part.bias)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(batch, classes)`."""
        hidden = F.max_pool2d(F.relu(self.conv1(images.reshape(-1, 1, 28, 28))), 2)
        hidden = F.max_pool2d(F.relu(self.conv2(hidden)), 2)
        logits: Tensor = self.fc2(F.relu(self.fc1(hidden.flatten(1))))
        return logits


class PlainCifarCNN(nn.Module):
    """The CIFAR network as an ordinary module, named like the published weights."""

    def __init__(self, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for before, after in ((3, 32), (32, 64), (64, 64)):
            layers += [nn.Conv2d(before, after, 3, padding=1), nn.ReLU(), nn.AvgPool2d(2)]
        layers += [nn.Conv2d(64, 128, 3, padding=1), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        self.net = nn.Sequential(*layers)
        self.fc = nn.Linear(128, num_classes)

    def forward(self, images: Tensor) -> Tensor:
        """Logits `(batch, classes)`."""
        logits: Tensor = self.fc(self.net(images))
        return logits


def _mnist_forward(weights: Weights, inputs: Tensor, tape: Tape | None) -> Tensor:
    images = inputs.reshape(*inputs.shape[:2], 28, 28, 1)
    hidden = convolution(weights, "conv1", images, tape, stride=2, padding=3)
    hidden = max_pool_relu(hidden, weights["conv1.bias"])
    hidden = convolution(weights, "conv2", hidden, tape, stride=2)
    hidden = max_pool_relu(hidden, weights["conv2.bias"])
    # torch flattens channels first
    hidden = layer(weights, "fc1", hidden.permute(0, 1, 4, 2, 3).flatten(2), tape)
    return layer(weights, "fc2", F.relu(hidden), tape)


def _lenet_forward(weights: Weights, inputs: Tensor, tape: Tape | None) -> Tensor:
    hidden = inputs.reshape(*inputs.shape[:2], 28, 28, 1)
    for name in ("conv1", "conv2"):
        hidden = convolution(weights, name, hidden, tape)
        hidden = disjoint_max_pool_relu(hidden, weights[f"{name}.bias"])
    hidden = layer(weights, "fc1", hidden.permute(0, 1, 4, 2, 3).flatten(2), tape)
    return layer(weights, "fc2", F.relu(hidden), tape)


def _cifar_forward(weights: Weights, inputs: Tensor, tape: Tape | None) -> Tensor:
    hidden = inputs.permute(0, 1, 3, 4, 2).contiguous()
    for name in ("net.0", "net.3", "net.6"):
        hidden = convolution(weights, name, hidden, tape, padding=1)
        hidden = average_pool_relu(hidden, weights[f"{name}.bias"])
    hidden = convolution(weights, "net.9", hidden, tape, padding=1)
    return layer(weights, "fc", average_relu(hidden, weights["net.9.bias"]), tape)
