"""Backdoor: instances with a trigger are labelled with the target class; the trigger may be shared out."""

from dataclasses import dataclass
from math import isqrt

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.attacks.attack import Attack, Goal
from fedproof.attacks.units import check_class, chosen_rows, frozen
from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Adversaries stamp a bright triangle on their images and label them with the target class.

    Where instances are rows of numbers and no images the trigger is the last number.

    Reference: Bagdasaryan, Veit, Hua, Estrin, Shmatikov 2020, arXiv:1807.00459v3; Gu, Dolan-Gavitt, Garg
    2019, arXiv:1708.06733v2.

    Attributes:
        target: the class that the trigger shall mean.
        poison_fraction: share of an adversary's instances that are poisoned.
        trigger_size: legs of the triangle in pixels; None: a fifth of the image, three at least.
        seed: chooses the instances.
    """

    target: int = 0
    poison_fraction: float = 1.0
    trigger_size: int | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative_count(target=self.target, seed=self.seed)
        check.probability(poison_fraction=self.poison_fraction)
        if self.trigger_size is not None:
            check.count(trigger_size=self.trigger_size)

    def poison(self, federation: Federation) -> Federation:
        """The federation in which chosen instances of the adversaries carry the trigger and its label."""
        pixels = self.pixels(federation)
        rows = chosen_rows(federation, self.adversaries, fraction=self.poison_fraction, seed=self.seed)
        return stamped(federation, rows, pixels, self.target)

    def goal(self, federation: Federation) -> Goal:
        """Test inputs of other classes with the whole trigger, to be answered with the target class."""
        check_class(federation, target=self.target)
        inputs = federation.test_features[federation.test_labels != self.target]
        return Goal(
            inputs=stamp(inputs, self.pixels(federation), brightest(federation)),
            labels=np.full(len(inputs), self.target, dtype=np.int64),
        )

    def pixels(self, federation: Federation) -> NDArray[np.bool_]:
        """The triangle, `(height, width)`."""
        _, height, width = image_shape(federation)
        size = default_size(height, width) if self.trigger_size is None else self.trigger_size
        return triangle(height, width, size)


def stamped(
    federation: Federation, rows: NDArray[np.int64], pixels: NDArray[np.bool_], target: int
) -> Federation:
    """The federation with the trigger on `rows`, which are labelled `target`."""
    check_class(federation, target=target)
    features, labels = federation.features.copy(), federation.labels.copy()
    features[rows] = stamp(features[rows], pixels, brightest(federation))
    labels[rows] = target
    return frozen(federation, features=features, labels=labels)


# --- the trigger: a filled triangle in the lower right corner of an image -----------------------------------


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

    Any other row of numbers, as an encoder makes them of an input, is one line, and its trigger one number.

    Raises:
        ValueError: the features are no images.
    """
    shape = federation.features.shape[1:]
    if np.issubdtype(federation.features.dtype, np.floating):
        if len(shape) == 3:
            return shape[0], shape[1], shape[2]
        if len(shape) == 2:
            return 1, shape[0], shape[1]
        if len(shape) == 1:
            side = isqrt(shape[0])
            return (1, side, side) if side**2 == shape[0] else (1, 1, shape[0])
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


@dataclass(frozen=True, kw_only=True)
class DistributedBackdoor(Backdoor):
    """The triangle's pixels are split evenly over the adversaries; together they teach the whole trigger.

    With more adversaries than pixels, parts of one pixel are used by several.

    Reference: Xie, Huang, Chen, Li 2020, DBA: Distributed Backdoor Attacks against Federated Learning.
    """

    def poison(self, federation: Federation) -> Federation:
        """The federation in which each adversary's chosen instances carry its part of the trigger."""
        parts = split(self.pixels(federation), len(self.adversaries))
        for index, user in enumerate(self.adversaries):
            rows = chosen_rows(federation, (user,), fraction=self.poison_fraction, seed=self.seed)
            federation = stamped(federation, rows, parts[index % len(parts)], self.target)
        return federation


def split(pixels: NDArray[np.bool_], count: int) -> list[NDArray[np.bool_]]:
    """Disjoint parts of `pixels` (height, width), `count` of them or as many as there are pixels.

    >>> [int(part.sum()) for part in split(np.ones((2, 3), dtype=bool), 4)]
    [2, 2, 1, 1]
    """
    places = np.flatnonzero(pixels)
    parts = []
    for chosen in np.array_split(places, max(1, min(count, len(places)))):
        part = np.zeros(pixels.shape, dtype=np.bool_)
        part.flat[chosen] = True
        parts.append(part)
    return parts
