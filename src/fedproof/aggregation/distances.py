"""Distances between the updates of a cohort, and the scores Krum gives them."""

import torch
from torch import Tensor


def squared_distances(updates: Tensor) -> Tensor:
    """Squared distances `(replicas, cohort, cohort)` between updates (replicas, cohort, dim), 0 to itself.

    From differences, not from scalar products: equal updates have distance zero exactly, and ties are ties.

    >>> squared_distances(torch.tensor([[[0.0], [3.0]]])).tolist()
    [[[0.0, 9.0], [9.0, 0.0]]]
    """
    size = updates.shape[1]
    distances = updates.new_zeros((len(updates), size, size))
    for i in range(size - 1):
        later = (updates[:, i + 1 :] - updates[:, i : i + 1]).square_().sum(2)
        distances[:, i, i + 1 :] = later
        distances[:, i + 1 :, i] = later
    return distances


def krum_scores(distances: Tensor, num_neighbours: int) -> Tensor:
    """Sum `(replicas, cohort)` of each update's squared distances to its nearest neighbours, itself apart.

    >>> krum_scores(squared_distances(torch.tensor([[[0.0], [1.0], [3.0]]])), 1).tolist()
    [[1.0, 1.0, 4.0]]
    """
    others = distances + torch.diag_embed(torch.full_like(distances[:, 0], torch.inf))
    return others.sort(dim=2).values[:, :, :num_neighbours].sum(2)
