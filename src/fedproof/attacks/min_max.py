"""Min-Max: as far from the honest mean as the honest updates lie apart."""

from dataclasses import dataclass

import torch
from torch import Tensor

from fedproof.attacks.perturbation import Spread
from fedproof.attacks.perturbed import Perturbed


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
