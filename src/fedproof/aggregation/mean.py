"""The sum of the bounded updates, which the server divides by the expected cohort."""

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproof.aggregation.contributions import Contributions


def mean(contributions: Contributions) -> Tensor:
    """Sum `(replicas, dim)` of the bounded updates.

    Guarantee: one member moves the sum by at most the norm its scale allows. A replica's sum is taken over
    its own members, one after the other: it is the same bit for bit whoever else the others have drawn.
    """
    updates, present = contributions.updates, contributions.present
    replica, slot = present.nonzero(as_tuple=True)
    rows = slot if len(updates) == 1 else replica * updates.shape[1] + slot
    counts = present.sum(1)
    begin = counts.cumsum(0) - counts
    scales = contributions.scales[replica, slot]
    sizes = contributions.layer_sizes if scales.shape[1] > 1 else (updates.shape[2],)
    parts = torch.split(updates.flatten(0, 1), list(sizes), dim=1)
    # A bag is a weighted sum of rows of a table: clipped copies of the updates are never made.
    return torch.cat(
        [
            F.embedding_bag(rows, part.contiguous(), begin, mode="sum", per_sample_weights=scale.contiguous())
            for part, scale in zip(parts, scales.unbind(1), strict=True)
        ],
        dim=1,
    )
