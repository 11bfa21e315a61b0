"""Triton where it is installed, and what kernels are launched with.

Torch without CUDA comes without Triton, and nobody calls a kernel then.
"""

from collections.abc import Callable
from functools import cache
from math import prod
from typing import Any

import torch
from torch import Tensor

__all__ = ["empty", "fit", "jit", "new_images", "power", "precision_of", "shapes", "step_of", "tl", "triton"]

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    triton = tl = None

# Numbers that change from batch to batch: Triton would compile for 1, for multiples of 16 and for others,
# half a second each, though no address is better known for it.
_CHANGING = ("batch", "step", "each_model")


def jit(kernel: Callable[..., Any]) -> Any:
    """The function compiled for the GPU when it is first called."""
    return kernel if triton is None else triton.jit(kernel, do_not_specialize=_CHANGING)


def empty(like: Tensor, *shape: int) -> Tensor:
    """Room for numbers of float32 on the device of `like`."""
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def new_images(like: Tensor, *shape: int) -> Tensor:
    """Room for images of the given `shape` `(stack, batch, ...)`, of the type of `like`."""
    # Kernels count within a model with 32 bits.
    if prod(shape[1:]) >= 2**31:
        raise ValueError(f"a model's batch of {shape[1:]} has 2**31 numbers or more: take fewer")
    return like.new_empty(shape)


def step_of(images: Tensor) -> int:
    """Images from one model to the next: none if all see the same."""
    return images.shape[1] if len(images) > 1 else 0


def shapes(images: Tensor, out: Tensor) -> tuple[int, ...]:
    """What a kernel is compiled for: height, width and channels of what goes in and of what comes out."""
    return (*images.shape[2:], *out.shape[2:])


def power(size: int) -> int:
    """Least power of two that is no less than `size` and that tensor cores take."""
    return max(16, int(triton.next_power_of_2(size)))


def fit(like: Tensor, many: int, each: int, more: int, stages: int) -> int:
    """At most `many` places so that `each` number of theirs and `more` fit `stages` times."""
    room = 0.9 * _shared_memory(like.device) / (stages * like.element_size())
    while many > 16 and many * each + more > room:
        many //= 2
    return many


@cache
def _shared_memory(device: torch.device) -> int:
    """Bytes of a block of the device; those of an H200 where Triton's interpreter works on the host."""
    if device.type != "cuda":
        return 232448
    index = torch.cuda.current_device() if device.index is None else device.index
    return int(triton.runtime.driver.active.utils.get_device_properties(index)["max_shared_mem"])


def precision_of(images: Tensor) -> str:
    """How Triton multiplies these numbers."""
    # Three products of short numbers are as good as one of float32; for bfloat16 it does not matter.
    return "tf32x3" if images.dtype == torch.float32 else "tf32"
