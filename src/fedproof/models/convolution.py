"""Stacked convolutions as windows times matrix, and pools; images have their channels last.

A convolution of many small models, each with weights of its own, is a batched matrix product on windows:
measured four times faster on an H200 than a grouped convolution. On a GPU the rest is done by `kernels`.
"""

from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproof.models.tape import Tape, Weights, affine


def convolution(
    weights: Weights, name: str, images: Tensor, tape: Tape | None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Images `(stack, batch, height, width, channels)` after the convolution called `name`, without its bias.

    The bias is left to the pool that follows, which saves a pass. `images` may have a first axis of length
    one, shared by all models.
    """
    stack, batch = images.shape[:2]
    kernel = weights[f"{name}.weight"].shape[-1]
    # Rows of whole 16 bytes: 27 numbers in bfloat16 were measured to take three times as long as 32.
    multiple = 8 if images.dtype == torch.bfloat16 else 1
    windows: Tensor = _Windows.apply(images.flatten(0, 1), kernel, stride, padding, multiple)  # type: ignore[no-untyped-call]
    height, width = windows.shape[1:3]
    rows = windows.view(stack, batch * height * width, -1)
    outputs = affine(weights, (f"{name}.weight", f"{name}.bias"), rows, tape, with_bias=False)
    return outputs.view(len(outputs), batch, height, width, -1)


def max_pool_relu(images: Tensor, bias: Tensor) -> Tensor:
    """ReLU of `bias` (stack, channels) plus the maximum over windows of 2 by 2 that move by one."""
    flat = images.flatten(0, 1)
    if _kernels(images) is None:
        # The maximum first: the same function, on fewer numbers. The permuted view is torch's channels-last.
        pooled = F.max_pool2d(flat.permute(0, 3, 1, 2), 2, 1).permute(0, 2, 3, 1)
        pooled = pooled.reshape(*images.shape[:2], *pooled.shape[1:])
        return F.relu_(pooled + _by_channel(bias))
    found: Tensor = _MaxPoolReLU.apply(flat, bias)  # type: ignore[no-untyped-call]
    return found.view(*images.shape[:2], *found.shape[1:])


def disjoint_max_pool_relu(images: Tensor, bias: Tensor) -> Tensor:
    """ReLU of `bias` (stack, channels) plus the maximum over disjoint windows of 2 by 2."""
    stack, batch, height, width, channels = images.shape
    windows = images.view(stack, batch, height // 2, 2, width // 2, 2, channels)
    return F.relu(windows.amax((3, 5)) + _by_channel(bias))


def average_pool_relu(images: Tensor, bias: Tensor) -> Tensor:
    """Mean of the ReLU of `images` plus `bias` (stack, channels) over disjoint windows of 2 by 2."""
    stack, batch, height, width, channels = images.shape
    if _kernels(images) is None:
        active = F.relu_(images + _by_channel(bias))
        return active.view(stack, batch, height // 2, 2, width // 2, 2, channels).mean((3, 5))
    pooled: Tensor = _AveragePoolReLU.apply(images.flatten(0, 1), bias)  # type: ignore[no-untyped-call]
    return pooled.view(stack, batch, *pooled.shape[1:])


def average_relu(images: Tensor, bias: Tensor) -> Tensor:
    """Mean `(stack, batch, channels)` over whole images of the ReLU of `images` plus `bias`."""
    return F.relu_(images + _by_channel(bias)).mean((2, 3))


def _by_channel(bias: Tensor) -> Tensor:
    return bias[:, None, None, None, :]


def _kernels(images: Tensor) -> ModuleType | None:
    return _load_kernels() if images.is_cuda else None


@cache
def _load_kernels() -> ModuleType | None:
    return import_module("fedproof.models.kernels") if find_spec("triton") else None


class _Windows(torch.autograd.Function):
    """All windows `(images, rows, columns, width)` of `(images, ..., channels)`, each as one row of numbers.

    A row holds a window's `(kernel, kernel, channels)` numbers, and zeros up to a `multiple`. Written out
    because the backward pass of two `unfold`s makes large intermediate tensors.
    """

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, kernel: int, stride: int, padding: int, multiple: int = 1
    ) -> Tensor:
        ctx.shape, ctx.kernel, ctx.stride, ctx.padding = images.shape, kernel, stride, padding
        more = -(kernel * kernel * images.shape[3]) % multiple
        found = _kernels(images)
        if found is not None:
            windows: Tensor = found.windows(images.contiguous(), kernel, stride, padding, more)
            return windows
        padded = F.pad(images, (0, 0, padding, padding, padding, padding))
        unfolded = padded.unfold(1, kernel, stride).unfold(2, kernel, stride).permute(0, 1, 2, 4, 5, 3)
        return F.pad(unfolded.flatten(3), (0, more)) if more else unfolded.contiguous().flatten(3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        found = _kernels(gradients[0])
        fold = _fold if found is None else found.windows_backward
        total = fold(gradients[0].contiguous(), ctx.shape, ctx.kernel, ctx.stride, ctx.padding)
        return total, None, None, None, None


def _fold(windows: Tensor, shape: torch.Size, kernel: int, stride: int, padding: int) -> Tensor:
    """Sum of all windows at their places."""
    count, height, width, channels = shape
    rows, columns = windows.shape[1:3]
    gradient = windows[..., : kernel * kernel * channels].reshape(
        count, rows, columns, kernel, kernel, channels
    )
    total = gradient.new_zeros((count, height + 2 * padding, width + 2 * padding, channels))
    # Windows cut into stride by stride tiles do not overlap, so the tiles at one place are added at once.
    for down in range(0, kernel, stride):
        for across in range(0, kernel, stride):
            tile = gradient[:, :, :, down : down + stride, across : across + stride]
            tiled = total[:, down:, across:].unfold(1, tile.shape[3], stride).unfold(2, tile.shape[4], stride)
            tiled[:, :rows, :columns].add_(tile.permute(0, 1, 2, 5, 3, 4))
    return total[:, padding : padding + height, padding : padding + width]


class _MaxPoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, bias: Tensor) -> Tensor:
        pooled: Tensor
        pooled, choice = _load_kernels().max_pool_relu(images.contiguous(), bias)  # type: ignore[union-attr]
        ctx.save_for_backward(choice)
        ctx.stack = len(bias)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        (choice,) = ctx.saved_tensors
        kernels = _load_kernels()
        images = kernels.max_pool_relu_backward(gradients[0].contiguous(), choice)  # type: ignore[union-attr]
        return images, _bias_gradient(images, ctx)


class _AveragePoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, bias: Tensor) -> Tensor:
        images = images.contiguous()
        ctx.save_for_backward(images, bias)
        ctx.stack = len(bias)
        pooled: Tensor = _load_kernels().average_pool_relu(images, bias)  # type: ignore[union-attr]
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        kernels = _load_kernels()
        images = kernels.average_pool_relu_backward(gradients[0].contiguous(), *ctx.saved_tensors)  # type: ignore[union-attr]
        return images, _bias_gradient(images, ctx)


def _bias_gradient(images: Tensor, ctx: Any) -> Tensor | None:
    return images.view(ctx.stack, -1, images.shape[3]).sum(1) if ctx.needs_input_grad[1] else None
