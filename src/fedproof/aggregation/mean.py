"""The sum of the bounded updates, which the server divides by the expected cohort."""

import torch
from torch import Tensor

from fedproof.aggregation.contributions import Contributions


def mean(contributions: Contributions) -> Tensor:
    """Sum `(replicas, dim)` of the bounded updates.

    Guarantee: one member moves the sum by at most the norm its scale allows.
    """
    layers = contributions.scales.shape[2]
    sizes = contributions.layer_sizes if layers > 1 else (contributions.updates.shape[2],)
    parts = torch.split(contributions.updates, list(sizes), dim=2)
    scales = contributions.scales.unbind(2)
    return torch.cat([_sum(part, scale) for part, scale in zip(parts, scales, strict=True)], dim=1)


def _sum(updates: Tensor, scales: Tensor) -> Tensor:
    # The scales enter the product, so that clipped copies of the updates are never made.
    if len(updates) == 1:
        return scales @ updates[0]
    return torch.bmm(scales.unsqueeze(1), updates).squeeze(1)
