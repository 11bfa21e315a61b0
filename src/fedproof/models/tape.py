"""Stacked affine maps that can leave a trace, from which clipped sums of per-instance gradients follow.

The gradient of one instance with respect to an affine map is the product of what went into the map and of the
gradient of what came out of it. Norm and clipped sum need these two only, never the gradients themselves.

Reference: Goodfellow 2015, arXiv:1510.01799v2; for maps applied at several positions (convolutions, time
steps) Li, Tramèr, Liang, Hashimoto 2022, arXiv:2110.05679v6, section 4.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from itertools import groupby

import torch
from torch import Tensor

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
        inputs: `(stack, rows, in)`, or `(1, rows, in)` if all models see the same.
        tape: where a trace is left, None if no per-instance gradients are wanted.
        with_bias: False if the caller adds the bias later; the trace is the same.
    """
    weight, bias = weights[names[0]], weights[names[1]]
    if weight.dim() == 5:
        weight = weight.permute(0, 1, 3, 4, 2).flatten(2)
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
    """

    weight: str
    bias: str
    inputs: Tensor
    gradients: Tensor
    products: Tensor | None = None


def traces(logits: Tensor, gradient: Tensor, tape: Tape) -> list[Trace]:
    """One trace for each affine map on the tape, of a loss whose gradient at the logits is `gradient`."""
    gradients = torch.autograd.grad(logits, [tap.outputs for tap in tape], gradient)
    batch = logits.shape[1]
    rows = sorted(zip(tape, gradients, strict=True), key=lambda row: row[0].weight)
    result = []
    for weight, group in groupby(rows, key=lambda row: row[0].weight):
        uses = [(tap, _by_instance(tap.inputs, batch), _by_instance(grad, batch)) for tap, grad in group]
        inputs = torch.cat([use[1] for use in uses], dim=2) if len(uses) > 1 else uses[0][1]
        outputs = torch.cat([use[2] for use in uses], dim=2) if len(uses) > 1 else uses[0][2]
        result.append(Trace(weight=weight, bias=uses[0][0].bias, inputs=inputs, gradients=outputs))
    return result


def _by_instance(rows: Tensor, batch: int) -> Tensor:
    return rows.reshape(rows.shape[0], batch, -1, rows.shape[2])


def with_products(trace: Trace) -> Trace:
    """The trace with each instance's gradient of the weight, where having it costs less than doing without.

    For a map at many positions the gradient is smaller than what it is made of. Clipping then bounds these
    very numbers, so they may have been multiplied with few digits.
    """
    a, g = trace.inputs, trace.gradients
    positions, width, height = a.shape[2], a.shape[3], g.shape[3]
    if width * height > positions * (width + height):
        return trace
    products = g.flatten(0, 1).mT @ a.flatten(0, 1)
    return replace(trace, products=products.view(*a.shape[:2], *products.shape[1:]))


def squared_norms(trace: Trace) -> Tensor:
    """Squared norm `(stack, batch)` of each instance's gradient with respect to the map's weight and bias."""
    a, g = trace.inputs, trace.gradients
    if trace.products is not None:
        weight: Tensor = torch.linalg.vector_norm(trace.products, dim=(2, 3)).square()
        return weight + g.sum(2).square().sum(2)
    if a.shape[2] == 1:
        return (g.square().sum((2, 3))) * (a.square().sum((2, 3)) + 1)
    # ‖Σ g aᵀ‖² = Σ (a·a')(g·g') over pairs of positions: cheaper than the gradient if positions are few.
    flat_a, flat_g = a.flatten(0, 1), g.flatten(0, 1)
    weight = ((flat_a @ flat_a.mT) * (flat_g @ flat_g.mT)).sum((1, 2)).clamp(min=0)
    return weight.reshape(a.shape[:2]) + g.sum(2).square().sum(2)


def weighted_gradients(trace: Trace, factors: Tensor) -> tuple[Tensor, Tensor]:
    """Sum over instances of gradient times factor `(stack, batch)`: of weight `(stack, out, in)` and bias."""
    if trace.products is not None:
        weight = factors.unsqueeze(1) @ trace.products.flatten(2)
        bias = factors.unsqueeze(1) @ trace.gradients.sum(2)
        return weight.view(len(factors), *trace.products.shape[2:]), bias.squeeze(1)
    scaled = (trace.gradients * factors[:, :, None, None]).flatten(1, 2)
    return scaled.mT @ trace.inputs.flatten(1, 2), scaled.sum(1)


def write_gradients(views: Weights, trace: Trace, factors: Tensor) -> None:
    """Write `weighted_gradients` into the named `views` of a flat gradient, in place."""
    weight, bias = weighted_gradients(trace, factors)
    target = views[trace.weight]
    if target.dim() == 5:
        target = target.permute(0, 1, 3, 4, 2)
    target.copy_(weight.view(target.shape))
    views[trace.bias].copy_(bias)
