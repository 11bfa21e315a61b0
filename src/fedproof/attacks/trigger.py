"""The backdoor's pattern: a filled triangle in the lower right corner of an image."""

from math import isqrt

import numpy as np
from numpy.typing import NDArray

from fedproof.federation import Federation


def triangle(height: int, width: int, size: int) -> NDArray[np.bool_]:
    """Pixels `(height, width)` of a right triangle with legs of `size` pixels along the two edges.

    >>> triangle(3, 4, 2).astype(int).tolist()
    [[0, 0, 0, 0], [0, 0, 0, 1], [0, 0, 1, 1]]
    """
    if not 1 <= size <= min(height, width):
        raise ValueError(f"trigger_size = {size} must be from 1 to {min(height, width)} pixels")
    row, column = np.mgrid[:height, :width]
    return np.asarray((height - 1 - row) + (width - 1 - column) < size)


def default_size(height: int, width: int) -> int:
    """Legs of the triangle if nobody says otherwise: a fifth of the image, three pixels at least."""
    return min(max(3, min(height, width) // 5), height, width)


def image_shape(federation: Federation) -> tuple[int, int, int]:
    """Channels, height and width of the images; a flat row of n² numbers is a square image.

    Raises:
        ValueError: the features are no images.
    """
    shape = federation.features.shape[1:]
    if np.issubdtype(federation.features.dtype, np.floating):
        if len(shape) == 3:
            return shape[0], shape[1], shape[2]
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        if len(shape) == 1 and isqrt(shape[0]) ** 2 == shape[0]:
            return 1, isqrt(shape[0]), isqrt(shape[0])
    raise ValueError(
        f"{federation.name}: instances of shape {shape} and type {federation.features.dtype} are no images, "
        "a backdoor has no corner to sit in; use the attack label-flip"
    )


def brightest(federation: Federation) -> NDArray[np.floating]:
    """The largest value of each channel, `(channels,)`: what white is in these images."""
    channels, _, _ = image_shape(federation)
    return np.asarray(federation.features.reshape(len(federation.features), channels, -1).max(axis=(0, 2)))


def stamp(
    images: NDArray[np.generic], pixels: NDArray[np.bool_], values: NDArray[np.floating]
) -> NDArray[np.generic]:
    """A copy of `images` (instances, ...) with `values` (channels,) at the `pixels` (height, width)."""
    stamped = images.copy()
    view = stamped.reshape(len(images), len(values), *pixels.shape)
    view[:, :, pixels] = values[None, :, None]
    return stamped
