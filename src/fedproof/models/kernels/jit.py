"""Triton where it is installed; torch without CUDA comes without it, and nobody calls a kernel then."""

from collections.abc import Callable
from typing import Any

__all__ = ["jit", "tl", "triton"]

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
