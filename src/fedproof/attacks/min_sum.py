"""Min-Sum: as far from all honest updates together as one of them is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedproof.attacks.attack import Attack, Craft
from fedproof.attacks.coalition import Coalition
from fedproof.attacks.min_max import as_direction
from fedproof.attacks.perturbation import Direction, Spread, handed_in, spread_of
from fedproof.ensemble.task import Task
from fedproof.mechanisms.rounds import State


@dataclass(frozen=True, kw_only=True)
class MinSum(Attack):
    """All adversaries hand in mean + γp, with the largest γ whose sum of squared distances is not unusual.

    The constraint: the sum of its squared distances to the honest updates is at most that of an honest one.
    Agnostic setting, as for `MinMax`.

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
            return handed_in(coalition, spread, min_sum_gamma(spread))

        return craft


def min_sum_gamma(spread: Spread) -> Tensor:
    """The largest γ `(replicas,)` with Σ_i |mean + γp - g_i|² <= max_i Σ_j |g_i - g_j|²; 0 where p = 0.

    The updates' deviations from their mean add up to zero, so the left side is Σ_i |mean - g_i|² + nγ²|p|².
    """
    length = spread.direction.square().sum(1) * spread.present.sum(1)
    room = (spread.pairs.sum(2).amax(1) - spread.to_mean.sum(1)).clamp(min=0)
    return torch.where(length > 0, (room / length.clamp(min=torch.finfo(length.dtype).tiny)).sqrt(), 0)
