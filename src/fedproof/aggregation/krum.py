"""Krum: the update with the closest neighbours."""

import torch
from torch import Tensor

from fedproof.aggregation.distances import krum_scores, squared_distances
from fedproof.aggregation.rule import check_size


def least_cohort(num_adversaries: int) -> int:
    """Smallest cohort: n > 2f + 2."""
    return 2 * num_adversaries + 3


def krum(updates: Tensor, num_adversaries: int) -> Tensor:
    """The update `(replicas, dim)` whose n - f - 2 nearest neighbours are nearest; of equals the first.

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, arXiv:1703.02757v1, section 4.

    >>> krum(torch.tensor([[[0.0], [1.0], [1.5], [2.0], [50.0]]]), 1).tolist()
    [[1.5]]
    """
    size = updates.shape[1]
    check_size("krum", size, num_adversaries, least_cohort(num_adversaries))
    scores = krum_scores(squared_distances(updates), size - num_adversaries - 2)
    best = scores.argmin(1)
    return updates[torch.arange(len(updates), device=updates.device), best]
