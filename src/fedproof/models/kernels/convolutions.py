"""Convolutions of many models, each with weights of its own, as matrix products that never store a window.

A window's numbers are looked up where they lie while the product is computed: stored windows are nine times
the images, and moving them took most of the time of a convolution on an H200.

Gradients of instances that are larger than what they are made of are not stored either: they are computed
for their norms and again for their clipped sum, in the same tiles and the same order.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from fedproof.models.convolution import Windows
from fedproof.models.kernels.launch import (
    empty,
    fit,
    jit,
    new_images,
    power,
    precision_of,
    shapes,
    step_of,
    tl,
    triton,
)

# Sizes of tiles were measured on an H200; where they do not fit they are halved.
_MANY = 128  # places at once
_STAGES = 3  # tiles on their way while one is worked on
_BLOCK = 1024  # numbers of a sum at once


def convolve(images: Tensor, weight: Tensor, windows: Windows) -> Tensor:
    """Images `(stack, batch, rows, columns, outs)`, each model's windows times its weight.

    Args:
        images: `(stack, batch, height, width, channels)`, or `(1, batch, ...)` if all models see the same.
        weight: `(stack, kernel * kernel * channels, outs)`, channels last in a window.
        windows: of the images.
    """
    stack, _, outs = weight.shape
    batch, height, width, _ = images.shape[1:]
    out = new_images(images, stack, batch, windows.along(height), windows.along(width), outs)
    wide, deep = power(outs), min(32, power(weight.shape[1]))
    many = fit(images, _MANY, deep, deep * wide, _STAGES)
    _convolve[(triton.cdiv(out[0, ..., 0].numel(), many), stack)](
        images, weight, out, batch, step_of(images),
        *shapes(images, out), windows.kernel, windows.stride, windows.padding,
        many, wide, deep, precision_of(images), num_stages=_STAGES,
    )  # fmt: skip
    return out


def convolve_backward(gradient: Tensor, weight: Tensor, windows: Windows, shape: torch.Size) -> Tensor:
    """Gradient of `convolve` with respect to images of the given `shape` `(stack, batch, ...)`."""
    batch, height, width, channels = shape[1:]
    out = new_images(gradient, len(gradient), *shape[1:])
    stride = windows.stride
    each = batch * triton.cdiv(height, stride) * triton.cdiv(width, stride)
    taps = triton.cdiv(windows.kernel, stride) ** 2
    wide, deep = power(channels), min(64, power(taps * gradient.shape[4]))
    many = fit(gradient, _MANY, deep, deep * wide, _STAGES)
    # Pixels that lie alike under the windows meet the same weights: one matrix product for each of the kinds.
    grid = (triton.cdiv(each, many), len(gradient), stride * stride)
    _convolve_backward[grid](
        gradient, weight, out, batch,
        *shapes(out, gradient), windows.kernel, stride, windows.padding,
        many, wide, deep, precision_of(gradient), num_stages=_STAGES,
    )  # fmt: skip
    return out


@dataclass(frozen=True, kw_only=True)
class InstanceGradients:
    """The gradients of many instances with respect to a weight and a bias.

    Attributes:
        norms: `(stack, batch)` in float64, their squared norms, rounded up.
        biases: `(stack, batch, outs)`.
        weights: `(stack, batch, line, outs)`, None if they were not kept.
    """

    norms: Tensor
    biases: Tensor
    weights: Tensor | None


def instance_gradients(images: Tensor, gradient: Tensor, windows: Windows) -> InstanceGradients:
    """Each instance's gradient; the weight's is kept where it is smaller than what it is made of.

    Norms are of the numbers that are kept, which are rounded to the type of the images.

    Args:
        images: what went in, as in `convolve`.
        gradient: of the loss with respect to what came out, `(stack, batch, rows, columns, outs)`.
        windows: of the images.
    """
    stack, batch = gradient.shape[:2]
    tiles = _Tiles.of(images, gradient, windows)
    parts = empty(gradient, stack, batch, tiles.count)
    biases = empty(gradient, stack, batch, tiles.outs)
    keep = tiles.line * tiles.outs <= images[0, 0].numel() + gradient[0, 0].numel()
    weights = gradient.new_empty((stack, batch, tiles.line, tiles.outs)) if keep else None
    grid = (tiles.count, batch, stack)
    _instance_gradients[grid](
        images, gradient, parts, biases, weights, step_of(images), *tiles.shape, keep, **tiles.options
    )
    # A tile's squares are all positive, so their sum in float32 errs by far fewer than 256 roundings.
    norms = parts.sum(2, dtype=torch.float64) * (1 + 256 * torch.finfo(torch.float32).eps)
    return InstanceGradients(norms=norms, biases=biases, weights=weights)


def weighted_gradients(
    images: Tensor, gradient: Tensor, factors: Tensor, windows: Windows, found: InstanceGradients
) -> tuple[Tensor, Tensor]:
    """Sum in float32 over instances of gradient times factor: of weight `(stack, line, outs)` and bias.

    `factors` are `(stack, batch)`, `found` are the `instance_gradients` of the same arguments.
    """
    stack, batch = gradient.shape[:2]
    tiles = _Tiles.of(images, gradient, windows)
    weight = empty(gradient, stack, tiles.line, tiles.outs)
    if found.weights is None:
        _weighted_gradients[(tiles.count, stack)](
            images, gradient, factors, weight, batch, step_of(images), *tiles.shape, **tiles.options
        )
    else:
        grid = (triton.cdiv(weight[0].numel(), _BLOCK), stack)
        _weighted_sum[grid](found.weights, factors, weight, batch, weight[0].numel(), _BLOCK)
    return weight, (factors.unsqueeze(1) @ found.biases).squeeze(1)


def summed_gradients(images: Tensor, gradient: Tensor, windows: Windows) -> Tensor:
    """Sum over instances of the gradient of the weight, `(stack, line, outs)` in float32."""
    stack, batch = gradient.shape[:2]
    tiles = _Tiles.of(images, gradient, windows, together=batch)
    weight = empty(gradient, stack, tiles.line, tiles.outs)
    _summed_gradients[(tiles.count, stack)](
        images, gradient, weight, batch, step_of(images), *tiles.shape, **tiles.options
    )
    return weight


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    """How the gradient of a weight is cut.

    Attributes:
        line: numbers of a window.
        outs: channels that came out.
        count: number of tiles.
        shape: what the kernel is compiled for.
        options: how it is compiled.
    """

    line: int
    outs: int
    count: int
    shape: tuple[int | str, ...]
    options: dict[str, int]

    @staticmethod
    def of(images: Tensor, gradient: Tensor, windows: Windows, together: int = 1) -> _Tiles:
        line, outs = windows.kernel * windows.kernel * images.shape[4], gradient.shape[4]
        wide, deep = power(outs), min(128, power(line))
        places = min(_MANY, power(together * gradient.shape[2] * gradient.shape[3]))
        stages = 1 if places == 16 else 2
        many = fit(images, places, wide + deep, 0, stages)
        sizes = (windows.kernel, windows.stride, windows.padding, many, wide, deep, precision_of(images))
        return _Tiles(
            line=line,
            outs=outs,
            count=triton.cdiv(line, deep),
            shape=(*shapes(images, gradient), *sizes),
            options={"num_warps": 2 if many * deep <= 4096 else 4, "num_stages": stages},
        )


@jit
def _convolve(  # type: ignore[no-untyped-def]
    images, weight, out, batch, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    each: tl.constexpr = rows * columns
    line: tl.constexpr = kernel * kernel * channels
    place = tl.program_id(0) * many + tl.arange(0, many)
    real = place < batch * each
    image = place // each
    y = place % each // columns * stride - padding
    x = place % columns * stride - padding
    corner = images + model * step * (height * width * channels)
    begin = (image * height + y) * width * channels + x * channels
    target = tl.arange(0, wide)
    total = tl.zeros((many, wide), dtype=tl.float32)
    for start in range(0, line, deep):
        number = start + tl.arange(0, deep)
        channel = number % channels
        down = number // (channels * kernel)
        across = number // channels % kernel
        there = real[:, None] & (number < line)[None, :]
        if padding > 0:
            there &= (y[:, None] + down[None, :] >= 0) & (y[:, None] + down[None, :] < height)
            there &= (x[:, None] + across[None, :] >= 0) & (x[:, None] + across[None, :] < width)
        shift = (down * width + across) * channels + channel
        window = tl.load(corner + begin[:, None] + shift[None, :], mask=there, other=0.0)
        lines = weight + model * (line * outs) + number[:, None] * outs + target[None, :]
        factor = tl.load(lines, mask=(number < line)[:, None] & (target < outs)[None, :], other=0.0)
        total = tl.dot(window, factor, total, input_precision=precision)
    where = out + model * batch * (each * outs) + place[:, None] * outs + target[None, :]
    tl.store(where, total.to(out.dtype.element_ty), mask=real[:, None] & (target < outs)[None, :])


@jit
def _convolve_backward(  # type: ignore[no-untyped-def]
    gradient, weight, out, batch,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    high: tl.constexpr = (height + stride - 1) // stride
    broad: tl.constexpr = (width + stride - 1) // stride
    taps: tl.constexpr = (kernel + stride - 1) // stride
    place = tl.program_id(0) * many + tl.arange(0, many)
    image = place // (high * broad)
    y = place % (high * broad) // broad * stride + tl.program_id(2) // stride
    x = place % broad * stride + tl.program_id(2) % stride
    real = (image < batch) & (y < height) & (x < width)
    # The windows over a pixel have it at `first`, `first + stride`, ... and are one apart.
    first_down = (tl.program_id(2) // stride + padding) % stride
    first_across = (tl.program_id(2) % stride + padding) % stride
    row = (y + padding - first_down) // stride
    column = (x + padding - first_across) // stride
    begin = ((image * rows + row) * columns + column) * outs
    source = gradient + model * batch * (rows * columns * outs)
    target = tl.arange(0, wide)
    total = tl.zeros((many, wide), dtype=tl.float32)
    for start in range(0, taps * taps * outs, deep):
        number = start + tl.arange(0, deep)
        channel = number % outs
        up = number // (outs * taps)
        left = number // outs % taps
        down = first_down + up * stride
        across = first_across + left * stride
        known = (number < taps * taps * outs) & (down < kernel) & (across < kernel)
        there = (row[:, None] - up[None, :] >= 0) & (row[:, None] - up[None, :] < rows)
        there &= (column[:, None] - left[None, :] >= 0) & (column[:, None] - left[None, :] < columns)
        there &= real[:, None] & known[None, :]
        shift = channel - (up * columns + left) * outs
        upstream = tl.load(source + begin[:, None] + shift[None, :], mask=there, other=0.0)
        lines = ((down * kernel + across) * channels)[:, None] + target[None, :]
        lines = weight + model * (kernel * kernel * channels * outs) + lines * outs + channel[:, None]
        factor = tl.load(lines, mask=known[:, None] & (target < channels)[None, :], other=0.0)
        total = tl.dot(upstream, factor, total, input_precision=precision)
    where = ((image * height + y) * width + x)[:, None] * channels + target[None, :]
    where += model * batch * (height * width * channels)
    tl.store(out + where, total.to(out.dtype.element_ty), mask=real[:, None] & (target < channels)[None, :])


@jit
def _tile(  # type: ignore[no-untyped-def]
    images, gradient, tile, places,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Gradient `(deep, wide)` of one tile of the weight, `(wide,)` of the bias, summed over `places`."""
    line: tl.constexpr = kernel * kernel * channels
    each: tl.constexpr = rows * columns
    number = tile * deep + tl.arange(0, deep)
    down = number // (channels * kernel)
    across = number // channels % kernel
    shift = (down * width + across) * channels + number % channels
    target = tl.arange(0, wide)
    weight = tl.zeros((deep, wide), dtype=tl.float32)
    bias = tl.zeros((wide,), dtype=tl.float32)
    for start in range(0, places, many):
        place = start + tl.arange(0, many)
        real = place < places
        y = place % each // columns * stride - padding
        x = place % columns * stride - padding
        there = real[:, None] & (number < line)[None, :]
        if padding > 0:
            there &= (y[:, None] + down[None, :] >= 0) & (y[:, None] + down[None, :] < height)
            there &= (x[:, None] + across[None, :] >= 0) & (x[:, None] + across[None, :] < width)
        begin = ((place // each * height + y) * width + x) * channels
        window = tl.load(images + begin[:, None] + shift[None, :], mask=there, other=0.0)
        there = real[:, None] & (target < outs)[None, :]
        upstream = tl.load(gradient + place[:, None] * outs + target[None, :], mask=there, other=0.0)
        weight = tl.dot(tl.trans(window), upstream, weight, input_precision=precision)
        bias += tl.sum(upstream.to(tl.float32), 0)
    return weight, bias


@jit
def _store_tile(  # type: ignore[no-untyped-def]
    out, weight, tile, line: tl.constexpr, outs: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr
):
    number = tile * deep + tl.arange(0, deep)
    target = tl.arange(0, wide)
    inside = (number < line)[:, None] & (target < outs)[None, :]
    tl.store(out + number[:, None] * outs + target[None, :], weight, mask=inside)


@jit
def _instance_gradients(  # type: ignore[no-untyped-def]
    images, gradient, parts, biases, weights, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
    keep: tl.constexpr,
):  # fmt: skip
    tile, image, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    number = model * tl.num_programs(1) + image
    weight, bias = _tile(
        images + (model * step + image) * (height * width * channels),
        gradient + number * (rows * columns * outs), tile, rows * columns,
        height, width, channels, rows, columns, outs, kernel, stride, padding, many, wide, deep, precision,
    )  # fmt: skip
    if keep:
        line: tl.constexpr = kernel * kernel * channels
        kept = weight.to(weights.dtype.element_ty)
        _store_tile(weights + number * (line * outs), kept, tile, line, outs, wide, deep)
        weight = kept.to(tl.float32)
    total = tl.sum(weight * weight)
    if tile == 0:
        target = tl.arange(0, wide)
        tl.store(biases + number * outs + target, bias, mask=target < outs)
        total += tl.sum(bias * bias)
    tl.store(parts + number * tl.num_programs(0) + tile, total)


@jit
def _weighted_gradients(  # type: ignore[no-untyped-def]
    images, gradient, factors, weights, batch, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    tile, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line: tl.constexpr = kernel * kernel * channels
    total = tl.zeros((deep, wide), dtype=tl.float32)
    for image in range(batch):
        number = model * batch + image
        weight, _ = _tile(
            images + (model * step + image) * (height * width * channels),
            gradient + number * (rows * columns * outs), tile, rows * columns,
            height, width, channels, rows, columns, outs,
            kernel, stride, padding, many, wide, deep, precision,
        )  # fmt: skip
        total += tl.load(factors + number) * weight
    _store_tile(weights + model * (line * outs), total, tile, line, outs, wide, deep)


@jit
def _weighted_sum(values, factors, out, batch, each: tl.constexpr, block: tl.constexpr):  # type: ignore[no-untyped-def]
    model = tl.program_id(1).to(tl.int64)
    place = tl.program_id(0) * block + tl.arange(0, block)
    inside = place < each
    total = tl.zeros((block,), dtype=tl.float32)
    for number in range(batch):
        value = tl.load(values + (model * batch + number) * each + place, mask=inside, other=0.0)
        total += tl.load(factors + model * batch + number) * value.to(tl.float32)
    tl.store(out + model * each + place, total, mask=inside)


@jit
def _summed_gradients(  # type: ignore[no-untyped-def]
    images, gradient, weights, batch, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    tile, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line: tl.constexpr = kernel * kernel * channels
    weight, _ = _tile(
        images + model * step * (height * width * channels),
        gradient + model * batch * (rows * columns * outs), tile, batch * rows * columns,
        height, width, channels, rows, columns, outs, kernel, stride, padding, many, wide, deep, precision,
    )  # fmt: skip
    _store_tile(weights + model * (line * outs), weight, tile, line, outs, wide, deep)
