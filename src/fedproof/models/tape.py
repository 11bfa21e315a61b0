"""Stacked affine maps that can leave a trace, from which clipped sums of per-instance gradients follow.

The gradient of one instance with respect to an affine map is the product of what went into the map and of the
gradient of what came out of it. Norm and clipped sum need these two only, never the gradients themselves.

Reference: Goodfellow 2015, arXiv:1510.01799v2; for maps applied at several positions (convolutions, time
steps) Li, Tramèr, Liang, Hashimoto 2022, arXiv:2110.05679v6, section 4.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Protocol

import torch
from torch import Tensor

from fedproof.models.precision import product

Weights = Mapping[str, Tensor]


class Trace(Protocol):
    """What is known of the application of one map after the backward pass: all that clipping asks."""

    def without(self, finite: Tensor) -> "Trace":
        """The same with gradients of zero for the instances that are not in `finite` (stack, batch)."""

    def squared_norms(self) -> Tensor:
        """Squared norm `(stack, batch)` of each instance's gradient with respect to weight and bias.

        In float64 and never below that of what `write` sums.
        """

    def write(self, views: Weights, factors: Tensor) -> None:
        """Write the sum over instances of gradient times factor `(stack, batch)` into the named `views`."""


@dataclass(frozen=True, kw_only=True)
class Tap:
    """One application of a map, by the name of its parameter, and what came out of it, `(stack, ...)`.

    `trace` makes the trace from the gradient of the outputs, the batch and the type to compute in.
    """

    weight: str
    outputs: Tensor
    trace: Callable[[Tensor, int, torch.dtype], Trace]


Tape = list[Tap]


def record(tape: Tape | None, weight: str, outputs: Tensor, trace: Callable[..., Trace]) -> None:
    """Leave a trace of one application of a map on the `tape`, if there is one."""
    if tape is None:
        return
    if not outputs.requires_grad:
        outputs.requires_grad_(True)
    tape.append(Tap(weight=weight, outputs=outputs, trace=trace))


def traces(logits: Tensor, gradient: Tensor, tape: Tape) -> list[Trace]:
    """One trace for each map on the tape, of a loss whose gradient at the logits is `gradient`.

    What was computed in fewer digits than the logits have is given their type: norms and clipped sums are of
    these very numbers.
    """
    names = [tap.weight for tap in tape]
    if len(set(names)) < len(names):
        raise ValueError(f"of {', '.join(names)} one is used twice: its gradient would be a sum of both uses")
    gradients = pulled_back(logits, gradient, tuple(tap.outputs for tap in tape))
    batch = logits.shape[1]
    return [tap.trace(found, batch, logits.dtype) for tap, found in zip(tape, gradients, strict=True)]


# The engine behind `torch.autograd.grad`, no part of torch's public names: a release may lack it.
_engine = getattr(torch.autograd.graph, "_engine_run_backward", None)


def pulled_back(outputs: Tensor, gradient: Tensor, inputs: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    """What `torch.autograd.grad(outputs, inputs, gradient)` gives, which costs more.

    It compares shapes by a system of computer algebra, whose import takes half a second of every process.
    """
    if _engine is None:
        return torch.autograd.grad(outputs, inputs, gradient)
    assert outputs.shape == gradient.shape
    found: tuple[Tensor, ...] = _engine(
        (outputs,), (gradient,), False, False, inputs, False, accumulate_grad=False
    )
    return found


def affine(
    weights: Weights, names: tuple[str, str], inputs: Tensor, tape: Tape | None, *, with_bias: bool = True
) -> Tensor:
    """`inputs @ weight.T + bias` of every model in the stack, as one batched matrix product.

    `names` are those of the weight `(stack, out, in)`, or `(stack, out, channels, height, width)` if the
    inputs are patches with their channels last, and of the bias `(stack, out)`. Inputs `(stack, rows, in)`
    are `(1, rows, in)` if all models see the same. Without `with_bias` the caller adds the bias later; the
    trace on the `tape` is the same.
    """
    weight, bias = weights[names[0]], weights[names[1]]
    if weight.dim() == 5:
        weight = weight.permute(0, 1, 3, 4, 2).flatten(2)
    if weight.dtype == torch.bfloat16:
        weight = weight.contiguous()  # rows of a flat vector begin anywhere, which tensor cores dislike
    inputs = inputs.expand(len(weight), -1, -1)
    if with_bias:
        outputs = torch.baddbmm(bias.unsqueeze(1), inputs, weight.transpose(1, 2))
    else:
        outputs = torch.bmm(inputs, weight.transpose(1, 2))
    record_affine(tape, names, inputs.detach(), outputs)
    return outputs


def record_affine(tape: Tape | None, names: tuple[str, str], inputs: Tensor, outputs: Tensor) -> None:
    """Leave a trace of an affine map of `inputs` (stack, rows, in) whose gradient is that of `outputs`."""
    record(tape, names[0], outputs, partial(_affine_trace, names, inputs))


def layer(weights: Weights, name: str, inputs: Tensor, tape: Tape | None) -> Tensor:
    """`affine` of the module called `name`."""
    return affine(weights, (f"{name}.weight", f"{name}.bias"), inputs, tape)


@dataclass(frozen=True, kw_only=True)
class AffineTrace:
    """An affine map, applied at one or several positions, with the gradients of the loss by its outputs.

    Inputs are `(stack, batch, positions, in)`; norms and sums are computed in `dtype`.
    """

    names: tuple[str, str]
    inputs: Tensor
    gradients: Tensor
    dtype: torch.dtype

    @cached_property
    def products(self) -> Tensor | None:
        """Each instance's gradient of the weight, `(stack, batch, out, in)`.

        None if that would be larger than what it is made of, in float64 as norms of pairs need it.
        """
        positions, width = self.inputs.shape[2:]
        height = self.gradients.shape[3]
        if width * height > 2 * positions * (width + height):
            return None
        found = product(self.gradients.flatten(0, 1).mT, self.inputs.flatten(0, 1), self.dtype)
        return found.view(*self.inputs.shape[:2], height, width)

    @cached_property
    def sums(self) -> Tensor:
        """Each instance's gradient of the bias, `(stack, batch, out)`."""
        return self.gradients.sum(2, dtype=self.dtype)

    def without(self, finite: Tensor) -> "AffineTrace":
        """The same with gradients of zero for the instances that are not in `finite` (stack, batch)."""
        keep = finite[:, :, None, None]
        inputs, gradients = (torch.where(keep, value, 0) for value in (self.inputs, self.gradients))
        return replace(self, inputs=inputs, gradients=gradients)

    def squared_norms(self) -> Tensor:
        """Squared norm `(stack, batch)` of each instance's gradient with respect to weight and bias."""
        bias = self.sums.double().square().sum(2)
        if self.products is not None:
            found: Tensor = torch.linalg.vector_norm(self.products, dim=(2, 3), dtype=torch.float64).square()
            return found + bias
        a, g = self.inputs.double(), self.gradients.double()
        if a.shape[2] == 1:
            return (g.square().sum((2, 3))) * (a.square().sum((2, 3)) + 1)
        return _paired_norms(a, g, self.dtype).square() + bias

    def write(self, views: Weights, factors: Tensor) -> None:
        """Write the sum over instances of gradient times factor `(stack, batch)` into the named `views`.

        Over several positions it is taken in float64: theirs may be large, and cancel, where the instance's
        gradient is small, and in fewer digits they would take those of other instances along. With W
        instances and P positions it errs by WP 2⁻⁵³ of all their lengths, of which `_paired_norms` lets each
        instance have at most 2²⁸ / P clip norms, or 2²²: by less than W² 2⁻²⁵ clip norms together.
        """
        if self.products is not None:
            weight = factors.unsqueeze(1) @ self.products.flatten(2)
        else:
            # Below the smallest normal number a product may be rounded up to twice itself, which huge inputs
            # make large: there it counts as zero.
            kind = self.dtype if self.inputs.shape[2] == 1 else torch.float64
            scaled = (self.gradients.to(kind) * factors[:, :, None, None].to(kind)).flatten(1, 2)
            scaled = torch.nn.functional.hardshrink(scaled, torch.finfo(kind).tiny)
            weight = scaled.mT @ self.inputs.to(kind).flatten(1, 2)
        target = views[self.names[0]]
        if target.dim() == 5:
            target = target.permute(0, 1, 3, 4, 2)
        target.copy_(weight.reshape(target.shape))
        views[self.names[1]].copy_((factors.unsqueeze(1) @ self.sums).squeeze(1))


def _paired_norms(a: Tensor, g: Tensor, dtype: torch.dtype) -> Tensor:
    """At least the norm `(stack, batch)` of Σ g aᵀ over positions, without computing that matrix.

    ‖Σ g aᵀ‖² = Σ (a·a')(g·g') over pairs of positions: cheaper than the matrix if positions are few. The sum
    may cancel, and then consists of what was rounded: of float64 here, and in `dtype` before. Both are
    bounded by Σ |g||a| and added; of which, over very many positions, so much that `AffineTrace.write` errs
    by as little.
    """
    pairs = [rows.flatten(0, 1) @ rows.flatten(0, 1).mT for rows in (a, g)]
    squared = (pairs[0] * pairs[1]).sum((1, 2)).view(a.shape[:2])
    lengths = (pairs[0].diagonal(dim1=1, dim2=2) * pairs[1].diagonal(dim1=1, dim2=2)).sqrt().sum(1)
    lengths = lengths.view(a.shape[:2])
    terms = a.shape[3] + g.shape[3] + a.shape[2] ** 2
    squared = squared.clamp(min=0) + terms * torch.finfo(torch.float64).eps * lengths.square()
    least: Tensor = squared.sqrt() + max(2, a.shape[2] / 32) * torch.finfo(dtype).eps * lengths
    return least


def _affine_trace(
    names: tuple[str, str], inputs: Tensor, gradient: Tensor, batch: int, dtype: torch.dtype
) -> AffineTrace:
    """From rows `(stack, batch * positions, ...)`, instance after instance."""
    a, g = (rows.reshape(rows.shape[0], batch, -1, rows.shape[2]) for rows in (inputs, gradient))
    return AffineTrace(names=names, inputs=a, gradients=g, dtype=dtype)
