"""Bulyan: Krum chooses, a mean around the median decides."""

import torch
from torch import Tensor

from fedproof.aggregation.krum import krum_scores, squared_distances
from fedproof.aggregation.median import middle
from fedproof.aggregation.rule import check_size


def least_cohort(num_adversaries: int) -> int:
    """Smallest cohort: n >= 4f + 3."""
    return 4 * num_adversaries + 3


def bulyan(updates: Tensor, num_adversaries: int) -> Tensor:
    """Mean `(replicas, dim)` of the values nearest to the median of θ = n - 2f updates chosen by Krum.

    Krum chooses one update after the other among those that are left, then each coordinate is the mean of the
    θ - 2f values nearest to the median; of equally near ones the smaller. Near the end Krum has fewer than
    f + 3 updates left and looks at one neighbour.

    Reference: El Mhamdi, Guerraoui, Rouault 2018, arXiv:1802.07927v2, section 4.

    >>> bulyan(torch.tensor([[[0.0], [1.0], [2.0], [3.0], [4.0], [5.0], [99.0]]]), 1).tolist()
    [[2.0]]
    """
    size = updates.shape[1]
    check_size("bulyan", size, num_adversaries, least_cohort(num_adversaries))
    chosen = _choose(squared_distances(updates), num_adversaries)
    rows = torch.arange(len(updates), device=updates.device).unsqueeze(1)
    values = updates[rows, chosen].sort(dim=1).values
    return _mean_around_median(values, size - 4 * num_adversaries)


def _mean_around_median(values: Tensor, count: int) -> Tensor:
    """Mean `(replicas, dim)` of the `count` nearest to the median, of sorted values (replicas, θ, dim)."""
    size = values.shape[1]
    median = middle(values).unsqueeze(1)
    # The nearest are neighbours. They begin behind all values that the one `count` places on is nearer than.
    begin = (median - values[:, : size - count] > values[:, count:] - median).sum(1, keepdim=True)
    place = torch.arange(size, device=values.device).view(1, -1, 1)
    inside = (place >= begin) & (place < begin + count)
    return torch.where(inside, values, 0).sum(1) / count


def _choose(distances: Tensor, num_adversaries: int) -> Tensor:
    """Places `(replicas, θ)` of the updates that Krum chooses one after the other."""
    size = distances.shape[1]
    rows = torch.arange(len(distances), device=distances.device)
    left = torch.ones(distances.shape[:2], dtype=torch.bool, device=distances.device)
    chosen = []
    for count in range(size, 2 * num_adversaries, -1):
        pairs = torch.where(left.unsqueeze(1) & left.unsqueeze(2), distances, torch.inf)
        scores = krum_scores(pairs, min(count - 1, max(1, count - num_adversaries - 2)))
        # A sum of squares may overflow; even then only those that are left may be chosen.
        scores = scores.clamp(max=torch.finfo(scores.dtype).max)
        best = torch.where(left, scores, torch.inf).argmin(1)
        left[rows, best] = False
        chosen.append(best)
    return torch.stack(chosen, dim=1)
