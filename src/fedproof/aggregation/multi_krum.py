"""Multi-Krum: the mean of the updates that Krum scores best."""

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.krum import krum_scores, least_cohort, squared_distances
from fedproof.aggregation.rule import check_size


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
