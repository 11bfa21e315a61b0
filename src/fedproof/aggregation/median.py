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
    size = updates.shape[1]
    check_size("median", size, num_adversaries, majority(num_adversaries))
    return updates.sort(dim=1).values[:, (size - 1) // 2 : size // 2 + 1].mean(1)
