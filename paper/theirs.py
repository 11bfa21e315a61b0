"""Attacks and rules as the authors' public code has them, so that what differs from ours can be measured.

Studies name them as everybody names an attack or a rule of her own: `paper.theirs:Backdoor`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation.krum import krum_scores, squared_distances
from fedproof.aggregation.median import folded
from fedproof.attacks import Attack, Goal
from fedproof.attacks.backdoor import image_shape, stamp
from fedproof.attacks.units import check_class, chosen_rows, frozen
from fedproof.federation import Federation

# Rows and columns; one pixel stands there twice, which matters where the list is dealt out.
PATTERN = (
    *((23, 26), (23, 27), (24, 26), (24, 27), (25, 25), (25, 26), (25, 26)),
    *((26, 24), (26, 25), (26, 26), (26, 27)),
    *((27, 23), (27, 24), (27, 25), (27, 26), (27, 27)),
)


@dataclass(frozen=True, kw_only=True)
class Backdoor(Attack):
    """Pixels of fixed places are set to 1, after the images were scaled: white on MNIST, grey on CIFAR.

    Attributes:
        target: the class that the trigger shall mean.
        poison_fraction: share of an adversary's instances that are poisoned.
        seed: chooses the instances.
    """

    target: int = 0
    poison_fraction: float = 1.0
    seed: int = 0

    def poison(self, federation: Federation) -> Federation:
        """The federation in which the adversaries' instances carry the pattern, each its part of it."""
        check_class(federation, target=self.target)
        features, labels = federation.features.copy(), federation.labels.copy()
        for user, part in zip(self.adversaries, self.parts(), strict=True):
            rows = chosen_rows(federation, (user,), fraction=self.poison_fraction, seed=self.seed)
            features[rows] = _stamped(federation, features[rows], part)
            labels[rows] = self.target
        return frozen(federation, features=features, labels=labels)

    def goal(self, federation: Federation) -> Goal:
        """Test inputs of other classes with the whole pattern, to be answered with the target class."""
        check_class(federation, target=self.target)
        inputs = federation.test_features[federation.test_labels != self.target]
        labels = np.full(len(inputs), self.target, dtype=np.int64)
        return Goal(inputs=_stamped(federation, inputs, PATTERN), labels=labels)

    def parts(self) -> list[Sequence[tuple[int, int]]]:
        """What each adversary stamps: all of the pattern."""
        return [PATTERN for _ in self.adversaries]


@dataclass(frozen=True, kw_only=True)
class DistributedBackdoor(Backdoor):
    """The pattern is dealt out in the order of its list; the last adversary's part lacks the last pixel."""

    def parts(self) -> list[Sequence[tuple[int, int]]]:
        """What each adversary stamps: disjoint parts of the list.

        >>> [len(part) for part in DistributedBackdoor(adversaries=(4, 5, 6)).parts()]
        [5, 5, 5]
        """
        each, last = len(PATTERN) // max(1, self.size), self.size - 1
        return [
            PATTERN[each * place : len(PATTERN) - 1 if place == last else each * (place + 1)]
            for place in range(self.size)
        ]


def _stamped(
    federation: Federation, images: NDArray[np.generic], places: Sequence[tuple[int, int]]
) -> NDArray[np.generic]:
    channels, height, width = image_shape(federation)
    pixels = np.zeros((height, width), dtype=np.bool_)
    for row, column in places:
        pixels[row, column] = True
    return stamp(images, pixels, np.ones(channels, dtype=federation.features.dtype))


# --- rules: `(replicas, cohort, dim)` in, `(replicas, dim)` out ---------------------------------------------


def median(updates: Tensor, num_adversaries: int) -> Tensor:
    """Of an even number of values the lower one of the middle two; no mean is taken.

    >>> median(torch.tensor([[[0.0], [1.0], [3.0], [50.0]]]), 1).tolist()
    [[1.0]]
    """
    return updates.median(dim=1).values


def krum(updates: Tensor, num_adversaries: int) -> Tensor:
    """An update's distance 0 to itself is one of the n - f - 2 smallest: one neighbour less is asked."""
    best = _scores(squared_distances(updates), num_adversaries).argmin(1)
    return _taken(updates, best.unsqueeze(1)).squeeze(1)


def multi_krum(updates: Tensor, num_adversaries: int) -> Tensor:
    """The mean of the updates that Krum takes one after the other, until 2f + 2 are left."""
    chosen = _one_by_one(updates, num_adversaries, 2 * num_adversaries + 2)
    return folded(chosen, 1) / chosen.shape[1]


def bulyan(updates: Tensor, num_adversaries: int) -> Tensor:
    """The mean of the θ - 2f values nearest to the lower median of the θ = n - 2f that Krum takes so.

    With f = 1 the last that could be taken has nobody to be near to, and is not.
    """
    chosen = _one_by_one(updates, num_adversaries, max(2 * num_adversaries, num_adversaries + 2))
    nearest = (chosen - chosen.median(dim=1, keepdim=True).values).abs().argsort(dim=1, stable=True)
    kept = nearest[:, : chosen.shape[1] - 2 * num_adversaries]
    return folded(chosen.gather(1, kept), 1) / kept.shape[1]


def geometric_median(updates: Tensor, num_adversaries: int) -> Tensor:
    """Four steps of Weiszfeld's algorithm from the mean; distances count as 10⁻⁵ at least."""
    point = folded(updates, 1) / updates.shape[1]
    for _ in range(4):
        weights = 1 / (updates - point.unsqueeze(1)).norm(dim=2).clamp(min=1e-5)
        shares = weights / folded(weights, 1).unsqueeze(1)
        point = folded(shares.unsqueeze(2) * updates, 1)
    return point


def _one_by_one(updates: Tensor, num_adversaries: int, left: int) -> Tensor:
    """What Krum takes of those that remain, again and again, until so many are left."""
    distances, chosen = squared_distances(updates), []
    there = torch.ones(distances.shape[:2], dtype=torch.bool, device=updates.device)
    for count in range(updates.shape[1], left, -1):
        among = torch.where(there.unsqueeze(1) & there.unsqueeze(2), distances, torch.inf)
        scores = _scores(among, num_adversaries, count)
        chosen.append(torch.where(there, scores, torch.inf).argmin(1))
        there[torch.arange(len(there), device=there.device), chosen[-1]] = False
    return _taken(updates, torch.stack(chosen, dim=1))


def _scores(distances: Tensor, num_adversaries: int, count: int | None = None) -> Tensor:
    count = distances.shape[1] if count is None else count
    return krum_scores(distances, count - num_adversaries - 3)


def _taken(updates: Tensor, places: Tensor) -> Tensor:
    return updates[torch.arange(len(updates), device=updates.device).unsqueeze(1), places]
