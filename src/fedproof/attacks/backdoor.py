"""Backdoor: instances with a trigger are labelled with the target class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.attacks.attack import Attack, Goal
from fedproof.attacks.selection import chosen_rows
from fedproof.attacks.trigger import brightest, default_size, image_shape, stamp, triangle
from fedproof.attacks.units import frozen
from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Adversaries stamp a bright triangle on their images and label them with the target class.

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
        return trigger_goal(federation, self.pixels(federation), self.target)

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


def trigger_goal(federation: Federation, pixels: NDArray[np.bool_], target: int) -> Goal:
    """Test inputs that are not of the `target` class, with the trigger, to be answered with it."""
    check_class(federation, target=target)
    inputs = federation.test_features[federation.test_labels != target]
    return Goal(
        inputs=stamp(inputs, pixels, brightest(federation)),
        labels=np.full(len(inputs), target, dtype=np.int64),
    )


def check_class(federation: Federation, **classes: int) -> None:
    """Raise ValueError unless all classes exist."""
    for name, value in classes.items():
        if not 0 <= value < federation.num_classes:
            raise ValueError(
                f"{name} = {value} must be a class of {federation.name}, 0 to {federation.num_classes - 1}"
            )
