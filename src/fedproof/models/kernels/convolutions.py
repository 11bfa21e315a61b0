"""Convolutions of many models, each with weights of its own, as matrix products that never store a window.

A window's numbers are looked up where they lie while the product is computed: stored windows are nine times
the images, and moving them took most of the time of a convolution on an H200.

A pool of disjoint squares that averages the ReLU is part of the convolution: what lies under a pool is known
by one bit, whether the ReLU let it through, and never stored either.

Gradients of instances that are larger than what they are made of are computed for their norms and again for
their clipped sum, in the same tiles and the same order.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from math import prod

import torch
from torch import Tensor

from fedproof.models.kernels.jit import jit, tl, triton
from fedproof.models.windows import Windows

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
    out = _images(images, len(weight), *_sides(images, windows), weight.shape[2])
    _convolve_into(out, None, images, weight, None, windows, pool=1)
    return out


def convolve_pooled(
    images: Tensor, weight: Tensor, bias: Tensor, windows: Windows, pool: int
) -> tuple[Tensor, Tensor]:
    """The mean over disjoint squares of side `pool` of the ReLU of `convolve` plus `bias` (stack, outs).

    Also which numbers under each square the ReLU let through, one bit for each, row by row.
    """
    batch, rows, columns = _sides(images, windows)
    if rows % pool or columns % pool or pool > 5:
        raise ValueError(f"images of {rows} by {columns} cannot be cut into squares of side {pool}")
    out = _images(images, len(weight), batch, rows // pool, columns // pool, weight.shape[2])
    active = torch.empty_like(out, dtype=torch.uint8 if pool == 2 else torch.int32)
    _convolve_into(out, active, images, weight, bias, windows, pool)
    return out, active


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The gradient of the loss with respect to what came out of a convolution.

    Attributes:
        values: `(stack, batch, rows, columns, outs)`, of squares if there is a pool.
        pool: side of the squares, 1 if there is none.
        active: which numbers under each square the ReLU let through, None if there is no pool.
    """

    values: Tensor
    pool: int = 1
    active: Tensor | None = None


def convolve_backward(upstream: Upstream, weight: Tensor, windows: Windows, shape: torch.Size) -> Tensor:
    """Gradient with respect to images of the given `shape` `(stack, batch, ...)`."""
    batch, height, width, channels = shape[1:]
    values, stride = upstream.values, windows.stride
    out = _images(values, len(values), *shape[1:])
    each = batch * triton.cdiv(height, stride) * triton.cdiv(width, stride)
    taps = triton.cdiv(windows.kernel, stride) ** 2
    wide, deep = _power(channels), min(64, _power(taps * values.shape[4]))
    many = _fit(values, _MANY, deep, deep * wide, _STAGES)
    # Pixels that lie alike under the windows meet the same weights: one matrix product for each of the kinds.
    grid = (triton.cdiv(each, many), len(values), stride * stride)
    _convolve_backward[grid](
        values, upstream.active, weight, out, batch,
        *_shape(out, values, windows, upstream.pool), many, wide, deep, _precision(values),
        num_stages=_STAGES,
    )  # fmt: skip
    return out


@dataclass(frozen=True, kw_only=True)
class InstanceGradients:
    """The gradients of many instances with respect to a weight and a bias.

    Attributes:
        norms: `(stack, batch)`, their squared norms.
        biases: `(stack, batch, outs)`.
        weights: `(stack, batch, line, outs)`, None if they were not kept.
    """

    norms: Tensor
    biases: Tensor
    weights: Tensor | None


def instance_gradients(images: Tensor, upstream: Upstream, windows: Windows) -> InstanceGradients:
    """Each instance's gradient; the weight's is kept where it is smaller than what it is made of.

    Norms are of the numbers that are kept, which are rounded to the type of the images.
    """
    stack, batch = upstream.values.shape[:2]
    tiles = _Tiles.of(images, upstream, windows)
    parts = _empty(images, stack, batch, tiles.count)
    biases = _empty(images, stack, batch, tiles.outs)
    keep = tiles.line * tiles.outs <= images[0, 0].numel() + tiles.places * tiles.outs
    weights = images.new_empty((stack, batch, tiles.line, tiles.outs)) if keep else None
    _instance_gradients[(tiles.count, batch, stack)](
        images, upstream.values, upstream.active, parts, biases, weights, _step(images),
        *tiles.shape, keep, **tiles.options,
    )  # fmt: skip
    return InstanceGradients(norms=parts.sum(2), biases=biases, weights=weights)


def weighted_gradients(
    images: Tensor, upstream: Upstream, factors: Tensor, windows: Windows, found: InstanceGradients
) -> tuple[Tensor, Tensor]:
    """Sum in float32 over instances of gradient times factor: of weight `(stack, line, outs)` and bias.

    `factors` are `(stack, batch)`, `found` are the `instance_gradients` of the same arguments.
    """
    stack, batch = upstream.values.shape[:2]
    tiles = _Tiles.of(images, upstream, windows)
    weight = _empty(images, stack, tiles.line, tiles.outs)
    if found.weights is None:
        _weighted_gradients[(tiles.count, stack)](
            images, upstream.values, upstream.active, factors, weight, batch, _step(images),
            *tiles.shape, **tiles.options,
        )  # fmt: skip
    else:
        grid = (triton.cdiv(weight[0].numel(), _BLOCK), stack)
        _weighted_sum[grid](found.weights, factors, weight, batch, weight[0].numel(), _BLOCK)
    return weight, (factors.unsqueeze(1) @ found.biases).squeeze(1)


def summed_gradients(images: Tensor, upstream: Upstream, windows: Windows) -> tuple[Tensor, Tensor]:
    """Sum in float32 over instances of the gradient: of weight `(stack, line, outs)` and bias."""
    stack, batch = upstream.values.shape[:2]
    tiles = _Tiles.of(images, upstream, windows, together=batch)
    weight, bias = _empty(images, stack, tiles.line, tiles.outs), _empty(images, stack, tiles.outs)
    _summed_gradients[(tiles.count, stack)](
        images, upstream.values, upstream.active, weight, bias, batch, _step(images),
        *tiles.shape, **tiles.options,
    )  # fmt: skip
    return weight, bias


# --- sizes --------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Tiles:
    """How the gradient of a weight is cut.

    Attributes:
        line: numbers of a window.
        outs: channels that came out.
        places: windows of an image.
        count: number of tiles.
        shape: what the kernel is compiled for.
        options: how it is compiled.
    """

    line: int
    outs: int
    places: int
    count: int
    shape: tuple[int | str, ...]
    options: dict[str, int]

    @staticmethod
    def of(images: Tensor, upstream: Upstream, windows: Windows, together: int = 1) -> _Tiles:
        line, outs = windows.kernel * windows.kernel * images.shape[4], upstream.values.shape[4]
        wide, deep = _power(outs), min(128, _power(line))
        places = prod(_sides(images, windows)[1:])
        most = min(_MANY, _power(together * places))
        stages = 1 if most == 16 else 2
        many = _fit(images, most, wide + deep, 0, stages)
        shape = _shape(images, upstream.values, windows, upstream.pool)
        return _Tiles(
            line=line,
            outs=outs,
            places=places,
            count=triton.cdiv(line, deep),
            shape=(*shape, many, wide, deep, _precision(images)),
            options={"num_warps": 2 if many * deep <= 4096 else 4, "num_stages": stages},
        )


def _sides(images: Tensor, windows: Windows) -> tuple[int, int, int]:
    """Images of a model, rows and columns of windows."""
    batch, height, width = images.shape[1:4]
    return batch, windows.along(height), windows.along(width)


def _shape(images: Tensor, out: Tensor, windows: Windows, pool: int) -> tuple[int, ...]:
    return (*images.shape[2:], out.shape[4], windows.kernel, windows.stride, windows.padding, pool)


def _empty(like: Tensor, *shape: int) -> Tensor:
    return torch.empty(shape, dtype=torch.float32, device=like.device)


def _images(like: Tensor, *shape: int) -> Tensor:
    # Kernels count within a model with 32 bits.
    if prod(shape[1:]) >= 2**31:
        raise ValueError(f"a model's batch of {shape[1:]} has 2**31 numbers or more: take fewer")
    return like.new_empty(shape)


def _step(images: Tensor) -> int:
    """Images from one model to the next: none if all see the same."""
    return images.shape[1] if len(images) > 1 else 0


def _power(size: int) -> int:
    """Least power of two that is no less than `size` and that tensor cores take."""
    return max(16, int(triton.next_power_of_2(size)))


def _fit(like: Tensor, many: int, each: int, more: int, stages: int) -> int:
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


def _precision(images: Tensor) -> str:
    # Three products of short numbers are as good as one of float32; for bfloat16 it does not matter.
    return "tf32x3" if images.dtype == torch.float32 else "tf32"


def _convolve_into(
    out: Tensor,
    active: Tensor | None,
    images: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    windows: Windows,
    pool: int,
) -> None:
    stack, line, outs = weight.shape
    batch, rows, columns = _sides(images, windows)
    wide, deep = _power(outs), min(32, _power(line))
    many = _fit(images, _MANY, deep, deep * wide, _STAGES)
    _convolve[(triton.cdiv(batch * rows * columns, many), stack)](
        images, weight, bias, out, active, batch, _step(images), 0 if bias is None else bias.stride(0),
        *_shape(images, out, windows, pool), many, wide, deep, _precision(images),
        num_stages=_STAGES,
    )  # fmt: skip


# --- kernels ------------------------------------------------------------------------------------------------


@jit
def _convolve(  # type: ignore[no-untyped-def]
    images, weight, bias, out, active, batch, step, bias_step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows: tl.constexpr = (height + 2 * padding - kernel) // stride + 1
    columns: tl.constexpr = (width + 2 * padding - kernel) // stride + 1
    each: tl.constexpr = rows * columns
    line: tl.constexpr = kernel * kernel * channels
    square: tl.constexpr = pool * pool
    # Places of one square are neighbours.
    place = tl.program_id(0) * many + tl.arange(0, many)
    real = place < batch * each
    within = place % each // square
    row = within // (columns // pool) * pool + place % square // pool
    column = within % (columns // pool) * pool + place % pool
    y = row * stride - padding
    x = column * stride - padding
    corner = images + model * step * (height * width * channels)
    begin = ((place // each * height + y) * width + x) * channels
    target = tl.arange(0, wide)
    total = tl.zeros((many, wide), dtype=tl.float32)
    for start in range(0, line, deep):
        number = start + tl.arange(0, deep)
        down = number // (channels * kernel)
        across = number // channels % kernel
        there = real[:, None] & (number < line)[None, :]
        if padding > 0:
            there &= (y[:, None] + down[None, :] >= 0) & (y[:, None] + down[None, :] < height)
            there &= (x[:, None] + across[None, :] >= 0) & (x[:, None] + across[None, :] < width)
        shift = (down * width + across) * channels + number % channels
        window = tl.load(corner + begin[:, None] + shift[None, :], mask=there, other=0.0)
        lines = weight + model * (line * outs) + number[:, None] * outs + target[None, :]
        factor = tl.load(lines, mask=(number < line)[:, None] & (target < outs)[None, :], other=0.0)
        total = tl.dot(window, factor, total, input_precision=precision)
    if pool == 1:
        where = model * batch * (each * outs) + place[:, None] * outs + target[None, :]
        tl.store(out + where, total.to(out.dtype.element_ty), mask=real[:, None] & (target < outs)[None, :])
    else:
        total += tl.load(bias + model * bias_step + target, mask=target < outs, other=0.0)[None, :]
        bits = tl.where(total > 0, 1, 0) << (place % square)[:, None]
        total = tl.where(total <= 0, 0.0, total)
        few: tl.constexpr = many // square
        mean = tl.sum(tl.reshape(total, (few, square, wide)), 1) / square
        bits = tl.sum(tl.reshape(bits, (few, square, wide)), 1)
        cell = tl.program_id(0) * few + tl.arange(0, few)
        where = model * batch * (each // square * outs) + cell[:, None] * outs + target[None, :]
        there = (cell < batch * (each // square))[:, None] & (target < outs)[None, :]
        tl.store(out + where, mean.to(out.dtype.element_ty), mask=there)
        tl.store(active + where, bits.to(active.dtype.element_ty), mask=there)


@jit
def _load_upstream(  # type: ignore[no-untyped-def]
    values, active, image, row, column, there, channel,
    rows: tl.constexpr, columns: tl.constexpr, outs: tl.constexpr, pool: tl.constexpr,
):  # fmt: skip
    """Gradient of the outputs at the given places, times the size of a square."""
    if pool == 1:
        where = ((image * rows + row) * columns + column) * outs + channel
        found = tl.load(values + where, mask=there, other=0.0)
    else:
        cell = (image * (rows // pool) + row // pool) * (columns // pool) + column // pool
        where = cell * outs + channel
        found = tl.load(values + where, mask=there, other=0.0)
        bits = tl.load(active + where, mask=there, other=0).to(tl.int32)
        found = tl.where((bits >> (row % pool * pool + column % pool)) & 1 != 0, found, 0.0)
    return found


@jit
def _convolve_backward(  # type: ignore[no-untyped-def]
    values, active, weight, out, batch,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    model = tl.program_id(1).to(tl.int64)
    rows: tl.constexpr = (height + 2 * padding - kernel) // stride + 1
    columns: tl.constexpr = (width + 2 * padding - kernel) // stride + 1
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
    last_row = (y + padding - first_down) // stride
    last_column = (x + padding - first_across) // stride
    numbers: tl.constexpr = rows * columns * outs // (pool * pool)
    values += model * batch * numbers
    if pool > 1:
        active += model * batch * numbers
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
        row = last_row[:, None] - up[None, :]
        column = last_column[:, None] - left[None, :]
        there = (row >= 0) & (row < rows) & (column >= 0) & (column < columns)
        there &= real[:, None] & known[None, :]
        upstream = _load_upstream(
            values, active, image[:, None], row, column, there, channel[None, :], rows, columns, outs, pool
        )
        lines = ((down * kernel + across) * channels)[:, None] + target[None, :]
        lines = weight + model * (kernel * kernel * channels * outs) + lines * outs + channel[:, None]
        factor = tl.load(lines, mask=known[:, None] & (target < channels)[None, :], other=0.0)
        total = tl.dot(upstream, factor, total, input_precision=precision)
    total = total / (pool * pool)
    where = model * batch * (height * width * channels)
    where += ((image * height + y) * width + x)[:, None] * channels + target[None, :]
    there = real[:, None] & (target < channels)[None, :]
    tl.store(out + where, total.to(out.dtype.element_ty), mask=there)


@jit
def _tile(  # type: ignore[no-untyped-def]
    images, values, active, tile, places,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """Gradient `(deep, wide)` of one tile of the weight, `(wide,)` of the bias, summed over `places`."""
    rows: tl.constexpr = (height + 2 * padding - kernel) // stride + 1
    columns: tl.constexpr = (width + 2 * padding - kernel) // stride + 1
    line: tl.constexpr = kernel * kernel * channels
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
        image = place // (rows * columns)
        row = place % (rows * columns) // columns
        column = place % columns
        y = row * stride - padding
        x = column * stride - padding
        there = real[:, None] & (number < line)[None, :]
        if padding > 0:
            there &= (y[:, None] + down[None, :] >= 0) & (y[:, None] + down[None, :] < height)
            there &= (x[:, None] + across[None, :] >= 0) & (x[:, None] + across[None, :] < width)
        begin = ((image * height + y) * width + x) * channels
        window = tl.load(images + begin[:, None] + shift[None, :], mask=there, other=0.0)
        upstream = _load_upstream(
            values, active, image[:, None], row[:, None], column[:, None],
            real[:, None] & (target < outs)[None, :], target[None, :], rows, columns, outs, pool,
        )  # fmt: skip
        weight = tl.dot(tl.trans(window), upstream, weight, input_precision=precision)
        bias += tl.sum(upstream.to(tl.float32), 0)
    return weight / (pool * pool), bias / (pool * pool)


@jit
def _of_image(  # type: ignore[no-untyped-def]
    images, values, active, tile, model, image, batch, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    """`_tile` of one image of one model."""
    rows: tl.constexpr = (height + 2 * padding - kernel) // stride + 1
    columns: tl.constexpr = (width + 2 * padding - kernel) // stride + 1
    number = model * batch + image
    numbers: tl.constexpr = rows * columns * outs // (pool * pool)
    if pool > 1:
        active += number * numbers
    return _tile(
        images + (model * step + image) * (height * width * channels),
        values + number * numbers, active, tile, rows * columns,
        height, width, channels, outs, kernel, stride, padding, pool, many, wide, deep, precision,
    )  # fmt: skip


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
    images, values, active, parts, biases, weights, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
    keep: tl.constexpr,
):  # fmt: skip
    tile, image, model = tl.program_id(0), tl.program_id(1), tl.program_id(2).to(tl.int64)
    line: tl.constexpr = kernel * kernel * channels
    weight, bias = _of_image(
        images, values, active, tile, model, image, tl.num_programs(1), step,
        height, width, channels, outs, kernel, stride, padding, pool, many, wide, deep, precision,
    )  # fmt: skip
    number = model * tl.num_programs(1) + image
    if keep:
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
    images, values, active, factors, weights, batch, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    tile, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    line: tl.constexpr = kernel * kernel * channels
    total = tl.zeros((deep, wide), dtype=tl.float32)
    for image in range(batch):
        weight, _ = _of_image(
            images, values, active, tile, model, image, batch, step,
            height, width, channels, outs, kernel, stride, padding, pool, many, wide, deep, precision,
        )  # fmt: skip
        total += tl.load(factors + model * batch + image) * weight
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
    images, values, active, weights, biases, batch, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, outs: tl.constexpr,
    kernel: tl.constexpr, stride: tl.constexpr, padding: tl.constexpr, pool: tl.constexpr,
    many: tl.constexpr, wide: tl.constexpr, deep: tl.constexpr, precision: tl.constexpr,
):  # fmt: skip
    tile, model = tl.program_id(0), tl.program_id(1).to(tl.int64)
    rows: tl.constexpr = (height + 2 * padding - kernel) // stride + 1
    columns: tl.constexpr = (width + 2 * padding - kernel) // stride + 1
    line: tl.constexpr = kernel * kernel * channels
    numbers: tl.constexpr = rows * columns * outs // (pool * pool)
    if pool > 1:
        active += model * batch * numbers
    weight, bias = _tile(
        images + model * step * (height * width * channels),
        values + model * batch * numbers, active, tile, batch * rows * columns,
        height, width, channels, outs, kernel, stride, padding, pool, many, wide, deep, precision,
    )  # fmt: skip
    _store_tile(weights + model * (line * outs), weight, tile, line, outs, wide, deep)
    if tile == 0:
        target = tl.arange(0, wide)
        tl.store(biases + model * outs + target, bias, mask=target < outs)
