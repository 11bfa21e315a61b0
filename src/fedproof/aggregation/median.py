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
    kept = updates.sort(dim=1).values[:, num_adversaries : size - num_adversaries]
    return folded(kept, 1) / kept.shape[1]


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

    Reference: Pillutla, Kakade, Harchaoui 2022, arXiv:1912.13445v3, Algorithm 2.

    >>> geometric_median(torch.tensor([[[0.0], [1.0], [50.0]]])).round(decimals=3).tolist()
    [[1.0]]
    """
    check.positive(smoothing=smoothing, tolerance=tolerance)
    check.count(iterations=iterations)
    check_size("geometric-median", updates.shape[1], num_adversaries, majority(num_adversaries))
    exact = updates.double()  # holds the square of every float32
    found, left = median(exact), torch.arange(len(exact), device=exact.device)
    for _ in range(iterations):
        before = found[left]
        after, distances = _step(exact, before, smoothing)
        found[left] = after
        moves = _lengths(after - before) > tolerance * distances.median(1).values
        if not bool(moves.all()):
            left, exact = left[moves], exact[moves]
        if not len(left):
            break
    return found.to(updates.dtype)


def _step(updates: Tensor, point: Tensor, smoothing: float) -> tuple[Tensor, Tensor]:
    """The next point of each replica, and the distances of the last one from the updates."""
    distances = _lengths(updates - point.unsqueeze(1))
    weights = 1 / distances.clamp(min=smoothing)
    shares = weights / folded(weights, 1).unsqueeze(1)
    return folded(shares.unsqueeze(2) * updates, 1), distances


def _lengths(vectors: Tensor) -> Tensor:
    """Norms along the last axis."""
    return folded(vectors.square(), -1).sqrt()


def folded(values: Tensor, dim: int) -> Tensor:
    """Sum of `values` along `dim`, of halves that are added to each other again and again.

    Guarantee: the bits of a sum follow from the numbers in it and from how many they are. Each addition is
    one of two numbers, rounded by itself. A library's own sum may be cut in another way, and so end in other
    bits, if more or fewer sums stand beside it: measured on a GPU, and of matrix products on CPUs too.

    >>> folded(torch.tensor([[1.0, 2.0, 3.0]]), 1).tolist()
    [6.0]
    """
    while (size := values.shape[dim]) > 1:
        half = size // 2
        sums = values.narrow(dim, 0, half) + values.narrow(dim, half, half)
        if size % 2:
            sums.narrow(dim, 0, 1).add_(values.narrow(dim, size - 1, 1))
        values = sums
    return values.sum(dim)  # of one number, or of none
