"""Geometric median (RFA): the point with the smallest sum of distances."""

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.rule import check_size, majority


def geometric_median(
    updates: Tensor,
    num_adversaries: int = 0,
    smoothing: float = 1e-6,
    iterations: int = 200,
    tolerance: float = 1e-6,
) -> Tensor:
    """Geometric median `(replicas, dim)` by the smoothed Weiszfeld algorithm.

    From the mean, each step is a mean weighted by 1 / max(ν, distance); it ends when no replica's point moves
    by more than `tolerance` of the mean distance.

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
    point = exact.mean(1)
    for _ in range(iterations):
        distances = torch.linalg.vector_norm(exact - point.unsqueeze(1), dim=2)
        weights = 1 / distances.clamp(min=smoothing)
        after = torch.einsum("rc,rcd->rd", weights / weights.sum(1, keepdim=True), exact)
        moved = torch.linalg.vector_norm(after - point, dim=1)
        point = after
        if bool((moved <= tolerance * distances.mean(1)).all()):
            break
    return point.to(updates.dtype)
