"""Min-Sum: as far from all honest updates together as one of them is."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedproof.attacks.perturbation import Spread
from fedproof.attacks.perturbed import Perturbed


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
