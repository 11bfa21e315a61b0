"""Stacked convolutions and pools; images have their channels last.

A convolution of many small models, each with weights of its own, is a batched matrix product on windows:
measured four times faster on an H200 than a grouped convolution. On a GPU `kernels` does it without storing
windows, elsewhere plain torch with them.
"""

from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproof.models.tape import Tape, Weights, affine, record

_FEW = 16  # channels; kernels look those up one by one, which is quicker without a border to watch


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of `kernel` by `kernel` that move by `stride` over images with `padding` zeros around them."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def along(self, size: int) -> int:
        """Number of windows along a side of `size`.

        >>> Windows(kernel=3, padding=1).along(32)
        32
        """
        return (size + 2 * self.padding - self.kernel) // self.stride + 1


def convolution(
    weights: Weights, name: str, images: Tensor, tape: Tape | None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Images `(stack, batch, height, width, channels)` after the convolution called `name`, without its bias.

    The bias is left to the pool that follows, which saves a pass. `images` may have a first axis of length
    one, shared by all models.
    """
    names = (f"{name}.weight", f"{name}.bias")
    weight = weights[names[0]]
    windows = Windows(kernel=weight.shape[-1], stride=stride, padding=padding)
    if _kernels(images) is None:
        found: Tensor = _Windows.apply(images.flatten(0, 1), windows)  # type: ignore[no-untyped-call]
        stack, batch = images.shape[:2]
        height, width = found.shape[1:3]
        rows = found.view(stack, batch * height * width, -1)
        outputs = affine(weights, names, rows, tape, with_bias=False)
        return outputs.view(len(outputs), batch, height, width, -1)
    if padding and images.shape[4] < _FEW:
        images = F.pad(images, (0, 0, padding, padding, padding, padding))
        windows = replace(windows, padding=0)
    matrix = weight.permute(0, 3, 4, 2, 1).reshape(len(weight), -1, weight.shape[1])
    images = images.contiguous()
    convolved: Tensor = _Convolution.apply(images, matrix.contiguous(), windows)  # type: ignore[no-untyped-call]
    record(tape, names[0], convolved, partial(_convolution_trace, names, images.detach(), windows))
    return convolved


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
    return F.relu(_windows(images).amax((3, 5)) + _by_channel(bias))


def average_pool_relu(images: Tensor, bias: Tensor) -> Tensor:
    """Mean of the ReLU of `images` plus `bias` (stack, channels) over disjoint windows of 2 by 2."""
    pooled: Tensor
    if _kernels(images) is None:
        active = F.relu_(images + _by_channel(bias))
        if active.device.type != "cpu" or active.dtype != torch.float32:
            return _windows(active).mean((3, 5))
        pooled = _AveragePool.apply(active)  # type: ignore[no-untyped-call]
        return pooled
    pooled = _AveragePoolReLU.apply(images.flatten(0, 1), bias)  # type: ignore[no-untyped-call]
    return pooled.view(*images.shape[:2], *pooled.shape[1:])


def _windows(images: Tensor) -> Tensor:
    """Disjoint windows of 2 by 2, `(stack, batch, rows, 2, columns, 2, channels)`."""
    stack, batch, height, width, channels = images.shape
    return images.view(stack, batch, height // 2, 2, width // 2, 2, channels)


def average_relu(images: Tensor, bias: Tensor) -> Tensor:
    """Mean `(stack, batch, channels)` over whole images of the ReLU of `images` plus `bias`."""
    return F.relu_(images + _by_channel(bias)).mean((2, 3))


def _by_channel(bias: Tensor) -> Tensor:
    return bias[:, None, None, None, :]


def _kernels(images: Tensor) -> Any:
    """The module of the kernels, None where plain torch is to do their work."""
    known = images.is_cuda and images.dtype in (torch.float32, torch.bfloat16)
    return _load_kernels() if known else None


@cache
def _load_kernels() -> Any:
    return import_module("fedproof.models.kernels") if find_spec("triton") else None


class _Windows(torch.autograd.Function):
    """All windows `(images, rows, columns, kernel * kernel * channels)` of `(images, ..., channels)`.

    Written out because the backward pass of two `unfold`s makes large intermediate tensors.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor, windows: Windows) -> Tensor:
        ctx.shape, ctx.windows = images.shape, windows
        around = windows.padding
        padded = F.pad(images, (0, 0, around, around, around, around))
        size, step = windows.kernel, windows.stride
        unfolded = padded.unfold(1, size, step).unfold(2, size, step).permute(0, 1, 2, 4, 5, 3)
        return unfolded.contiguous().flatten(3)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return _fold(gradients[0].contiguous(), ctx.shape, ctx.windows), None


def _fold(gradient: Tensor, shape: torch.Size, windows: Windows) -> Tensor:
    """Sum of all windows at their places."""
    count, height, width, channels = shape
    rows, columns = gradient.shape[1:3]
    kernel, stride, padding = windows.kernel, windows.stride, windows.padding
    gradient = gradient.view(count, rows, columns, kernel, kernel, channels)
    total = gradient.new_zeros((count, height + 2 * padding, width + 2 * padding, channels))
    # Windows cut into stride by stride tiles do not overlap, so the tiles at one place are added at once.
    for down in range(0, kernel, stride):
        for across in range(0, kernel, stride):
            tile = gradient[:, :, :, down : down + stride, across : across + stride]
            tiled = total[:, down:, across:].unfold(1, tile.shape[3], stride).unfold(2, tile.shape[4], stride)
            tiled[:, :rows, :columns].add_(tile.permute(0, 1, 2, 5, 3, 4))
    return total[:, padding : padding + height, padding : padding + width]


class _Convolution(torch.autograd.Function):
    """Images `(stack, batch, rows, columns, outs)` of images and a matrix for each model, by the kernels."""

    @staticmethod
    def forward(ctx: Any, images: Tensor, matrix: Tensor, windows: Windows) -> Tensor:
        ctx.save_for_backward(images, matrix)
        ctx.windows = windows
        found: Tensor = _load_kernels().convolve(images, matrix, windows)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        images, matrix = ctx.saved_tensors
        gradient, kernels = gradients[0].contiguous(), _load_kernels()
        of_images = of_matrix = None
        if ctx.needs_input_grad[0]:
            of_images = kernels.convolve_backward(gradient, matrix, ctx.windows, images.shape)
        if ctx.needs_input_grad[1]:
            of_matrix = kernels.summed_gradients(images, gradient, ctx.windows).to(matrix.dtype)
        return of_images, of_matrix, None


@dataclass(frozen=True, kw_only=True)
class _ConvolutionTrace:
    """A convolution by the kernels, with gradients `(stack, batch, rows, columns, out)` of its outputs."""

    names: tuple[str, str]
    images: Tensor
    gradients: Tensor
    windows: Windows

    @cached_property
    def _of_instances(self) -> Any:
        return _load_kernels().instance_gradients(self.images, self.gradients, self.windows)

    def without(self, finite: Tensor) -> "_ConvolutionTrace":
        """The same with gradients of zero for the instances that are not in `finite` (stack, batch)."""
        keep = finite[:, :, None, None, None]
        images, gradients = (torch.where(keep, value, 0) for value in (self.images, self.gradients))
        return replace(self, images=images, gradients=gradients)

    def squared_norms(self) -> Tensor:
        """Squared norm `(stack, batch)` of each instance's gradient with respect to weight and bias."""
        found: Tensor = self._of_instances.norms
        return found

    def write(self, views: Weights, factors: Tensor) -> None:
        """Write the sum over instances of gradient times factor `(stack, batch)` into the named `views`."""
        weight, bias = _load_kernels().weighted_gradients(
            self.images, self.gradients, factors, self.windows, self._of_instances
        )
        target = views[self.names[0]].permute(0, 3, 4, 2, 1)
        target.copy_(weight.view(target.shape))
        views[self.names[1]].copy_(bias)


def _convolution_trace(
    names: tuple[str, str], images: Tensor, windows: Windows, gradient: Tensor, batch: int, dtype: torch.dtype
) -> _ConvolutionTrace:
    return _ConvolutionTrace(names=names, images=images, gradients=gradient.contiguous(), windows=windows)


class _MaxPoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, bias: Tensor) -> Tensor:
        pooled: Tensor
        pooled, choice = _load_kernels().max_pool_relu(images.contiguous(), bias)
        ctx.save_for_backward(choice)
        ctx.stack = len(bias)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        (choice,) = ctx.saved_tensors
        kernels = _load_kernels()
        images = kernels.max_pool_relu_backward(gradients[0].contiguous(), choice)
        return images, _bias_gradient(images, ctx)


class _AveragePool(torch.autograd.Function):
    """Mean over disjoint windows of 2 by 2, by additions, whose bits do not follow from shapes.

    A CPU takes five times as long for `mean` over two axes at once.
    """

    @staticmethod
    def forward(ctx: Any, images: Tensor) -> Tensor:
        ctx.shape, windows = images.shape, _windows(images)
        across = windows[..., 0, :] + windows[..., 1, :]
        return (across[:, :, :, 0] + across[:, :, :, 1]).div_(4)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        each = (gradients[0] / 4)[:, :, :, None, :, None]
        return each.expand(-1, -1, -1, 2, -1, 2, -1).reshape(ctx.shape)


class _AveragePoolReLU(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, images: Tensor, bias: Tensor) -> Tensor:
        images = images.contiguous()
        ctx.save_for_backward(images, bias)
        ctx.stack = len(bias)
        pooled: Tensor = _load_kernels().average_pool_relu(images, bias)
        return pooled

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor | None]:
        kernels = _load_kernels()
        images = kernels.average_pool_relu_backward(gradients[0].contiguous(), *ctx.saved_tensors)
        return images, _bias_gradient(images, ctx)


def _bias_gradient(images: Tensor, ctx: Any) -> Tensor | None:
    return images.view(ctx.stack, -1, images.shape[3]).sum(1) if ctx.needs_input_grad[1] else None
