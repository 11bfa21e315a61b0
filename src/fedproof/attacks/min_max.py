"""Min-Max: as far from the honest mean as the honest updates lie apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedproof.attacks.attack import Attack, Craft
from fedproof.attacks.coalition import Coalition
from fedproof.attacks.perturbation import Direction, Spread, handed_in, spread_of
from fedproof.ensemble.task import Task
from fedproof.mechanisms.rounds import State


@dataclass(frozen=True, kw_only=True)
class MinMax(Attack):
    """All adversaries hand in mean + γp, with the largest γ that keeps it among the honest updates.

    The constraint: its largest distance from an honest update is at most the largest distance between two of
    them. Agnostic setting: the honest updates are those the adversaries would have handed in themselves. A
    single adversary has nothing to hide behind and hands in its own.

    Reference: Shejwalkar, Houmansadr 2021, Manipulating the Byzantine (NDSS), section IV.

    Attributes:
        direction: of the perturbation p.
    """

    direction: Direction = Direction.STD

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "direction", as_direction(self.direction))

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by the perturbed mean."""

        def craft(coalition: Coalition, state: State) -> Tensor:
            spread = spread_of(coalition, self.direction)
            return handed_in(coalition, spread, min_max_gamma(spread))

        return craft


def min_max_gamma(spread: Spread) -> Tensor:
    """The largest γ `(replicas,)` with max_i |mean + γp - g_i| <= max_ij |g_i - g_j|; 0 where p = 0.

    For each i it is the positive root of a quadratic, so nothing has to be searched for.
    """
    length = spread.direction.square().sum(1, keepdim=True)
    radius = spread.pairs.amax((1, 2)).unsqueeze(1)
    rest = (spread.to_mean - radius).clamp(max=0)
    root = (spread.inner.square() - length * rest).sqrt() - spread.inner
    roots = torch.where(spread.present, root / length.clamp(min=torch.finfo(length.dtype).tiny), torch.inf)
    return torch.where(length.squeeze(1) > 0, roots.amin(1), 0)


def as_direction(value: str) -> Direction:
    """`value` as a direction.

    >>> as_direction("inverse-sign")
    <Direction.SIGN: 'inverse-sign'>
    """
    if value not in list(Direction):
        raise ValueError(f"direction = {value!r} must be one of {', '.join(Direction)}")
    return Direction(value)
