"""Where few digits are enough, and where none may be lost: clipping bounds whatever came before it."""

import torch
from torch import Tensor

from fedproof.models.host import all_digits

__all__ = ["all_digits", "clip_scales", "product", "training_dtype"]


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


def clip_scales(norms: Tensor, threshold: float | Tensor, dtype: torch.dtype) -> Tensor:
    """Factors that bring vectors of the given float64 `norms` to at most `threshold`, rounding included."""
    exact = (threshold / norms.clamp(min=torch.finfo(norms.dtype).tiny)).clamp(max=1)
    # Norm and products may each round up: leave them room. The factor itself is rounded down, because a
    # huge vector needs one so small that float32 holds few of its digits.
    exact = exact * (1 - 8 * torch.finfo(dtype).eps)
    rounded = exact.to(dtype)
    return torch.where(rounded > exact, torch.nextafter(rounded, torch.zeros_like(rounded)), rounded)
