"""Stacked affine maps that can leave a trace, from which clipped sums of per-instance gradients follow.

The gradient of one instance with respect to an affine map is the product of what went into the map and of the
gradient of what came out of it. Norm and clipped sum need these two only, never the gradients themselves.

Reference: Goodfellow 2015, arXiv:1510.01799v2; for maps applied at several positions (convolutions, time
steps) Li, Tramèr, Liang, Hashimoto 2022, arXiv:2110.05679v6, section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import groupby

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproof.models.precision import product

Weights = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class Tap:
    """One application of an affine map, rows being instance-major: `rows = batch * positions`.

    Attributes:
        weight, bias: names of the map's parameters.
        inputs: `(stack, rows, in)`.
        outputs: `(stack, rows, out)`.
    """

    weight: str
    bias: str
    inputs: Tensor
    outputs: Tensor


Tape = list[Tap]


def affine(
    weights: Weights, names: tuple[str, str], inputs: Tensor, tape: Tape | None, *, with_bias: bool = True
) -> Tensor:
    """`inputs @ weight.T + bias` of every model in the stack, as one batched matrix product.

    Args:
        weights: named parameters `(stack, ...)`.
        names: of the weight `(stack, out, in)`, or `(stack, out, channels, height, width)` if the inputs are
            patches with their channels last; and of the bias `(stack, out)`.
        inputs: `(stack, rows, in)`, or `(1, rows, in)` if all models see the same; zeros may stand behind.
        tape: where a trace is left, None if no per-instance gradients are wanted.
        with_bias: False if the caller adds the bias later; the trace is the same.
    """
    weight, bias = weights[names[0]], weights[names[1]]
    if weight.dim() == 5:
        weight = weight.permute(0, 1, 3, 4, 2).flatten(2)
    if inputs.shape[2] > weight.shape[2]:
        weight = F.pad(weight, (0, inputs.shape[2] - weight.shape[2]))
    if weight.dtype == torch.bfloat16:
        weight = weight.contiguous()  # rows of a flat vector begin anywhere, which tensor cores dislike
    inputs = inputs.expand(len(weight), -1, -1)
    if with_bias:
        outputs = torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))
    else:
        outputs = torch.bmm(inputs, weight.transpose(1, 2))
    if tape is not None:
        if not outputs.requires_grad:
            outputs.requires_grad_(True)
        tape.append(Tap(weight=names[0], bias=names[1], inputs=inputs.detach(), outputs=outputs))
    return outputs


def layer(weights: Weights, name: str, inputs: Tensor, tape: Tape | None) -> Tensor:
    """`affine` of the module called `name`."""
    return affine(weights, (f"{name}.weight", f"{name}.bias"), inputs, tape)


@dataclass(frozen=True, kw_only=True)
class Trace:
    """All applications of one affine map, with the gradients of its outputs.

    Attributes:
        weight, bias: names of the map's parameters.
        inputs: `(stack, batch, positions, in)`.
        gradients: `(stack, batch, positions, out)`, of the loss with respect to the outputs.
        products: `(stack, batch, out, in)`, each instance's gradient of the weight; None: not computed.
        sums: `(stack, batch, out)`, each instance's gradient of the bias.
    """

    weight: str
    bias: str
    inputs: Tensor
    gradients: Tensor
    sums: Tensor
    products: Tensor | None = None


def traces(logits: Tensor, gradient: Tensor, tape: Tape) -> list[Trace]:
    """One trace for each affine map on the tape, of a loss whose gradient at the logits is `gradient`.

    What was computed in fewer digits than the logits have is given their type: norms and clipped sums are of
    these very numbers.
    """
    gradients = torch.autograd.grad(logits, [tap.outputs for tap in tape], gradient)
    batch = logits.shape[1]
    rows = sorted(zip(tape, gradients, strict=True), key=lambda row: row[0].weight)
    result = []
    for weight, group in groupby(rows, key=lambda row: row[0].weight):
        uses = [(tap, _by_instance(tap.inputs, batch), _by_instance(grad, batch)) for tap, grad in group]
        inputs = torch.cat([use[1] for use in uses], dim=2) if len(uses) > 1 else uses[0][1]
        outputs = torch.cat([use[2] for use in uses], dim=2) if len(uses) > 1 else uses[0][2]
        result.append(_trace((weight, uses[0][0].bias), inputs, outputs, logits.dtype))
    return result


def _by_instance(rows: Tensor, batch: int) -> Tensor:
    return rows.reshape(rows.shape[0], batch, -1, rows.shape[2])


def _trace(names: tuple[str, str], a: Tensor, g: Tensor, dtype: torch.dtype) -> Trace:
    """The trace of inputs and gradients, with products where these are smaller than what they are made of."""
    positions, width, height = a.shape[2], a.shape[3], g.shape[3]
    sums = g.sum(2, dtype=dtype)
    if width * height > positions * (width + height):
        inputs, gradients = a.to(dtype), g.to(dtype)
        return Trace(weight=names[0], bias=names[1], inputs=inputs, gradients=gradients, sums=sums)
    products = product(g.flatten(0, 1).mT, a.flatten(0, 1), dtype).view(*a.shape[:2], height, width)
    return Trace(weight=names[0], bias=names[1], inputs=a, gradients=g, sums=sums, products=products)


def squared_norms(trace: Trace) -> Tensor:
    """Squared norm `(stack, batch)` of each instance's gradient with respect to the map's weight and bias."""
    a, g = trace.inputs, trace.gradients
    bias = trace.sums.square().sum(2)
    if trace.products is not None:
        weight: Tensor = torch.linalg.vector_norm(trace.products, dim=(2, 3)).square()
        return weight + bias
    if a.shape[2] == 1:
        return (g.square().sum((2, 3))) * (a.square().sum((2, 3)) + 1)
    # ‖Σ g aᵀ‖² = Σ (a·a')(g·g') over pairs of positions: cheaper than the gradient if positions are few.
    flat_a, flat_g = a.flatten(0, 1), g.flatten(0, 1)
    weight = ((flat_a @ flat_a.mT) * (flat_g @ flat_g.mT)).sum((1, 2)).clamp(min=0)
    return weight.reshape(a.shape[:2]) + bias


def weighted_gradients(trace: Trace, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over instances of gradient times factor `(stack, batch)`: of weight `(stack, out, in)` and bias."""
    bias = (factors.unsqueeze(1) @ trace.sums).squeeze(1)
    if trace.products is not None:
        weight = factors.unsqueeze(1) @ trace.products.flatten(2)
        return weight.view(len(factors), *trace.products.shape[2:]), bias
    scaled = (trace.gradients * factors[:, :, None, None]).flatten(1, 2)
    return scaled.mT @ trace.inputs.flatten(1, 2), bias


def write_gradients(views: Weights, trace: Trace, factors: Tensor) -> None:
    """Write `weighted_gradients` into the named `views` of a flat gradient, in place."""
    weight, bias = weighted_gradients(trace, factors)
    target = views[trace.weight]
    if target.dim() == 5:
        target = target.permute(0, 1, 3, 4, 2)
    # Behind the weights stand zeros where the inputs were padded.
    target.copy_(weight[:, :, : target[0, 0].numel()].reshape(target.shape))
    views[trace.bias].copy_(bias)
