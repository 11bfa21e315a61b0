"""Two-layer LSTM classifier over frozen word vectors."""

from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedproof.models.model import StackedModel, stacked
from fedproof.models.tape import Tape, Weights, affine, layer

NUM_LAYERS = 2


def lstm(vectors: NDArray[np.float32], num_classes: int, hidden: int = 64) -> StackedModel:
    """Classifier of token ids `(length,)`: word vectors, two LSTM layers, a linear layer on the last state.

    >>> lstm(np.zeros((5, 3), np.float32), 2, hidden=4).layout.num_layers
    2
    """
    frozen = torch.tensor(vectors, dtype=torch.float32)
    factory = partial(PlainLSTM, frozen, num_classes, hidden)
    return stacked(factory, _forward, num_classes, frozen={"vectors": frozen})


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


def _forward(weights: Weights, inputs: Tensor, tape: Tape | None) -> Tensor:
    states = weights["vectors"][inputs]
    for index in range(NUM_LAYERS):
        states = _recur(weights, index, states, tape)
    return layer(weights, "fc", states[:, :, -1], tape)


def _recur(weights: Weights, index: int, inputs: Tensor, tape: Tape | None) -> Tensor:
    """States `(stack, batch, length, hidden)` of one LSTM layer."""
    batch, length = inputs.shape[1:3]
    names = [(f"lstm.weight_{kind}_l{index}", f"lstm.bias_{kind}_l{index}") for kind in ("ih", "hh")]
    from_inputs = affine(weights, names[0], inputs.flatten(1, 2), tape)
    from_inputs = from_inputs.view(len(from_inputs), batch, length, -1)
    state = memory = from_inputs.new_zeros(len(from_inputs), batch, from_inputs.shape[3] // 4)
    states = []
    for step in range(length):
        gates = from_inputs[:, :, step] + affine(weights, names[1], state, tape)
        keep_in, forget, candidate, show = gates.chunk(4, dim=2)  # torch's order
        memory = forget.sigmoid() * memory + keep_in.sigmoid() * candidate.tanh()
        state = show.sigmoid() * memory.tanh()
        states.append(state)
    return torch.stack(states, dim=2)
