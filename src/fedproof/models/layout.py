"""How the parameters of a model lie in one flat vector, and which of them form a layer."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, groupby
from math import prod

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Names and shapes of a model's parameters, in the order in which they are flattened.

    A layer is one module that owns parameters, so its weight and bias are clipped together.

    Attributes:
        names: full parameter names, `module.weight`.
        shapes: shape of each parameter.
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
        rows = zip(self.names, self.sizes, strict=True)
        owners = groupby(rows, key=lambda row: row[0].rpartition(".")[0])
        return tuple(sum(size for _, size in group) for _, group in owners)

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
