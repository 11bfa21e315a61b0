"""Krum: the update with the closest neighbours. Multi-Krum: the mean of the best of them."""

import torch
from torch import Tensor

from fedproof import check
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


def multi_krum(updates: Tensor, num_adversaries: int, num_selected: int | None = None) -> Tensor:
    """Mean `(replicas, dim)` of the updates with the best Krum scores; of equals the first.

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, arXiv:1703.02757v1, section 6.

    Args:
        updates: `(replicas, cohort, dim)`.
        num_adversaries: f.
        num_selected: number of updates that are averaged; None: n - f.

    >>> multi_krum(torch.tensor([[[0.0], [1.0], [1.5], [2.0], [50.0]]]), 1).tolist()
    [[1.125]]
    """
    size = updates.shape[1]
    check_size("multi-krum", size, num_adversaries, least_cohort(num_adversaries))
    count = size - num_adversaries if num_selected is None else num_selected
    check.count(num_selected=count)
    if count > size:
        raise ValueError(f"num_selected = {count} must be at most the cohort's size = {size}")
    scores = krum_scores(squared_distances(updates), size - num_adversaries - 2)
    best = scores.argsort(dim=1, stable=True)[:, :count]
    rows = torch.arange(len(updates), device=updates.device).unsqueeze(1)
    return updates[rows, best].mean(1)
