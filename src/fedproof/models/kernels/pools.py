"""Pools with bias and ReLU, and their gradients.

Each kernel moves every number once; torch's own operations make several passes and took half of the training
time of the MNIST network on an H200.
"""

from __future__ import annotations

import torch
from torch import Tensor

from fedproof.models.kernels.launch import jit, tl, triton

_BLOCK = 1024


def max_pool_relu(images: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
    """ReLU of the maximum over 2 by 2 windows that move by one, and which of the four it was (4: none).

    `bias` (stack, channels) is added first; equally many neighbouring images belong to each of the stack.
    """
    count, height, width, channels = images.shape
    out = images.new_empty((count, height - 1, width - 1, channels))
    choice = torch.empty_like(out, dtype=torch.uint8)
    grid = (count, triton.cdiv(out[0].numel(), _BLOCK))
    each, step = count // len(bias), bias.stride(0)
    _max_pool_relu[grid](images, bias, out, choice, each, step, height, width, channels, _BLOCK)
    return out, choice


def max_pool_relu_backward(gradient: Tensor, choice: Tensor) -> Tensor:
    """Gradient of `max_pool_relu` with respect to its images."""
    count, rows, columns, channels = gradient.shape
    out = gradient.new_empty((count, rows + 1, columns + 1, channels))
    grid = (count, triton.cdiv(out[0].numel(), _BLOCK))
    _max_pool_relu_backward[grid](gradient, choice, out, rows + 1, columns + 1, channels, _BLOCK)
    return out


def average_pool_relu(images: Tensor, bias: Tensor) -> Tensor:
    """Mean of the ReLU over disjoint 2 by 2 windows, after `bias` (stack, channels) is added."""
    count, height, width, channels = images.shape
    out = images.new_empty((count, height // 2, width // 2, channels))
    grid = (count, triton.cdiv(out[0].numel(), _BLOCK))
    each, step = count // len(bias), bias.stride(0)
    _average_pool_relu[grid](images, bias, out, each, step, height, width, channels, _BLOCK)
    return out


def average_pool_relu_backward(gradient: Tensor, images: Tensor, bias: Tensor) -> Tensor:
    """Gradient of `average_pool_relu` with respect to its `images`."""
    count, height, width, channels = images.shape
    out = torch.empty_like(images)
    grid = (count, triton.cdiv(out[0].numel(), _BLOCK))
    each, step = count // len(bias), bias.stride(0)
    _average_pool_relu_backward[grid](
        gradient, images, bias, out, each, step, height, width, channels, _BLOCK
    )
    return out


@jit
def _max_pool_relu(  # type: ignore[no-untyped-def]
    images, bias, out, choice, each_model, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    each: tl.constexpr = (height - 1) * (width - 1) * channels
    inside = place < each
    line: tl.constexpr = (width - 1) * channels
    source = images + image * (height * width * channels) + place // line * (width * channels) + place % line
    best = tl.load(source, mask=inside, other=0.0)
    number = tl.zeros((block,), dtype=tl.uint8)
    for other in tl.static_range(1, 4):
        value = tl.load(
            source + (other // 2) * width * channels + (other % 2) * channels, mask=inside, other=0.0
        )
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        number = tl.where(better, other, number).to(tl.uint8)
    best += tl.load(bias + image // each_model * step + place % channels, mask=inside, other=0.0)
    silent = best <= 0
    tl.store(out + image * each + place, tl.where(silent, 0.0, best), mask=inside)
    tl.store(choice + image * each + place, tl.where(silent, 4, number).to(tl.uint8), mask=inside)


@jit
def _max_pool_relu_backward(  # type: ignore[no-untyped-def]
    gradient, choice, out,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    inside = place < height * width * channels
    channel = place % channels
    x = place // channels % width
    y = place // (channels * width)
    base = image * ((height - 1) * (width - 1) * channels)
    total = tl.zeros((block,), dtype=gradient.dtype.element_ty)
    for number in tl.static_range(4):
        row = y - number // 2
        column = x - number % 2
        there = inside & (row >= 0) & (row < height - 1) & (column >= 0) & (column < width - 1)
        where = base + (row * (width - 1) + column) * channels + channel
        chosen = tl.load(choice + where, mask=there, other=4) == number
        total += tl.load(gradient + where, mask=there & chosen, other=0.0)
    tl.store(out + image * (height * width * channels) + place, total, mask=inside)


@jit
def _average_pool_relu(  # type: ignore[no-untyped-def]
    images, bias, out, each_model, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    each: tl.constexpr = (height // 2) * (width // 2) * channels
    inside = place < each
    channel = place % channels
    column = place // channels % (width // 2)
    row = place // (channels * (width // 2))
    source = (
        images + image * (height * width * channels) + (2 * row * width + 2 * column) * channels + channel
    )
    total = tl.zeros((block,), dtype=images.dtype.element_ty)
    shift = tl.load(bias + image // each_model * step + channel, mask=inside, other=0.0)
    for number in tl.static_range(4):
        value = tl.load(source + ((number // 2) * width + number % 2) * channels, mask=inside, other=0.0)
        value += shift
        total += tl.where(value <= 0, 0.0, value)
    tl.store(out + image * each + place, total / 4, mask=inside)


@jit
def _average_pool_relu_backward(  # type: ignore[no-untyped-def]
    gradient, images, bias, out, each_model, step,
    height: tl.constexpr, width: tl.constexpr, channels: tl.constexpr, block: tl.constexpr,
):  # fmt: skip
    image = tl.program_id(0).to(tl.int64)
    place = tl.program_id(1) * block + tl.arange(0, block)
    each: tl.constexpr = height * width * channels
    inside = place < each
    channel = place % channels
    x = place // channels % width
    y = place // (channels * width)
    where = image * ((height // 2) * (width // 2) * channels)
    where += (y // 2 * (width // 2) + x // 2) * channels + channel
    value = tl.load(images + image * each + place, mask=inside, other=0.0)
    value += tl.load(bias + image // each_model * step + channel, mask=inside, other=0.0)
    upstream = tl.load(gradient + where, mask=inside, other=0.0)
    tl.store(out + image * each + place, tl.where(value > 0, upstream / 4, 0.0), mask=inside)
