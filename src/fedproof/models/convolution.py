"""Stacked convolutions and pools; images have their channels last.

A convolution of many small models, each with weights of its own, is a batched matrix product on windows:
measured four times faster on an H200 than a grouped convolution. On a GPU `kernels` does it without storing
windows, elsewhere plain torch with them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, partial
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproof.models.tape import Tape, Trace, Weights, affine, record
from fedproof.models.windows import Windows

_FEW = 16  # channels; kernels look those up one by one, which is quicker without a border to watch


def convolution(
    weights: Weights, name: str, images: Tensor, tape: Tape | None, *, stride: int = 1, padding: int = 0
) -> Tensor:
    """Images `(stack, batch, height, width, channels)` after the convolution called `name`, without its bias.

    The bias is left to the pool that follows, which saves a pass. `images` may have a first axis of length
    one, shared by all models.
    """
    windows = Windows(kernel=weights[f"{name}.weight"].shape[-1], stride=stride, padding=padding)
    if _kernels(images) is not None:
        return _by_kernels(weights, name, images, tape, windows, pool=1)
    stack, batch = images.shape[:2]
    found: Tensor = _Windows.apply(images.flatten(0, 1), windows)  # type: ignore[no-untyped-call]
    height, width = found.shape[1:3]
    rows = found.view(stack, batch * height * width, -1)
    outputs = affine(weights, (f"{name}.weight", f"{name}.bias"), rows, tape, with_bias=False)
    return outputs.view(len(outputs), batch, height, width, -1)


def averaged_convolution(
    weights: Weights, name: str, images: Tensor, tape: Tape | None, *, padding: int, pool: int
) -> Tensor:
    """Mean over disjoint squares of side `pool` of the ReLU of the convolution called `name`."""
    if _kernels(images) is not None:
        windows = Windows(kernel=weights[f"{name}.weight"].shape[-1], padding=padding)
        return _by_kernels(weights, name, images, tape, windows, pool)
    found = convolution(weights, name, images, tape, padding=padding)
    active = F.relu_(found + _by_channel(weights[f"{name}.bias"]))
    stack, batch, height, width, channels = active.shape
    return active.view(stack, batch, height // pool, pool, width // pool, pool, channels).mean((3, 5))


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


def _by_kernels(
    weights: Weights, name: str, images: Tensor, tape: Tape | None, windows: Windows, pool: int
) -> Tensor:
    weight, bias = weights[f"{name}.weight"], weights[f"{name}.bias"]
    around = windows.padding
    if around and images.shape[4] < _FEW:
        images = F.pad(images, (0, 0, around, around, around, around))
        windows = replace(windows, padding=0)
    images = images.contiguous()
    matrix = weight.permute(0, 3, 4, 2, 1).reshape(len(weight), -1, weight.shape[1]).contiguous()
    outputs: Tensor
    outputs, active = _Convolution.apply(images, matrix, bias, windows, pool)  # type: ignore[no-untyped-call]
    how = partial(_ConvolutionTrace, name=name, images=images.detach(), windows=windows)
    record(tape, name, outputs, lambda found, batch, dtype: how(upstream=_upstream(found, pool, active)))
    return outputs


def _upstream(gradient: Tensor, pool: int, active: Tensor | None) -> Any:
    return _load_kernels().Upstream(values=gradient.contiguous(), pool=pool, active=active)


class _Convolution(torch.autograd.Function):
    """A convolution by the kernels, and what its pool let through; without a pool it has no bias."""

    @staticmethod
    def forward(
        ctx: Any, images: Tensor, matrix: Tensor, bias: Tensor, windows: Windows, pool: int
    ) -> tuple[Tensor, Tensor | None]:
        outputs: Tensor
        active: Tensor | None = None
        if pool == 1:
            outputs = _load_kernels().convolve(images, matrix, windows)
        else:
            outputs, active = _load_kernels().convolve_pooled(images, matrix, bias, windows, pool)
            ctx.mark_non_differentiable(active)
        ctx.save_for_backward(images, matrix, active)
        ctx.windows, ctx.pool = windows, pool
        return outputs, active

    @staticmethod
    def backward(
        ctx: Any, *gradients: Tensor
    ) -> tuple[Tensor | None, Tensor | None, Tensor | None, None, None]:
        images, matrix, active = ctx.saved_tensors
        upstream, kernels = _upstream(gradients[0], ctx.pool, active), _load_kernels()
        of_images = of_matrix = of_bias = None
        if ctx.needs_input_grad[0]:
            of_images = kernels.convolve_backward(upstream, matrix, ctx.windows, images.shape)
        if ctx.needs_input_grad[1]:
            of_matrix, of_bias = (
                found.to(matrix.dtype) for found in kernels.summed_gradients(images, upstream, ctx.windows)
            )
        return of_images, of_matrix, of_bias if ctx.pool > 1 else None, None, None


@dataclass(frozen=True, kw_only=True)
class _ConvolutionTrace:
    """A convolution by the kernels, with the gradients of its outputs.

    Attributes:
        name: of the module.
        images: `(stack, batch, height, width, channels)`, or `(1, batch, ...)`.
        windows: of the images.
        upstream: the gradient of the loss with respect to the outputs.
    """

    name: str
    images: Tensor
    windows: Windows
    upstream: Any

    @cached_property
    def _of_instances(self) -> Any:
        return _load_kernels().instance_gradients(self.images, self.upstream, self.windows)

    def joined(self, others: Sequence[Trace]) -> "_ConvolutionTrace":
        """All applications of the same map as one; there is one only."""
        if others:
            raise ValueError(f"{self.name} has the weights of several convolutions, which is not supported")
        return self

    def without(self, finite: Tensor) -> "_ConvolutionTrace":
        """The same with gradients of zero for the instances that are not in `finite` (stack, batch)."""
        keep = finite[:, :, None, None, None]
        images, values = (torch.where(keep, value, 0) for value in (self.images, self.upstream.values))
        return replace(self, images=images, upstream=replace(self.upstream, values=values))

    def squared_norms(self) -> Tensor:
        """Squared norm `(stack, batch)` of each instance's gradient with respect to weight and bias."""
        found: Tensor = self._of_instances.norms
        return found

    def write(self, views: Weights, factors: Tensor) -> None:
        """Write the sum over instances of gradient times factor `(stack, batch)` into the named `views`."""
        weight, bias = _load_kernels().weighted_gradients(
            self.images, self.upstream, factors, self.windows, self._of_instances
        )
        target = views[f"{self.name}.weight"].permute(0, 3, 4, 2, 1)
        target.copy_(weight.view(target.shape))
        views[f"{self.name}.bias"].copy_(bias)


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


def _bias_gradient(images: Tensor, ctx: Any) -> Tensor | None:
    return images.view(ctx.stack, -1, images.shape[3]).sum(1) if ctx.needs_input_grad[1] else None
