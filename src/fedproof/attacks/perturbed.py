"""Min-Max and Min-Sum: all adversaries hand in the honest mean, perturbed as far as they dare."""

from abc import abstractmethod
from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.krum import squared_distances
from fedproof.attacks.attack import Attack, Coalition, Craft, check_numbers
from fedproof.ensemble.task import Task
from fedproof.rounds.state import State


class Direction(StrEnum):
    """Against the mean of the honest updates, against their spread, or against the mean's signs."""

    UNIT = "inverse-unit-vector"
    STD = "inverse-std"
    SIGN = "inverse-sign"


@dataclass(frozen=True, kw_only=True)
class Spread:
    """The coalition's honest updates in float64, and how far they lie apart.

    Attributes:
        mean: `(replicas, dim)`.
        direction: `(replicas, dim)`, of the perturbation; 0 where there is none.
        inner: `(replicas, adversaries)`, scalar product of `direction` with mean minus update.
        to_mean: `(replicas, adversaries)`, squared distance of each update from the mean.
        pairs: `(replicas, adversaries, adversaries)`, squared distances; 0 for empty places.
        present: `(replicas, adversaries)`.
    """

    mean: Tensor
    direction: Tensor
    inner: Tensor
    to_mean: Tensor
    pairs: Tensor
    present: Tensor


@dataclass(frozen=True, kw_only=True)
class Perturbed(Attack):
    """All adversaries hand in mean + γp.

    Agnostic setting: the honest updates are those that the adversaries would have handed in themselves, all
    of them in every round, whether they were drawn or not. A single adversary has nothing to hide behind and
    hands in its own. Where users train with noise (instance level), only those drawn are known. `direction`
    is that of the perturbation p.
    """

    direction: Direction = Direction.STD

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "direction", check.member(Direction, direction=self.direction))

    @property
    def collusive(self) -> bool:
        """They are: the mean and the spread are those of the whole coalition."""
        return True

    @abstractmethod
    def gamma(self, spread: Spread) -> Tensor:
        """How far the adversaries go, `(replicas,)`."""

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by the perturbed mean."""
        check_numbers(task, self)

        def craft(coalition: Coalition, state: State) -> Tensor:
            spread, updates = spread_of(coalition, self.direction), coalition.updates
            crafted = spread.mean + self.gamma(spread).unsqueeze(1) * spread.direction
            everybody: Tensor = crafted.unsqueeze(1).expand_as(updates).to(updates.dtype)
            return everybody

        return craft


@dataclass(frozen=True, kw_only=True)
class MinMax(Perturbed):
    """The largest γ that keeps mean + γp among the honest updates.

    The constraint: its largest distance from an honest update is at most the largest distance between two of
    them.

    Reference: Shejwalkar, Houmansadr 2021, Manipulating the Byzantine (NDSS), section IV.
    """

    def gamma(self, spread: Spread) -> Tensor:
        """The largest γ `(replicas,)` with max_i |mean + γp - g_i| <= max_ij |g_i - g_j|; 0 where p = 0.

        For each i it is the positive root of a quadratic, so nothing has to be searched for.
        """
        length = spread.direction.square().sum(1, keepdim=True)
        radius = spread.pairs.amax((1, 2)).unsqueeze(1)
        rest = (spread.to_mean - radius).clamp(max=0)
        root = (spread.inner.square() - length * rest).sqrt() - spread.inner
        least = torch.finfo(length.dtype).tiny
        roots = torch.where(spread.present, root / length.clamp(min=least), torch.inf)
        return torch.where(length.squeeze(1) > 0, roots.amin(1), 0)


@dataclass(frozen=True, kw_only=True)
class MinSum(Perturbed):
    """The largest γ whose sum of squared distances is not unusual.

    The constraint: the sum of its squared distances to the honest updates is at most that of an honest one.

    Reference: Shejwalkar, Houmansadr 2021, Manipulating the Byzantine (NDSS), section IV.
    """

    def gamma(self, spread: Spread) -> Tensor:
        """The largest γ `(replicas,)` with Σ_i |mean + γp - g_i|² <= max_i Σ_j |g_i - g_j|²; 0 where p = 0.

        Deviations from the mean add up to zero, so the left side is Σ_i |mean - g_i|² + nγ²|p|².
        """
        length = spread.direction.square().sum(1) * spread.present.sum(1)
        room = (spread.pairs.sum(2).amax(1) - spread.to_mean.sum(1)).clamp(min=0)
        return torch.where(length > 0, (room / length.clamp(min=torch.finfo(length.dtype).tiny)).sqrt(), 0)


def spread_of(coalition: Coalition, direction: Direction) -> Spread:
    """The spread of what the coalition would honestly hand in, and the direction to move away from it."""
    updates, present = coalition.updates.double(), coalition.present
    mean = masked_mean(updates, present)
    away = torch.where(present.unsqueeze(2), mean.unsqueeze(1) - updates, 0)
    moving = _direction(mean, away, present, direction)
    pairs = squared_distances(updates)
    both = present.unsqueeze(1) & present.unsqueeze(2)
    return Spread(
        mean=mean,
        direction=moving,
        inner=(away * moving.unsqueeze(1)).sum(2),
        to_mean=away.square().sum(2),
        pairs=torch.where(both, pairs, 0),
        present=present,
    )


def _direction(mean: Tensor, away: Tensor, present: Tensor, direction: Direction) -> Tensor:
    match direction:
        case Direction.UNIT:
            length: Tensor = torch.linalg.vector_norm(mean, dim=1, keepdim=True)
            return -mean / length.clamp(min=torch.finfo(mean.dtype).tiny)
        case Direction.STD:
            return -(away.square().sum(1) / present.sum(1, keepdim=True).clamp(min=1)).sqrt()
        case Direction.SIGN:
            return -mean.sign()


def masked_mean(updates: Tensor, present: Tensor) -> Tensor:
    """Mean `(replicas, dim)` of the updates (replicas, adversaries, dim) that are `present`; 0 without any.

    >>> masked_mean(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """
    inside = present.unsqueeze(2)
    total = torch.where(inside, updates, 0).sum(1)
    return total / present.sum(1, keepdim=True).clamp(min=1)
