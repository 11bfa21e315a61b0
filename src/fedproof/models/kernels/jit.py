"""Triton where it is installed; torch without CUDA comes without it, and nobody calls a kernel then."""

from collections.abc import Callable
from typing import Any

__all__ = ["jit", "tl", "triton"]

try:
    import triton  # type: ignore[import-not-found, import-untyped, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, import-untyped, unused-ignore]
except ImportError:
    triton = tl = None


def jit(kernel: Callable[..., Any]) -> Any:
    """The function compiled for the GPU when it is first called."""
    return kernel if triton is None else triton.jit(kernel)
