"""Geometric median (RFA): the point with the smallest sum of distances."""

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.median import median
from fedproof.aggregation.rule import check_size, majority


def geometric_median(
    updates: Tensor,
    num_adversaries: int = 0,
    smoothing: float = 1e-6,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Geometric median `(replicas, dim)` by the smoothed Weiszfeld algorithm.

    From the coordinate-wise median, each step is a mean weighted by 1 / max(ν, distance). A replica ends when
    its point moves by no more than `tolerance` of the median distance: far-away updates do not end it early.

    Reference: Pillutla, Kakade, Harchaoui 2022, arXiv:1912.13445v3, Algorithm 2.

    Args:
        updates: `(replicas, cohort, dim)`.
        num_adversaries: f, for the size of the cohort alone.
        smoothing: ν.
        iterations: most steps.
        tolerance: of the last step.

    >>> geometric_median(torch.tensor([[[0.0], [1.0], [50.0]]])).round(decimals=3).tolist()
    [[1.0]]
    """
    check.positive(smoothing=smoothing, tolerance=tolerance)
    check.count(iterations=iterations)
    check_size("geometric-median", updates.shape[1], num_adversaries, majority(num_adversaries))
    exact = updates.double()  # holds the square of every float32
    point, moving = median(exact), torch.ones(len(updates), dtype=torch.bool, device=updates.device)
    for _ in range(iterations):
        after, distances = _step(exact[moving], point[moving], smoothing)
        moved = torch.linalg.vector_norm(after - point[moving], dim=1)
        point[moving] = after
        moving[moving.clone()] = moved > tolerance * distances.median(dim=1).values
        if not bool(moving.any()):
            break
    return point.to(updates.dtype)


def _step(updates: Tensor, point: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The next point, and the distances of the last one from the updates."""
    distances = torch.linalg.vector_norm(updates - point.unsqueeze(1), dim=2)
    weights = 1 / distances.clamp(min=smoothing)
    shares = weights / weights.sum(1, keepdim=True)
    return torch.bmm(shares.unsqueeze(1), updates).squeeze(1), distances
