"""A model as the engine sees it: parameters in one flat vector, many models as a stack."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import accumulate
from math import prod
from typing import ClassVar, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from fedproof.arrays import layer_sizes
from fedproof.models.precision import clip_scales, seeded, training_dtype
from fedproof.models.tape import Tape, Weights, pulled_back, traces


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Names and shapes of a model's parameters, in the order in which they are flattened.

    A layer is one module that owns parameters, so its weight and bias are clipped together.
    """

    names: tuple[str, ...]
    shapes: tuple[tuple[int, ...], ...]

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Number of entries of each parameter."""
        return tuple(prod(shape) for shape in self.shapes)

    @cached_property
    def dim(self) -> int:
        """Length of the flat vector."""
        return sum(self.sizes)

    @cached_property
    def slices(self) -> dict[str, slice]:
        """Where each parameter lies in the flat vector."""
        ends = accumulate(self.sizes)
        rows = zip(self.names, self.sizes, ends, strict=True)
        return {name: slice(end - size, end) for name, size, end in rows}

    @cached_property
    def layer_sizes(self) -> tuple[int, ...]:
        """Number of entries of each layer; a layer's parameters are neighbours."""
        return layer_sizes(self.names, self.sizes)

    @property
    def num_layers(self) -> int:
        """Number of layers."""
        return len(self.layer_sizes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Named parameters `(stack, *shape)` that share memory with the flat `(stack, dim)`."""
        # One split, not many slices: its backward is one concatenation instead of a sum of padded tensors.
        parts = torch.split(flat, list(self.sizes), dim=1)
        return {
            name: part.view(len(flat), *shape)
            for name, shape, part in zip(self.names, self.shapes, parts, strict=True)
        }

    def flatten(self, named: Mapping[str, Tensor]) -> Tensor:
        """Flat `(dim,)` vector of unstacked named parameters."""
        return torch.cat([named[name].detach().reshape(-1) for name in self.names])


class Model(Protocol):
    """A classifier trained as a stack: parameters `(stack, dim)`, one row for each model.

    `inputs` are `(stack, batch, ...)`, or `(1, batch, ...)` if all models of the stack see the same.
    """

    @property
    def layout(self) -> Layout:
        """How a row of parameters is laid out."""

    @property
    def num_classes(self) -> int:
        """Number of classes."""

    @property
    def stacks(self) -> bool:
        """Whether one program of its own computes a stack; others are stacked by `vmap`."""

    def module(self) -> nn.Module:
        """The same model as an ordinary module, freshly initialised from torch's global state."""

    def initial(self, seed: int) -> Tensor:
        """Initial parameters `(dim,)`, the same for all replicas."""

    def to(self, device: torch.device, dtype: torch.dtype) -> "Model":
        """The model with its frozen tensors on `device`."""

    def logits(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Logits `(stack, batch, classes)`."""

    def gradient(self, params: Tensor, inputs: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
        """Gradient `(stack, dim)` of each model's sum of cross-entropies times `factors` (stack, batch)."""

    def clipped_gradient(
        self, params: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor, clip_norm: float
    ) -> "ClippedGradient":
        """Sum over the instances with `mask` of their gradients, each clipped to `clip_norm`."""


@dataclass(frozen=True, kw_only=True)
class ClippedGradient:
    """A sum of clipped per-instance gradients.

    Attributes:
        total: `(stack, dim)`.
        norms: `(stack, batch)`, before clipping; 0 where an instance is masked or its gradient not finite.
        finite: `(stack, batch)`, False where a gradient was not finite and counted as zero.
    """

    total: Tensor
    norms: Tensor
    finite: Tensor


@dataclass(frozen=True, kw_only=True)
class StackedModel:
    """A model whose forward pass is a function of stacked weights.

    Attributes:
        factory: makes the equivalent ordinary module.
        forward: `(weights, inputs, tape) -> logits`; every map with parameters leaves a trace on the tape.
        start: parameters to start from, `(dim,)`; None draws those of a fresh module.
        drawn: parameters that are drawn anew although there is a `start`.
        frozen: tensors that are not trained, given to `forward` among the weights.
        apart: whether a CPU takes one model after the other: `forward` then calls an operation of torch that
            is fused for one model, and what it keeps for one gradient is used again for the next.
    """

    factory: Callable[[], nn.Module]
    forward: Callable[[Weights, Tensor, Tape | None], Tensor]
    num_classes: int
    layout: Layout
    start: Tensor | None = None
    drawn: tuple[str, ...] = ()
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    apart: bool = False
    stacks: ClassVar[bool] = True

    def module(self) -> nn.Module:
        """The same model as an ordinary module."""
        return self.factory()

    def initial(self, seed: int) -> Tensor:
        """Initial parameters `(dim,)`: `start`, or those of a module made after `torch.manual_seed(seed)`."""
        if self.start is not None and not self.drawn:
            return self.start
        fresh = fresh_parameters(self.factory, self.layout, seed)
        if self.start is None:
            return fresh
        whole = self.start.clone()
        for name in self.drawn:
            whole[self.layout.slices[name]] = fresh[self.layout.slices[name]]
        return whole

    def to(self, device: torch.device, dtype: torch.dtype) -> "StackedModel":
        """The model with its frozen tensors on `device`."""
        return replace(self, frozen={key: value.to(device, dtype) for key, value in self.frozen.items()})

    def logits(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Logits `(stack, batch, classes)`."""
        return self._run(params, inputs, None, params.dtype)

    def gradient(self, params: Tensor, inputs: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
        """Gradient `(stack, dim)` of each model's sum of cross-entropies times `factors`."""
        if self.apart and len(params) > 1 and not params.is_cuda:
            inputs = inputs.expand(len(params), *inputs.shape[1:])
            rows = zip(*(torch.split(value, 1) for value in (params, inputs, labels, factors)), strict=True)
            return torch.cat([self.gradient(*row) for row in rows])
        leaf = params.detach().requires_grad_(True)
        with torch.enable_grad():
            short = self._run(leaf, inputs, None, training_dtype(params))
            logits = short.to(params.dtype)
            return pulled_back(logits, loss_gradient(logits, labels, factors), (leaf,))[0]

    def clipped_gradient(
        self, params: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor, clip_norm: float
    ) -> ClippedGradient:
        """Sum of clipped per-instance gradients, from the traces that the maps leave."""
        tape: Tape = []
        with torch.enable_grad():
            logits = self._run(params.detach(), inputs, tape, training_dtype(params)).to(params.dtype)
            found = traces(logits, loss_gradient(logits, labels, mask), tape)
        norms = torch.stack([trace.squared_norms() for trace in found]).sum(0).sqrt()
        factors, norms, finite = instance_factors(norms, clip_norm, params.dtype)
        if not bool(finite.all()):
            found = [trace.without(finite) for trace in found]
        total = torch.empty_like(params)
        views = self.layout.views(total)
        for trace in found:
            trace.write(views, factors)
        return ClippedGradient(total=total, norms=norms, finite=finite)

    def _run(self, params: Tensor, inputs: Tensor, tape: Tape | None, dtype: torch.dtype) -> Tensor:
        frozen = {name: value.to(dtype) for name, value in self.frozen.items()}
        given = inputs.to(dtype) if inputs.is_floating_point() else inputs
        return self.forward({**self.layout.views(params.to(dtype)), **frozen}, given, tape)


def layout_of(parameters: Iterable[tuple[str, Tensor]]) -> Layout:
    """Layout of named parameters.

    >>> layout_of(nn.Linear(3, 2).named_parameters()).dim
    8
    """
    pairs = [(name, tuple(value.shape)) for name, value in parameters]
    return Layout(names=tuple(name for name, _ in pairs), shapes=tuple(shape for _, shape in pairs))


def load(module: nn.Module, layout: Layout, flat: Tensor) -> nn.Module:
    """`module` with its parameters overwritten by the flat `(dim,)` vector."""
    named = {name: value[0] for name, value in layout.views(flat.reshape(1, -1)).items()}
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name in named:
                parameter.copy_(named[name])
    return module


def stacked(
    factory: Callable[[], nn.Module],
    forward: Callable[[Weights, Tensor, Tape | None], Tensor],
    num_classes: int,
    frozen: Mapping[str, Tensor] | None = None,
) -> StackedModel:
    """A `StackedModel` with the layout of the modules that `factory` makes."""
    with torch.device("meta"):
        layout = layout_of(factory().named_parameters())
    return StackedModel(
        factory=factory, forward=forward, num_classes=num_classes, layout=layout, frozen=frozen or {}
    )


def fresh_parameters(factory: Callable[[], nn.Module], layout: Layout, seed: int) -> Tensor:
    """Parameters `(dim,)` of a module made by `factory` under a fixed seed, the global state left alone."""
    with seeded(seed):
        return layout.flatten(dict(factory().named_parameters()))


def loss_gradient(logits: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
    """Gradient of the sum of cross-entropies times `factors` (stack, batch) with respect to the logits."""
    gradient = logits.detach().softmax(-1)
    true = labels.unsqueeze(-1)
    gradient.scatter_(-1, true, gradient.gather(-1, true) - 1)
    return gradient.mul_(factors.unsqueeze(-1))


def instance_factors(norms: Tensor, clip_norm: float, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Factors that clip gradients of float64 `norms`; the norms, 0 where not finite; which were finite."""
    finite = norms.isfinite()
    norms = torch.where(finite, norms, 0)
    factors = clip_scales(norms, clip_norm, dtype)
    return torch.where(finite, factors, 0), norms.to(dtype), finite


def as_inputs(features: NDArray[np.generic], device: torch.device, dtype: torch.dtype) -> Tensor:
    """`features` on `device`: integers as token ids, anything else as `dtype`."""
    tensor = host_tensor(features).to(device)
    return tensor.to(dtype if tensor.is_floating_point() else torch.int64)


def host_tensor(array: NDArray[np.generic]) -> Tensor:
    """`array` as a tensor, copied only if torch could not share its memory."""
    # Arrays from a file mapping or from Ray's store are read-only, of which torch warns.
    return torch.from_numpy(np.require(array, requirements=["C", "W"]))
