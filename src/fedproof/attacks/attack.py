"""What every attack is: who is adversarial, what they do to their data and updates, what they want."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from inspect import Parameter, signature
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.aggregation import Contributions
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.functions import check_options, load_function
from fedproof.rounds.state import State
from fedproof.threat import Relation, Unit

_KEY = 100  # first entry of the spawn keys of attacks, apart from those of the engine


@dataclass(frozen=True, kw_only=True)
class Coalition:
    """What the adversaries know of a round: what each of them would hand in if it were honest.

    In round one all replicas share the updates and the first axis has length one; the coalition is then
    complete. Later it consists of the adversaries that were drawn; where the attack is `collusive`, of all of
    them wherever one was drawn.

    Attributes:
        updates: `(replicas or 1, adversaries, dim)`, 0 where a place is empty.
        present: `(replicas or 1, adversaries)`, False where a place is empty.
        slots: `(replicas or 1, adversaries)`, where each stands among the contributions.
        contributions: of everybody, for attacks that see more than their own.
    """

    updates: Tensor
    present: Tensor
    slots: Tensor
    contributions: Contributions


Craft = Callable[[Coalition, State], Tensor]
"""What the adversaries hand in: `(replicas or 1, adversaries, dim)`, shaped like `Coalition.updates`.

Of a one-round mechanism, what they send: heads in a row, or labels of the anchors, which are whole numbers.
"""


@dataclass(frozen=True, kw_only=True)
class Goal:
    """What the attacker wants the model to say, and about which inputs.

    Attributes:
        inputs: `(inputs, ...)`, with the trigger where there is one.
        labels: `(inputs,)`.
        wanted: True: the model shall answer `labels`; False: anything else.
    """

    inputs: NDArray[np.generic]
    labels: NDArray[np.int64]
    wanted: bool = True

    def __post_init__(self) -> None:
        if not len(self.inputs) or len(self.inputs) != len(self.labels):
            raise ValueError(
                f"the attack's test set has {len(self.inputs)} inputs and {len(self.labels)} labels; "
                "it needs one label for each of at least one input"
            )


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack by some users; on its own it does nothing, concrete attacks override one method or two.

    Adversaries, users by their position, may do anything with their own units: hold other instances, as many
    as the public limit allows, and hand in other updates. Those who join stand behind all others. What they
    do is checked, see `fedproof.robustness.poisoned`.
    """

    adversaries: tuple[int, ...]
    unit: ClassVar[Unit] = Unit.USER
    relation: ClassVar[Relation] = Relation.REPLACE  # whether units are corrupted, or come and go

    def __post_init__(self) -> None:
        for user in self.adversaries:
            check.not_negative_count(adversaries=user)
        if len(set(self.adversaries)) != len(self.adversaries):
            raise ValueError(f"adversaries = {self.adversaries} must not name a user twice")

    @property
    def size(self) -> int:
        """Number of poisoned units, which a certificate counts."""
        return len(self.adversaries)

    @property
    def collusive(self) -> bool:
        """Whether those who are drawn know what all adversaries would hand in, drawn or not."""
        return False

    def poison(self, federation: Federation) -> Federation:
        """The federation with the adversaries' units poisoned."""
        return federation

    def crafter(self, task: Task) -> Craft | None:
        """How the adversaries replace their updates when `task` is trained; None: they train as told."""
        return None

    def goal(self, federation: Federation) -> Goal:
        """What the attacker wants; here, as for all untargeted attacks: wrong answers on the test inputs."""
        return Goal(inputs=federation.test_features, labels=federation.test_labels, wanted=False)


@dataclass(frozen=True, kw_only=True)
class Wrapped(Attack):
    """An attack of the adversaries of `base`, who do what they do there but for what is overridden."""

    base: Attack
    adversaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "adversaries", self.base.adversaries)
        super().__post_init__()

    @property
    def collusive(self) -> bool:
        """Whether those of `base` are."""
        return self.base.collusive

    def poison(self, federation: Federation) -> Federation:
        """The federation as `base` poisons it."""
        return self.base.poison(federation)

    def crafter(self, task: Task) -> Craft | None:
        """What `base` hands in."""
        return self.base.crafter(task)

    def goal(self, federation: Federation) -> Goal:
        """What `base` wants."""
        return self.base.goal(federation)


def choose_adversaries(num_users: int, count: int, seed: int) -> tuple[int, ...]:
    """`count` users drawn by `seed`; the sets of growing counts contain each other.

    >>> choose_adversaries(96, 3, seed=0)[:2] == choose_adversaries(96, 2, seed=0)
    True
    """
    check.not_negative_count(count=count, seed=seed)
    if count > num_users:
        raise ValueError(f"adversaries = {count} must be at most the number of users = {num_users}")
    order = generator(seed).permutation(num_users)
    return tuple(order[:count].tolist())


def generator(seed: int, *path: int) -> np.random.Generator:
    """Random numbers of an attack, for one purpose or user."""
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(_KEY, *path)))


def check_numbers(task: Task, attack: Attack) -> None:
    """Raise ValueError where there are no numbers for an attack to calculate with."""
    if task.mechanism.sends_labels:
        raise ValueError(
            f"{type(attack).__name__} calculates with numbers, but upload = 'anchors' sends labels: use "
            "worst-case, hostile, absent, or attack the data"
        )


# --- in a round ---------------------------------------------------------------------------------------------


def coalition_of(contributions: Contributions, adversaries: tuple[int, ...]) -> Coalition | None:
    """The adversaries among the members of `contributions`; None if there is none in any replica."""
    users = torch.tensor(adversaries, dtype=contributions.members.dtype, device=contributions.members.device)
    mask = torch.isin(contributions.members, users)
    width = int(mask.sum(1).max()) if mask.numel() else 0
    if width == 0:
        return None
    slots = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
    present = mask.gather(1, slots)
    rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
    updates = torch.where(present.unsqueeze(2), contributions.updates[rows, slots], 0)
    return Coalition(updates=updates, present=present, slots=slots, contributions=contributions)


def with_updates(coalition: Coalition, crafted: Tensor) -> Contributions:
    """The contributions in which the adversaries hand in `crafted`; nobody else's update changes."""
    if crafted.shape != coalition.updates.shape:
        raise ValueError(
            f"the attack hands in updates of shape {tuple(crafted.shape)}, "
            f"must be (replicas, adversaries, dim) = {tuple(coalition.updates.shape)}"
        )
    updates = coalition.contributions.updates.clone()
    row, place = coalition.present.nonzero(as_tuple=True)
    updates[row, coalition.slots[row, place]] = crafted[row, place].to(updates.dtype)
    return replace(coalition.contributions, updates=updates)


# --- a user's own attack: a function named `my_package.module:function` -------------------------------------


@dataclass(frozen=True, kw_only=True)
class CustomData(Attack):
    """`function(federation, adversaries, **options) -> Federation`; honest users must stay as they are."""

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
    if all(parameter.kind is not Parameter.VAR_KEYWORD for parameter in parameters.values()):
        check_options(f"the attack {name}", options, parameters)
    given = tuple(sorted(options.items()))
    if first == "federation":
        return CustomData(adversaries=adversaries, name=name, function=function, options=given)
    if first == "contributions":
        return CustomUpdates(adversaries=adversaries, name=name, function=function, options=given)
    made = function(adversaries=adversaries, **options)
    if not isinstance(made, Attack):
        raise ValueError(f"{name} returned {type(made).__name__}, must be a fedproof.attacks.Attack")
    return made
