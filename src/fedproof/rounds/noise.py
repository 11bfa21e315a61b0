"""Gaussian noise, each replica from its own stream."""

from collections.abc import Sequence

import torch
from torch import Tensor

from fedproof.rounds.randomness import Stream


def add_noise(
    total: Tensor, noise_std: Tensor, layer_sizes: tuple[int, ...], streams: Sequence[Stream]
) -> Tensor:
    """`total` (replicas, dim) plus Gaussian noise of standard deviation `noise_std` (replicas, layers or 1).

    Guarantee: row r of the noise is drawn from `streams[r]` alone, independent of `total`.
    """
    noise = torch.empty_like(total)
    for row, stream in zip(noise, streams, strict=True):
        stream.normal_(row)
    if noise_std.shape[1] == 1:
        return total + noise * noise_std
    per_entry = noise_std.repeat_interleave(torch.tensor(layer_sizes, device=total.device), dim=1)
    return total + noise * per_entry
