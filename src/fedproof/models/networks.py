"""Networks: linear, fully connected, the paper's convolutional ones, and an LSTM over frozen word vectors."""

from dataclasses import replace
from functools import partial
from itertools import pairwise
from math import prod
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from fedproof.models.convolution import (
    average_pool_relu,
    average_relu,
    convolution,
    disjoint_max_pool_relu,
    max_pool_relu,
)
from fedproof.models.model import Model, StackedModel, stacked
from fedproof.models.tape import Tape, Weights, affine, layer, record_affine


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
    forward = getattr(model, "forward", None)  # a module would have to be made, and every task asks
    return (
        isinstance(forward, partial) and forward.func is _mlp_forward and forward.keywords["num_layers"] == 1
    )


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
        if self.fc1.weight.is_meta:  # only shapes are asked for; drawing none would load torch's compiler
            return
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


# --- an LSTM of two layers over frozen word vectors ---------------------------------------------------------

NUM_LAYERS = 2
_KINDS = ("weight_ih", "weight_hh", "bias_ih", "bias_hh")  # as torch.lstm takes them


def lstm(vectors: NDArray[np.float32], num_classes: int, hidden: int = 64) -> StackedModel:
    """Classifier of token ids `(length,)`: word vectors, two LSTM layers, a linear layer on the last state.

    >>> lstm(np.zeros((5, 3), np.float32), 2, hidden=4).layout.num_layers
    2
    """
    frozen = torch.tensor(vectors, dtype=torch.float32)
    factory = partial(PlainLSTM, frozen, num_classes, hidden)
    return replace(stacked(factory, _lstm_forward, num_classes, frozen={"vectors": frozen}), apart=True)


class PlainLSTM(nn.Module):
    """The classifier as an ordinary module."""

    vectors: Tensor

    def __init__(self, vectors: Tensor, num_classes: int, hidden: int) -> None:
        super().__init__()
        self.register_buffer("vectors", vectors)
        self.lstm = nn.LSTM(vectors.shape[1], hidden, num_layers=NUM_LAYERS, batch_first=True)
        self.fc = nn.Linear(hidden, num_classes)

    def forward(self, tokens: Tensor) -> Tensor:
        """Logits `(batch, classes)`."""
        states, _ = self.lstm(self.vectors[tokens])
        logits: Tensor = self.fc(states[:, -1])
        return logits


def _lstm_forward(weights: Weights, inputs: Tensor, tape: Tape | None) -> Tensor:
    if tape is None and not inputs.is_cuda:
        return layer(weights, "fc", _last_states(weights, inputs), tape)
    states = weights["vectors"][inputs]
    for index in range(NUM_LAYERS):
        states = _recur(weights, index, states, tape)
    return layer(weights, "fc", states[:, :, -1], tape)


def _last_states(weights: Weights, inputs: Tensor) -> Tensor:
    """States `(stack, batch, hidden)` after the last word, one model after the other by torch's own LSTM.

    That one is fused on a CPU. A stack of small products for each word took 1.3 times as long in training,
    and twice as long in scoring.
    """
    kinds = [f"{kind}_l{index}" for index in range(NUM_LAYERS) for kind in _KINDS]
    models = zip(*(weights[f"lstm.{kind}"] for kind in kinds), strict=True)
    tokens = inputs.expand(len(weights[f"lstm.{kinds[0]}"]), -1, -1)
    hidden = weights["lstm.weight_hh_l0"].shape[2]
    zeros = weights["vectors"].new_zeros((NUM_LAYERS, inputs.shape[1], hidden))
    found = []
    for parts, words in zip(models, tokens, strict=True):
        # Copies begin at a multiple of 64 bytes, whichever place the model has in the stack.
        own = [part.clone() for part in parts]
        states, _, _ = torch.lstm(
            weights["vectors"][words], (zeros, zeros), own, True, NUM_LAYERS, 0.0, False, False, True
        )
        found.append(states[:, -1])
    return torch.stack(found)


def _recur(weights: Weights, index: int, inputs: Tensor, tape: Tape | None) -> Tensor:
    """States `(stack, batch, length, hidden)` of one LSTM layer."""
    batch, length = inputs.shape[1:3]
    names = [(f"lstm.weight_{kind}_l{index}", f"lstm.bias_{kind}_l{index}") for kind in ("ih", "hh")]
    from_inputs = affine(weights, names[0], inputs.flatten(1, 2), tape)
    weight, bias = (weights[name] for name in names[1])
    steps = from_inputs.view(len(from_inputs), batch, length, -1)
    states: Tensor = _Recurrence.apply(steps, weight, bias)  # type: ignore[no-untyped-call]
    # What comes from the states is added to what comes from the inputs, so both have the same gradient.
    record_affine(tape, names[1], _before(states.detach()).flatten(1, 2), from_inputs)
    return states


def _before(states: Tensor) -> Tensor:
    """The state before each step of `(stack, batch, length, hidden)`; before the first it is zero."""
    return F.pad(states[:, :, :-1], (0, 0, 1, 0))


class _Recurrence(torch.autograd.Function):
    """States of an LSTM from what its inputs give to the gates, `(stack, batch, length, 4 * hidden)`.

    Written out because the gradient of the weight is then one product over all steps, not a sum of one for
    each. Gates are in torch's order: input, forget, candidate, output.
    """

    @staticmethod
    def forward(ctx: Any, from_inputs: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        stack, batch, length, width = from_inputs.shape
        hidden = width // 4
        # Step by step in memory, and what is added is the bias of the states too.
        gates = (from_inputs + bias[:, None, None, :]).permute(2, 0, 1, 3).contiguous()
        states = gates.new_empty((length, stack, batch, hidden))
        memories = torch.empty_like(states)
        turned = weight.mT
        for step, gate in enumerate(gates):
            if step:
                gate.baddbmm_(states[step - 1], turned)
            gate[..., : 2 * hidden].sigmoid_()
            gate[..., 2 * hidden : 3 * hidden].tanh_()
            gate[..., 3 * hidden :].sigmoid_()
            let_in, forget, candidate, show = gate.chunk(4, dim=-1)
            memory = torch.mul(let_in, candidate, out=memories[step])
            if step:
                memory.addcmul_(forget, memories[step - 1])
            torch.mul(memory.tanh(), show, out=states[step])
        ctx.save_for_backward(gates, memories, states, weight)
        return states.permute(1, 2, 0, 3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None, Tensor | None]:
        gates, memories, states, weight = ctx.saved_tensors
        length, stack, batch, hidden = states.shape
        upstream = gradients[0].permute(2, 0, 1, 3)
        # What does not depend on later steps is computed for all steps at once.
        let_in, forget, candidate, show = gates.chunk(4, dim=-1)
        shown = memories.tanh()
        passed = show * (1 - shown * shown)
        slopes = [
            candidate * let_in * (1 - let_in),
            F.pad(memories[:-1], (0, 0, 0, 0, 0, 0, 1, 0)) * forget * (1 - forget),
            let_in * (1 - candidate * candidate),
            shown * show * (1 - show),
        ]
        of_gates = torch.stack(slopes, dim=3)
        of_state, of_memory = torch.zeros_like(states[0]), torch.zeros_like(states[0])
        for step in reversed(range(length)):
            of_state = of_state + upstream[step]
            of_memory = of_memory.addcmul(of_state, passed[step])
            of_gates[step, :, :, :3] *= of_memory.unsqueeze(2)
            of_gates[step, :, :, 3] *= of_state
            of_memory = of_memory * forget[step]
            of_state = torch.bmm(of_gates[step].flatten(2), weight)
        of_inputs = of_gates.flatten(3).permute(1, 2, 0, 3)
        if not ctx.needs_input_grad[1]:
            return of_inputs, None, None
        rows = of_inputs.reshape(stack, batch * length, 4 * hidden)
        before = _before(states.permute(1, 2, 0, 3)).reshape(stack, batch * length, hidden)
        return of_inputs, torch.bmm(rows.mT, before), rows.sum(1)
