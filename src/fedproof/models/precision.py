"""Where fewer digits are enough: matrix products of training on a GPU's tensor cores."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def tensor_cores(device: torch.device) -> Iterator[None]:
    """Meanwhile products of float32 matrices on a GPU round their factors to TF32, and add in float32.

    For gradients that are clipped afterwards: whatever a user computes, clipping bounds it. Norms, clipped
    sums and scores are computed outside of this.
    """
    if device.type != "cuda":
        yield
        return
    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        yield
    finally:
        torch.set_float32_matmul_precision(before)
