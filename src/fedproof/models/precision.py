"""Where few digits are enough: what is clipped afterwards may have been computed in bfloat16 on a GPU."""

import torch
from torch import Tensor


def training_dtype(params: Tensor) -> torch.dtype:
    """What training computes gradients in: bfloat16 for models of float32 on a GPU, else their own type.

    For gradients that are clipped afterwards: whatever a user computes, clipping bounds it. Parameters,
    norms, clipped sums and scores keep all their digits. Training moves half the bytes.
    """
    return torch.bfloat16 if params.is_cuda and params.dtype == torch.float32 else params.dtype


def product(left: Tensor, right: Tensor, dtype: torch.dtype) -> Tensor:
    """Batched matrix product whose sums are kept in `dtype`, wider than the factors may be."""
    if left.dtype == dtype:
        return torch.bmm(left, right)
    if left.is_cuda:
        return torch.bmm(left, right, out_dtype=dtype)
    return torch.bmm(left.to(dtype), right.to(dtype))
