"""The model a user brings: any `nn.Module` that `torch.func` can stack."""

from collections.abc import Callable, Mapping
from copy import deepcopy
from dataclasses import dataclass, field, replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedproof.models.layout import Layout, layout_of
from fedproof.models.model import ClippedGradient, fresh_parameters, instance_factors

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleModel:
    """An ordinary module, stacked by `vmap` over `functional_call`.

    Attributes:
        original: the module; its parameters are where all replicas start unless there is a factory.
        factory: makes a fresh module, so that the start follows the seed of the task.
        num_classes: number of classes.
        layout: of the parameters that are trained.
        frozen: buffers, and parameters with `requires_grad = False`.
    """

    original: nn.Module
    num_classes: int
    layout: Layout
    factory: Callable[[], nn.Module] | None = None
    frozen: Mapping[str, Tensor] = field(default_factory=dict)

    def module(self) -> nn.Module:
        """A copy of the module."""
        return deepcopy(self.original)

    def initial(self, seed: int) -> Tensor:
        """The module's own parameters `(dim,)`, or those of a fresh one made under `seed`."""
        if self.factory is not None:
            return fresh_parameters(self.factory, self.layout, seed)
        return self.layout.flatten(dict(self.original.named_parameters()))

    def to(self, device: torch.device, dtype: torch.dtype) -> "ModuleModel":
        """The model with its frozen tensors on `device`, floating ones as `dtype`."""
        moved = {
            name: value.to(device, dtype if value.is_floating_point() else None)
            for name, value in self.frozen.items()
        }
        return replace(self, frozen=moved)

    def logits(self, params: Tensor, inputs: Tensor) -> Tensor:
        """Logits `(stack, batch, classes)`."""
        axis = 0 if len(inputs) == len(params) else None
        return vmap(self._call, in_dims=(0, axis))(
            self.layout.views(params), inputs if axis == 0 else inputs[0]
        )

    def gradient(self, params: Tensor, inputs: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
        """Gradient `(stack, dim)` of each model's sum of cross-entropies times `factors`."""

        def loss(weights: dict[str, Tensor], batch: Tensor, targets: Tensor, factor: Tensor) -> Tensor:
            return (F.cross_entropy(self._call(weights, batch), targets, reduction="none") * factor).sum()

        return self._flat(vmap(grad(loss))(self.layout.views(params), inputs, labels, factors), 1)

    def clipped_gradient(
        self, params: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor, clip_norm: float
    ) -> ClippedGradient:
        """Sum of clipped per-instance gradients, each of which is computed and kept."""

        def loss(weights: dict[str, Tensor], instance: Tensor, target: Tensor) -> Tensor:
            return F.cross_entropy(self._call(weights, instance.unsqueeze(0)), target.unsqueeze(0))

        each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(self.layout.views(params), inputs, labels)
        rows = self._flat(each, 2)
        norms = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64) * mask
        factors, norms, finite = instance_factors(norms, clip_norm, params.dtype)
        kept = torch.where(finite.unsqueeze(2), rows, 0)
        total = torch.bmm((factors * mask).unsqueeze(1), kept).squeeze(1)
        return ClippedGradient(total=total, norms=norms, finite=finite)

    def _call(self, weights: dict[str, Tensor], inputs: Tensor) -> Tensor:
        logits: Tensor = functional_call(self.original, {**weights, **self.frozen}, (inputs,))
        return logits

    def _flat(self, named: dict[str, Tensor], axes: int) -> Tensor:
        return torch.cat([named[name].flatten(axes) for name in self.layout.names], dim=axes)


def from_module(module: nn.Module, num_classes: int) -> ModuleModel:
    """`module` as a model that stacks; it takes `(batch, ...)` and returns logits `(batch, num_classes)`.

    >>> from_module(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 10).layout.dim
    650
    """
    for name, part in module.named_modules():
        _check_stackable(name, part)
    trained = [(name, value) for name, value in module.named_parameters() if value.requires_grad]
    if not trained:
        raise ValueError("the module has no parameter with requires_grad = True: nothing to train")
    still = {name: value.detach() for name, value in module.named_parameters() if not value.requires_grad}
    return ModuleModel(
        original=module,
        num_classes=num_classes,
        layout=layout_of(trained),
        frozen={**still, **dict(module.named_buffers())},
    )


def _check_stackable(name: str, part: nn.Module) -> None:
    where = f"{name or 'the module'} ({type(part).__name__})"
    if isinstance(part, nn.modules.batchnorm._BatchNorm):
        raise ValueError(
            f"{where} mixes the instances of a batch, so no instance or user can be bounded: use nn.GroupNorm"
        )
    if isinstance(part, nn.modules.dropout._DropoutNd) and part.p > 0:
        raise ValueError(
            f"{where} draws random numbers, but local training must be the same in all replicas: remove it "
            "or set p = 0"
        )
    if isinstance(part, _RECURRENT):
        raise ValueError(f"{where} has no batching rule in torch.func: use the built-in model 'lstm'")
