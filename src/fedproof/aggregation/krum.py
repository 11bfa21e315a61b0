"""Krum: the update with the closest neighbours; Multi-Krum and Bulyan, which average the best of them."""

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.median import folded, middle
from fedproof.aggregation.rule import check_size


def krum_cohort(num_adversaries: int) -> int:
    """Smallest cohort: n > 2f + 2."""
    return 2 * num_adversaries + 3


def krum(updates: Tensor, num_adversaries: int) -> Tensor:
    """The update `(replicas, dim)` whose n - f - 2 nearest neighbours are nearest; of equals the first.

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, arXiv:1703.02757v1, section 4.

    >>> krum(torch.tensor([[[0.0], [1.0], [1.5], [2.0], [50.0]]]), 1).tolist()
    [[1.5]]
    """
    size = updates.shape[1]
    check_size("krum", size, num_adversaries, krum_cohort(num_adversaries))
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
        later = folded((updates[:, i + 1 :] - updates[:, i : i + 1]).square_(), 2)
        distances[:, i, i + 1 :] = later
        distances[:, i + 1 :, i] = later
    return distances


def krum_scores(distances: Tensor, num_neighbours: int) -> Tensor:
    """Sum `(replicas, cohort)` of each update's squared distances to its nearest neighbours, itself apart.

    >>> krum_scores(squared_distances(torch.tensor([[[0.0], [1.0], [3.0]]])), 1).tolist()
    [[1.0, 1.0, 4.0]]
    """
    others = distances + torch.diag_embed(torch.full_like(distances[:, 0], torch.inf))
    return folded(others.sort(dim=2).values[:, :, :num_neighbours], 2)


def multi_krum(updates: Tensor, num_adversaries: int, num_selected: int | None = None) -> Tensor:
    """Mean `(replicas, dim)` of the `num_selected` updates with the best Krum scores; of equals the first.

    By default n - f of n are averaged, f being `num_adversaries`.

    Reference: Blanchard, El Mhamdi, Guerraoui, Stainer 2017, arXiv:1703.02757v1, section 6.

    >>> multi_krum(torch.tensor([[[0.0], [1.0], [1.5], [2.0], [50.0]]]), 1).tolist()
    [[1.125]]
    """
    size = updates.shape[1]
    check_size("multi-krum", size, num_adversaries, krum_cohort(num_adversaries))
    count = size - num_adversaries if num_selected is None else num_selected
    check.count(num_selected=count)
    if count > size:
        raise ValueError(f"num_selected = {count} must be at most the cohort's size = {size}")
    scores = krum_scores(squared_distances(updates), size - num_adversaries - 2)
    best = scores.argsort(dim=1, stable=True)[:, :count]
    rows = torch.arange(len(updates), device=updates.device).unsqueeze(1)
    return folded(updates[rows, best], 1) / count


def bulyan_cohort(num_adversaries: int) -> int:
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
    check_size("bulyan", size, num_adversaries, bulyan_cohort(num_adversaries))
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
    return folded(torch.where(inside, values, 0), 1) / count


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
