"""Several models of one kind in one, each trained by itself: their confidences are averaged."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from fedproof import check
from fedproof.models.model import ClippedGradient, Layout, Model


@dataclass(frozen=True, kw_only=True)
class Averaged:
    """`copies` of the model `one`, started from seeds of their own; their softmax is averaged.

    Guarantee: whatever is certified of a model is certified of this one, for it is one: parameters of all
    copies in one vector, which a group's instances and public numbers decide. A group that holds a poisoned
    unit has one vote, however many copies are behind it.

    Each copy takes the steps it would take alone, on the batches that the others see too: what `gradient`
    returns is each copy's own, not that of the loss of the mean.

    >>> from fedproof.models.networks import mlp
    >>> Averaged(one=mlp((2,), 2, hidden=(3,)), copies=2).layout.dim
    34
    """

    one: Model
    copies: int

    def __post_init__(self) -> None:
        check.count(copies=self.copies)
        starts = self._starts(0)
        if len(torch.unique(starts, dim=0)) < self.copies:
            raise ValueError(
                f"copies = {self.copies} must be 1: this model always starts from the same weights, and "
                "copies that start alike stay alike"
            )

    @property
    def layout(self) -> Layout:
        """Copy after copy, each parameter called by the number of its copy and its name."""
        return Layout(
            names=tuple(f"{copy}.{name}" for copy in range(self.copies) for name in self.one.layout.names),
            shapes=self.one.layout.shapes * self.copies,
        )

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return self.one.num_classes

    @property
    def frozen(self) -> Mapping[str, Tensor]:
        """What is not trained, which copies share."""
        found: Mapping[str, Tensor] = getattr(self.one, "frozen", {})
        return found

    @property
    def stacks(self) -> bool:
        """Whether one program computes a stack of any number of copies."""
        return self.one.stacks

    def module(self) -> nn.Module:
        """The same as an ordinary module."""
        return PlainAverage([self.one.module() for _ in range(self.copies)])

    def initial(self, seed: int) -> Tensor:
        """Initial parameters `(dim,)`: the first copy starts as `one` does."""
        return self._starts(seed).flatten()

    def to(self, device: torch.device, dtype: torch.dtype) -> "Averaged":
        """The model with its frozen tensors on `device`."""
        return replace(self, one=self.one.to(device, dtype))

    def logits(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Logarithms `(stack, batch, classes)` of the mean confidences."""
        shared = inputs if len(inputs) == 1 else inputs.repeat_interleave(self.copies, dim=0)
        found = self.one.logits(self._apart(params), shared).softmax(-1)
        return found.view(len(params), self.copies, *found.shape[1:]).mean(1).log()

    def gradient(self, params: Tensor, inputs: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
        """Gradients `(stack, dim)` of all copies, each of its own sum of cross-entropies times `factors`."""
        inputs = inputs.expand(len(params), *inputs.shape[1:])
        each = (value.repeat_interleave(self.copies, dim=0) for value in (inputs, labels, factors))
        return self.one.gradient(self._apart(params), *each).view(len(params), -1)

    def clipped_gradient(
        self, params: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor, clip_norm: float
    ) -> ClippedGradient:
        """Refused: noise would be added to each of the copies, and all of them clipped together."""
        raise ValueError(f"copies = {self.copies} must be 1 where noise is added to what is trained")

    def _starts(self, seed: int) -> Tensor:
        others = np.random.SeedSequence(seed).generate_state(self.copies - 1).tolist()
        return torch.stack([self.one.initial(start) for start in (seed, *others)])

    def _apart(self, params: Tensor) -> Tensor:
        return params.reshape(len(params) * self.copies, -1)


class PlainAverage(nn.Module):
    """Modules whose mean softmax is the answer, as one module."""

    def __init__(self, parts: list[nn.Module]) -> None:
        super().__init__()
        for index, part in enumerate(parts):
            self.add_module(str(index), part)

    def forward(self, inputs: Tensor) -> Tensor:
        """Logarithms `(batch, classes)` of the mean confidences."""
        return torch.stack([part(inputs).softmax(-1) for part in self.children()]).mean(0).log()
