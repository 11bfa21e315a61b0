"""A user's own attack: a function named `my_package.module:function`."""

from collections.abc import Callable
from dataclasses import dataclass, field
from inspect import Parameter, signature
from typing import Any

import torch
from torch import Tensor

from fedproof.attacks.attack import Attack, Coalition, Craft
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.functions import load_function
from fedproof.rounds.state import State


@dataclass(frozen=True, kw_only=True)
class CustomData(Attack):
    """`function(federation, adversaries, **options) -> Federation`; honest users must stay as they are.

    Attributes:
        name: `module:function`.
        function: the user's.
        options: further arguments.
    """

    name: str
    function: Callable[..., Federation] = field(repr=False)
    options: tuple[tuple[str, Any], ...] = ()

    def poison(self, federation: Federation) -> Federation:
        """What the function returns."""
        return self.function(federation, self.adversaries, **dict(self.options))


@dataclass(frozen=True, kw_only=True)
class CustomUpdates(Attack):
    """`function(contributions, state, adversaries, **options) -> Tensor`, updates of all members.

    The result is shaped like `contributions.updates`, (replicas or 1, members, dim); only the adversaries'
    rows are used.

    Attributes:
        name: `module:function`.
        function: the user's.
        options: further arguments.
    """

    name: str
    function: Callable[..., Tensor] = field(repr=False)
    options: tuple[tuple[str, Any], ...] = ()

    def crafter(self, task: Task) -> Craft:
        """Takes the adversaries' rows of what the function returns."""

        def craft(coalition: Coalition, state: State) -> Tensor:
            everybody = coalition.contributions
            updates = self.function(everybody, state, self.adversaries, **dict(self.options))
            if not isinstance(updates, Tensor) or updates.shape != everybody.updates.shape:
                found = tuple(updates.shape) if isinstance(updates, Tensor) else type(updates).__name__
                expected = tuple(everybody.updates.shape)
                raise ValueError(f"{self.name} returned {found}, must be a tensor of shape {expected}")
            rows = torch.arange(len(updates), device=updates.device).unsqueeze(1)
            return updates[rows, coalition.slots]

        return craft


def custom(name: str, adversaries: tuple[int, ...], options: dict[str, Any]) -> Attack:
    """The attack of the function called `name`.

    Its first parameter says what it does: `federation` poisons the data, `contributions` replaces updates,
    and anything else makes an `Attack`: it is called as `function(adversaries=..., **options)`.
    """
    function = load_function("attack", name)
    parameters = signature(function).parameters
    first = next(iter(parameters), "")
    anything = any(parameter.kind is Parameter.VAR_KEYWORD for parameter in parameters.values())
    for option in options:
        if option not in parameters and not anything:
            raise ValueError(f"{option} is no parameter of the attack {name}; it has {', '.join(parameters)}")
    given = tuple(sorted(options.items()))
    if first == "federation":
        return CustomData(adversaries=adversaries, name=name, function=function, options=given)
    if first == "contributions":
        return CustomUpdates(adversaries=adversaries, name=name, function=function, options=given)
    made = function(adversaries=adversaries, **options)
    if not isinstance(made, Attack):
        raise ValueError(f"{name} returned {type(made).__name__}, must be a fedproof.attacks.Attack")
    return made
