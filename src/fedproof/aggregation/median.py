"""Coordinate-wise median."""

from torch import Tensor

from fedproof.aggregation.rule import check_size, majority


def median(updates: Tensor, num_adversaries: int = 0) -> Tensor:
    """Median `(replicas, dim)` of each coordinate; of an even number, the mean of the middle two.

    Reference: Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498v2, Definition 1.

    >>> import torch
    >>> median(torch.tensor([[[0.0], [1.0], [3.0], [50.0]]]), 1).tolist()
    [[2.0]]
    """
    check_size("median", updates.shape[1], num_adversaries, majority(num_adversaries))
    return middle(updates.sort(dim=1).values)


def middle(values: Tensor) -> Tensor:
    """Median `(replicas, dim)` of values (replicas, cohort, dim) that are sorted along the cohort."""
    size = values.shape[1]
    return values[:, (size - 1) // 2 : size // 2 + 1].mean(1)
