"""Label flipping: instances of the source class are labelled with the target class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.attacks.attack import Attack, Goal
from fedproof.attacks.units import check_class, chosen_rows, frozen
from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class LabelFlip(Attack):
    """Adversaries label their instances of the source class with the target class; images or text.

    Reference: Biggio, Nelson, Laskov 2012, arXiv:1206.6389v3; Fung, Yoon, Beschastnikh 2020,
    arXiv:1808.04866v5.

    Attributes:
        target: the class that is written on them.
        source: the class whose labels are changed; None: all but the target.
        poison_fraction: share of an adversary's instances of the source class.
        seed: chooses the instances.
    """

    target: int = 0
    source: int | None = None
    poison_fraction: float = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative_count(target=self.target, seed=self.seed)
        check.probability(poison_fraction=self.poison_fraction)
        if self.source is not None:
            check.not_negative_count(source=self.source)
        if self.source == self.target:
            raise ValueError(f"source = {self.source} must not be the target class")

    def poison(self, federation: Federation) -> Federation:
        """The federation in which chosen instances of the adversaries carry the target label."""
        self._check(federation)
        rows = chosen_rows(
            federation,
            self.adversaries,
            fraction=self.poison_fraction,
            seed=self.seed,
            eligible=self._is_source(federation.labels),
        )
        labels = federation.labels.copy()
        labels[rows] = self.target
        return frozen(federation, labels=labels)

    def goal(self, federation: Federation) -> Goal:
        """Test inputs of the source class, to be answered with the target class."""
        self._check(federation)
        inputs = federation.test_features[self._is_source(federation.test_labels)]
        return Goal(inputs=inputs, labels=np.full(len(inputs), self.target, dtype=np.int64))

    def _is_source(self, labels: NDArray[np.int64]) -> NDArray[np.bool_]:
        return np.asarray(labels != self.target if self.source is None else labels == self.source)

    def _check(self, federation: Federation) -> None:
        check_class(federation, target=self.target)
        if self.source is not None:
            check_class(federation, source=self.source)
