"""Fixed features of grey images: in which direction edges run where, alike for all data.

Nothing here is learned, so nothing of anybody's data is spent on it: a linear model on such features learns
from a few users what a convolutional network needs many for.
"""

import numpy as np
from numpy.typing import NDArray

from fedproof.encoders.encoder import Inputs

_CELLS = 7  # along each side
_DIRECTIONS = 8
_CHUNK = 2000  # images at once
# Long beside the one that stands for a linear layer's bias: noise on the bias then counts for little.
_LENGTH = 10.0


def check_grey(inputs: Inputs) -> None:
    """Raise ValueError unless inputs are grey images that have room for the cells."""
    shape = inputs.shape
    if len(shape) != 3 or shape[0] != 1 or min(shape[1:]) < 2 * _CELLS:
        raise ValueError(
            f"encoder = 'hog' needs grey images (1, height, width) of at least {2 * _CELLS} pixels a side, "
            f"{inputs.name} has {inputs.described}"
        )


def oriented_gradients(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Features `(images, 392)` of `images` (images, height, width), each row of length ten, or zero if blank.

    Lengths of the gradients are shared among eight directions, blurred onto seven by seven cells, and their
    square roots centred in every cell, so that how much ink a cell holds does not outweigh its directions.

    Reference: Dalal, Triggs 2005 (histograms of oriented gradients); square roots as in their section 6.
    """
    parts = [_features(images[begin : begin + _CHUNK]) for begin in range(0, len(images), _CHUNK)]
    return np.concatenate(parts)


def _features(images: NDArray[np.generic]) -> NDArray[np.float32]:
    pixels = np.asarray(images, dtype=np.float32)
    down, right = np.zeros_like(pixels), np.zeros_like(pixels)
    down[:, 1:-1] = pixels[:, 2:] - pixels[:, :-2]
    right[:, :, 1:-1] = pixels[:, :, 2:] - pixels[:, :, :-2]
    turn = np.mod(np.arctan2(down, right) / (2 * np.pi), 1) * _DIRECTIONS
    distance = np.abs(turn[:, None] - np.arange(_DIRECTIONS, dtype=np.float32)[:, None, None])
    near = np.clip(1 - np.minimum(distance, _DIRECTIONS - distance), 0, None)
    strength = near * np.hypot(down, right)[:, None]
    cells = np.sqrt(_blur(pixels.shape[1]) @ strength @ _blur(pixels.shape[2]).T)
    centred = (cells - cells.mean(axis=1, keepdims=True)).reshape(len(pixels), -1)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(_LENGTH * centred / np.where(length > 0, length, 1), dtype=np.float32)


def _blur(side: int) -> NDArray[np.float32]:
    """Weights `(cells, side)`: a Gaussian around the middle of each cell, half a cell wide."""
    middles = (np.arange(_CELLS) + 0.5) * side / _CELLS - 0.5
    steps = (np.arange(side) - middles[:, None]) / (side / _CELLS / 2)
    weights = np.exp(-(steps**2) / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)
