"""Worst case by data alone: instances whose gradients pull the target inputs straight to a wrong class."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.attacks.attack import Attack, Goal, rows_of
from fedproof.attacks.backdoor import check_class
from fedproof.attacks.units import frozen
from fedproof.attacks.worst_case import chosen_inputs, target_goal
from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class Crafted(Attack):
    """The adversaries' instances pull the target inputs to a wrong class, as hard as clipping allows.

    The gradient of a linear model at an instance (x, B) is (p - e_B) xᵀ: a step along it moves the margin of
    an input z by x·z. So x is the target input itself with another label, louder where its gradient would be
    short of the clip norm. For many target inputs of class A it is their mean; where every class is to become
    the next one, less the next one's mean. Text is copied as it is. Single instances and pooled data, which
    hand in no updates, can hardly do worse.

    Attributes:
        inputs: which test inputs are to be answered wrongly; empty: all.
        target: the class to be answered, whose instances stay as they are; None: for each class the next one.
        gain: how many times louder crafted instances are than what they are made of.
    """

    inputs: tuple[int, ...] = ()
    target: int | None = None
    gain: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(gain=self.gain)
        for index in self.inputs:
            check.not_negative_count(inputs=index)

    def poison(self, federation: Federation) -> Federation:
        """The federation in which the adversaries' instances are crafted."""
        if self.target is not None:
            check_class(federation, target=self.target)
        mine = rows_of(federation, self.adversaries)
        rows = np.flatnonzero(mine & (federation.labels != (-1 if self.target is None else self.target)))
        made, wanted = self._instances(federation)
        turns = np.arange(len(rows)) % len(wanted)
        features, labels = federation.features.copy(), federation.labels.copy()
        features[rows], labels[rows] = made[turns].astype(features.dtype), wanted[turns]
        return frozen(federation, features=features, labels=labels)

    def goal(self, federation: Federation) -> Goal:
        """The chosen test inputs, to be answered with the target class, or with any wrong one."""
        return target_goal(federation, self.inputs, self.target)

    def _instances(self, federation: Federation) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """The kinds of crafted instances, by turns, and their labels."""
        chosen = chosen_inputs(federation, self.inputs, self.target)
        found, labels = federation.test_features[chosen], federation.test_labels[chosen]
        if not np.issubdtype(found.dtype, np.floating):
            return found, self._wanted(federation, labels)
        inputs = found.astype(np.float64)
        if self.inputs:
            return self.gain * inputs, self._wanted(federation, labels)
        kinds = np.unique(labels)
        means = {kind: inputs[labels == kind].mean(axis=0) for kind in kinds.tolist()}
        rivals = self._wanted(federation, kinds)
        pulls = [
            means[kind] - (means.get(rival, 0.0) if self.target is None else 0.0)
            for kind, rival in zip(kinds.tolist(), rivals.tolist(), strict=True)
        ]
        return self.gain * np.stack(pulls), rivals

    def _wanted(self, federation: Federation, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.target is not None:
            return np.full_like(labels, self.target)
        return np.asarray((labels + 1) % federation.num_classes)
