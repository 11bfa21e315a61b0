"""Medians: coordinate by coordinate, or the geometric one (RFA); and the mean without the extremes."""

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.rule import check_size, majority


def median(updates: Tensor, num_adversaries: int = 0) -> Tensor:
    """Median `(replicas, dim)` of each coordinate; of an even number, the mean of the middle two.

    Reference: Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498v2, Definition 1.

    >>> median(torch.tensor([[[0.0], [1.0], [3.0], [50.0]]]), 1).tolist()
    [[2.0]]
    """
    check_size("median", updates.shape[1], num_adversaries, majority(num_adversaries))
    return middle(updates.sort(dim=1).values)


def middle(values: Tensor) -> Tensor:
    """Median `(replicas, dim)` of values (replicas, cohort, dim) that are sorted along the cohort."""
    size = values.shape[1]
    return values[:, (size - 1) // 2 : size // 2 + 1].mean(1)


def trimmed_mean(updates: Tensor, num_adversaries: int) -> Tensor:
    """Mean `(replicas, dim)` of each coordinate without its f largest and f smallest values.

    Reference: Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498v2, Definition 2.

    >>> trimmed_mean(torch.tensor([[[0.0], [1.0], [3.0], [50.0]]]), 1).tolist()
    [[2.0]]
    """
    size = updates.shape[1]
    check_size("trimmed-mean", size, num_adversaries, majority(num_adversaries))
    return updates.sort(dim=1).values[:, num_adversaries : size - num_adversaries].mean(1)


def geometric_median(
    updates: Tensor,
    num_adversaries: int = 0,
    smoothing: float = 1e-6,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Geometric median `(replicas, dim)` by the smoothed Weiszfeld algorithm.

    From the coordinate-wise median, each step is a mean weighted by 1 / max(ν, distance), ν being the
    `smoothing`. A replica ends when its point moves by no more than `tolerance` of the median distance:
    far-away updates do not end it early. `num_adversaries` is for the size of the cohort alone.

    Guarantee: a replica's median is the same bit for bit whoever else the others have drawn.

    Reference: Pillutla, Kakade, Harchaoui 2022, arXiv:1912.13445v3, Algorithm 2.

    >>> geometric_median(torch.tensor([[[0.0], [1.0], [50.0]]])).round(decimals=3).tolist()
    [[1.0]]
    """
    check.positive(smoothing=smoothing, tolerance=tolerance)
    check.count(iterations=iterations)
    check_size("geometric-median", updates.shape[1], num_adversaries, majority(num_adversaries))
    # Each replica by itself: what a product gives for one depends, in its last bits, on how many there are.
    exact = torch.split(updates.double(), 1)  # holds the square of every float32
    found = [_found(one, smoothing, iterations, tolerance) for one in exact]
    return torch.cat(found).to(updates.dtype)


def _found(updates: Tensor, smoothing: float, iterations: int, tolerance: float) -> Tensor:
    """The geometric median `(1, dim)` of one replica's updates (1, cohort, dim)."""
    point = median(updates)
    for _ in range(iterations):
        after, distances = _step(updates, point, smoothing)
        moved, point = torch.linalg.vector_norm(after - point), after
        if not bool(moved > tolerance * distances.median()):
            break
    return point


def _step(updates: Tensor, point: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The next point, and the distances of the last one from the updates."""
    distances = torch.linalg.vector_norm(updates - point.unsqueeze(1), dim=2)
    weights = 1 / distances.clamp(min=smoothing)
    shares = weights / weights.sum(1, keepdim=True)
    return torch.bmm(shares.unsqueeze(1), updates).squeeze(1), distances
