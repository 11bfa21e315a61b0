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

from fedproof.models.tape import Tape, Weights, layer


def convolution(
    weights: Weights, name: str, images: Tensor, tape: Tape | None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Images `(stack, batch, height, width, channels)` after the convolution called `name`.

    `images` may have a first axis of length one, shared by all models.
    """
    stack, batch = images.shape[:2]
    kernel = weights[f"{name}.weight"].shape[-1]
    windows: Tensor = _Windows.apply(images.flatten(0, 1), kernel, stride, padding)  # type: ignore[no-untyped-call]
    height, width = windows.shape[1:3]
    outputs = layer(weights, name, windows.view(stack, batch * height * width, -1), tape)
    return outputs.view(len(outputs), batch, height, width, -1)


def max_pool_relu(images: Tensor) -> Tensor:
    """ReLU of the maximum over windows of 2 by 2 that move by one."""
    flat = images.flatten(0, 1)
    if _kernels(images) is None:
        # The maximum first: the same function, on fewer numbers. The permuted view is torch's channels-last.
        pooled = F.relu_(F.max_pool2d(flat.permute(0, 3, 1, 2), 2, 1)).permute(0, 2, 3, 1)
    else:
        pooled = _MaxPoolReLU.apply(flat)  # type: ignore[no-untyped-call]
    return pooled.reshape(*images.shape[:2], *pooled.shape[1:])


def average_pool_relu(images: Tensor) -> Tensor:
    """Mean of the ReLU over disjoint windows of 2 by 2."""
    stack, batch, height, width, channels = images.shape
    if _kernels(images) is None:
        return F.relu(images).view(stack, batch, height // 2, 2, width // 2, 2, channels).mean((3, 5))
    pooled: Tensor = _AveragePoolReLU.apply(images.flatten(0, 1))  # type: ignore[no-untyped-call]
    return pooled.view(stack, batch, *pooled.shape[1:])


def _kernels(images: Tensor) -> ModuleType | None:
    return _load_kernels() if images.is_cuda else None


@cache
def _load_kernels() -> ModuleType | None:
    return import_module("fedproof.models.kernels") if find_spec("triton") else None


class _Windows(torch.autograd.Function):
    """All windows `(images, rows, columns, kernel, kernel, channels)` of `(images, ..., channels)`.

    Written out because the backward pass of two `unfold`s makes large intermediate tensors.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
        ctx.shape, ctx.stride, ctx.padding = images.shape, stride, padding
        found = _kernels(images)
        if found is not None:
            windows: Tensor = found.windows(images.contiguous(), kernel, stride, padding)
            return windows
        padded = F.pad(images, (0, 0, padding, padding, padding, padding))
        return (
            padded.unfold(1, kernel, stride).unfold(2, kernel, stride).permute(0, 1, 2, 4, 5, 3).contiguous()
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        found = _kernels(gradients[0])
        if found is not None:
            total = found.windows_backward(gradients[0].contiguous(), ctx.shape, ctx.stride, ctx.padding)
        else:
            total = _fold(gradients[0], ctx.shape, ctx.stride, ctx.padding)
        return total, None, None, None


def _fold(gradient: Tensor, shape: torch.Size, stride: int, padding: int) -> Tensor:
    """Sum of all windows at their places."""
    count, height, width, channels = shape
    rows, columns, kernel = gradient.shape[1:4]
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
    def forward(ctx: Any, images: Tensor) -> Tensor:
        pooled, choice = _load_kernels().max_pool_relu(images.contiguous())  # type: ignore[union-attr]
        ctx.save_for_backward(choice)
        return pooled  # type: ignore[no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (choice,) = ctx.saved_tensors
        return _load_kernels().max_pool_relu_backward(gradients[0].contiguous(), choice)  # type: ignore[union-attr, no-any-return]


class _AveragePoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        images = images.contiguous()
        ctx.save_for_backward(images)
        return _load_kernels().average_pool_relu(images)  # type: ignore[union-attr, no-any-return]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (images,) = ctx.saved_tensors
        return _load_kernels().average_pool_relu_backward(gradients[0].contiguous(), images)  # type: ignore[union-attr, no-any-return]
