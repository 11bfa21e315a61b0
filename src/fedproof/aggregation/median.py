"""Coordinate by coordinate: the median, and the mean without the extremes."""

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


def trimmed_mean(updates: Tensor, num_adversaries: int) -> Tensor:
    """Mean `(replicas, dim)` of each coordinate without its f largest and f smallest values.

    Reference: Yin, Chen, Ramchandran, Bartlett 2018, arXiv:1803.01498v2, Definition 2.

    >>> import torch
    >>> trimmed_mean(torch.tensor([[[0.0], [1.0], [3.0], [50.0]]]), 1).tolist()
    [[2.0]]
    """
    size = updates.shape[1]
    check_size("trimmed-mean", size, num_adversaries, majority(num_adversaries))
    return updates.sort(dim=1).values[:, num_adversaries : size - num_adversaries].mean(1)
