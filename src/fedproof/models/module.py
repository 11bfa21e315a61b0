"""The model a user brings: any `nn.Module` that `torch.func` can stack."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import dataclass, field, replace
from functools import cache
from threading import Lock
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrize
from torch.overrides import TorchFunctionMode

from fedproof import check
from fedproof.models.model import ClippedGradient, Layout, fresh_parameters, instance_factors, layout_of
from fedproof.models.precision import all_digits

_RECURRENT = (nn.RNN, nn.LSTM, nn.GRU)

Forward = Callable[[dict[str, Tensor], Tensor], Tensor]
"""The module as a function: weights and inputs in, logits out."""


@dataclass(frozen=True, kw_only=True, eq=False)
class ModuleModel:
    """An ordinary module, stacked by `vmap` over `functional_call`.

    Guarantee: results are a function of parameters and inputs. Every call works on a copy of its own, because
    `functional_call` writes to the module it is given and so may `forward`: threads do not see each other,
    and no replica sees what another left behind. What cannot be undone by that is refused, see `_alone`.

    Attributes:
        original: the module, never called and never written to; its parameters are where all replicas start
            unless there is a factory.
        factory: makes a fresh module, so that the start follows the seed of the task.
        frozen: buffers, and parameters with `requires_grad = False`.
    """

    original: nn.Module
    num_classes: int
    layout: Layout
    factory: Callable[[], nn.Module] | None = None
    frozen: Mapping[str, Tensor] = field(default_factory=dict)
    stacks: ClassVar[bool] = False

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
        with self._alone(params, inputs) as forward:
            return vmap(forward, in_dims=(0, axis))(
                self.layout.views(params), inputs if axis == 0 else inputs[0]
            )

    def gradient(self, params: Tensor, inputs: Tensor, labels: Tensor, factors: Tensor) -> Tensor:
        """Gradient `(stack, dim)` of each model's sum of cross-entropies times `factors`."""
        with self._alone(params, inputs) as forward:

            def loss(weights: dict[str, Tensor], batch: Tensor, targets: Tensor, factor: Tensor) -> Tensor:
                return (F.cross_entropy(forward(weights, batch), targets, reduction="none") * factor).sum()

            return self._flat(vmap(grad(loss))(self.layout.views(params), inputs, labels, factors), 1)

    def clipped_gradient(
        self, params: Tensor, inputs: Tensor, labels: Tensor, mask: Tensor, clip_norm: float
    ) -> ClippedGradient:
        """Sum of clipped per-instance gradients, each of which is computed and kept."""
        with self._alone(params, inputs) as forward:

            def loss(weights: dict[str, Tensor], instance: Tensor, target: Tensor) -> Tensor:
                return F.cross_entropy(forward(weights, instance.unsqueeze(0)), target.unsqueeze(0))

            each = vmap(vmap(grad(loss), in_dims=(None, 0, 0)))(self.layout.views(params), inputs, labels)
        rows = self._flat(each, 2)
        norms = torch.linalg.vector_norm(rows, dim=2, dtype=torch.float64) * mask
        factors, norms, finite = instance_factors(norms, clip_norm, params.dtype)
        kept = torch.where(finite.unsqueeze(2), rows, 0)
        total = torch.bmm((factors * mask).unsqueeze(1), kept).squeeze(1)
        return ClippedGradient(total=total, norms=norms, finite=finite)

    @contextmanager
    def _alone(self, params: Tensor, inputs: Tensor) -> Iterator[Forward]:
        """The module as a function, on a copy that nobody else has and that is thrown away.

        Raises:
            ValueError: `forward` wrote into what all copies share, used a parameter that is not its own, or
                drew random numbers.
        """
        _load_batching_rules()
        shared = {id(tensor): tensor for tensor in (*self.original.parameters(), *self.original.buffers())}
        copy = deepcopy(self.original, shared)  # `functional_call` puts others in their place
        lent = {"its parameters": params, "its inputs": inputs, **self.frozen}
        before = {name: _version(tensor) for name, tensor in lent.items()}

        def forward(weights: dict[str, Tensor], batch: Tensor) -> Tensor:
            with _OwnParameters(copy):
                logits: Tensor = functional_call(copy, {**weights, **self.frozen}, (batch,))
            return logits

        try:
            yield forward
        except RuntimeError as error:
            if "random operation" not in str(error):
                raise
            raise ValueError(
                f"forward of {type(copy).__name__} draws random numbers, but local training must be the same "
                "in all replicas: remove what draws, or hand the module in after module.eval()"
            ) from error
        changed = [name for name, tensor in lent.items() if _version(tensor) != before[name]]
        if changed:
            raise ValueError(
                f"forward of {type(copy).__name__} changes {', '.join(changed)} in place, which all replicas "
                "share: compute a new tensor instead"
            )

    def _flat(self, named: dict[str, Tensor], axes: int) -> Tensor:
        return torch.cat([named[name].flatten(axes) for name in self.layout.names], dim=axes)


class _OwnParameters(TorchFunctionMode):
    """Refuses parameters that `functional_call` did not replace: all replicas would use them as they are.

    They come from outside the module's tree: a list of modules, a function that remembers the module it was
    written for instead of the copy it is called with, a cache of all copies.
    """

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._computed = any(parametrize.is_parametrized(part) for part in module.modules())

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Call `func` unless it is given such a parameter."""
        kwargs = kwargs or {}
        if self._computed and parametrize._cache_enabled:
            raise ValueError(
                "parametrize.cached() keeps the weights of a module for all threads and replicas: call the "
                "module without it"
            )
        if any(isinstance(value, nn.Parameter) and value.requires_grad for value in _values((args, kwargs))):
            raise ValueError(
                "forward uses a parameter that is not registered in the module it is called on, so it would "
                "not be trained: make it an attribute of a module, reach it through self, or set "
                "requires_grad = False"
            )
        return func(*args, **kwargs)


@cache
def _load_batching_rules() -> None:
    """Let torch load what `vmap` needs: at first use it does so, but not safely if two threads are first."""
    with _loading:
        vmap(torch.neg)(torch.zeros(1, device="cpu"))


_loading = Lock()


def _values(given: Any) -> Iterator[Any]:
    """What stands in lists, tuples and dictionaries."""
    inner: Iterable[Any] = given.values() if isinstance(given, dict) else given
    for value in inner:
        if isinstance(value, list | tuple | dict):
            yield from _values(value)
        else:
            yield value


def _version(tensor: Tensor) -> int:
    """How often the tensor was written to; those of inference mode cannot be outside of it."""
    return 0 if tensor.is_inference() else tensor._version


@all_digits()
def from_module(module: nn.Module, num_classes: int) -> ModuleModel:
    """`module` as a model that stacks; it takes `(batch, ...)` and returns logits `(batch, num_classes)`.

    The model has a copy: what becomes of `module` later does not change it.

    >>> from_module(nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), 10).layout.dim
    650
    """
    for name, part in module.named_modules():
        _check_stackable(name, part)
    own = _copy(module)
    trained = [(name, value) for name, value in own.named_parameters() if value.requires_grad]
    if not trained:
        raise ValueError("the module has no parameter with requires_grad = True: nothing to train")
    still = {name: value.detach() for name, value in own.named_parameters() if not value.requires_grad}
    return ModuleModel(
        original=own,
        num_classes=num_classes,
        layout=layout_of(trained),
        frozen={**still, **dict(own.named_buffers())},
    )


_TRIAL = 4  # instances of a user that a module is tried out on
_TRIAL_STEPS = 2


@all_digits()
def try_out(name: str, model: ModuleModel, inputs: Tensor) -> None:
    """Train one user several times: again, after another one, and beside others.

    Guarantee: none. Whatever a module remembers without showing it in these few steps is not found.

    Raises:
        ValueError: one bit of what the user's training makes of the model differs.
    """
    own = inputs[:_TRIAL]
    others = own.flip(0), own[:1].expand_as(own), own.roll(1, 0)
    first = _trained(model, own, others[0])
    for one, two in ((others[0], others[1]), (others[1], own)):
        _trained(model, one, two)
    if not _same_bits(first, _trained(model, own, others[2])):
        raise ValueError(
            f"{name} ({type(model.original).__name__}) trains a user otherwise after or beside others: "
            "use no state outside the module (NumPy's random numbers, a counter, the clock)"
        )


def _trained(model: ModuleModel, one: Tensor, two: Tensor) -> Tensor:
    """What a few steps on the inputs of `one` make of the model, beside those of `two`."""
    inputs, start = torch.stack([one, two]), model.initial(0)
    params = start.expand(2, -1).contiguous()
    labels = torch.arange(len(one)).remainder(model.num_classes).expand(2, -1)
    for _ in range(_TRIAL_STEPS):
        params = params - 0.1 * model.gradient(params, inputs, labels, torch.ones(labels.shape))
    return params[0]


def _same_bits(one: Tensor, two: Tensor) -> bool:
    return torch.equal(one.view(torch.uint8), two.view(torch.uint8))


def check_repeats(name: str, module: nn.Module, again: nn.Module) -> None:
    """Raise ValueError unless two modules that were made under the same seed are equal, bit for bit."""
    made = [[*each.named_parameters(), *each.named_buffers()] for each in (module, again)]
    if [key for key, _ in made[0]] != [key for key, _ in made[1]] or not all(
        one.shape == two.shape and _same_bits(one.detach().reshape(-1), two.detach().reshape(-1))
        for (_, one), (_, two) in zip(*made, strict=True)
    ):
        raise ValueError(
            f"{name} makes other weights when it is called again with the same seed of torch: draw them from "
            "torch's random numbers, or read them from a file"
        )


def _copy(module: nn.Module) -> nn.Module:
    try:
        return deepcopy(module)
    except (RuntimeError, TypeError, ValueError, AttributeError) as error:
        raise ValueError(
            f"the module ({type(module).__name__}) cannot be copied, but every thread needs one of its own: "
            f"{check.one_line(error)}"
        ) from error


def _check_stackable(name: str, part: nn.Module) -> None:
    where = f"{name or 'the module'} ({type(part).__name__})"
    if any(isinstance(value, nn.UninitializedParameter) for value in part.parameters(recurse=False)):
        raise ValueError(f"{where} does not know its shape yet: call the module on a batch first")
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
