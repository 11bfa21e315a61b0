"""What Min-Max and Min-Sum share: the honest mean, and the direction in which it is moved."""

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import Tensor

from fedproof.aggregation.distances import squared_distances
from fedproof.attacks.coalition import Coalition, masked_mean


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


def handed_in(coalition: Coalition, spread: Spread, gamma: Tensor) -> Tensor:
    """Everybody of the coalition hands in mean + γ · direction, γ `(replicas,)`."""
    crafted = spread.mean + gamma.unsqueeze(1) * spread.direction
    everybody = crafted.unsqueeze(1).expand_as(coalition.updates)
    return everybody.to(coalition.updates.dtype)


def _direction(mean: Tensor, away: Tensor, present: Tensor, direction: Direction) -> Tensor:
    match direction:
        case Direction.UNIT:
            length: Tensor = torch.linalg.vector_norm(mean, dim=1, keepdim=True)
            return -mean / length.clamp(min=torch.finfo(mean.dtype).tiny)
        case Direction.STD:
            return -(away.square().sum(1) / present.sum(1, keepdim=True).clamp(min=1)).sqrt()
        case Direction.SIGN:
            return -mean.sign()
