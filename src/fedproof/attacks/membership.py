"""Who is there, and with how much: adversaries who join, leave, are silent, or hold other amounts of data."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Attack, Coalition, Craft, Goal
from fedproof.attacks.units import check_users, most_instances, resized, with_newcomers, without_users
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.rounds.state import State
from fedproof.threat import Relation


@dataclass(frozen=True, kw_only=True)
class Joining(Attack):
    """New users, each with an identity of its own, who attack as `base` does; honest ones stay as they are.

    A newcomer brings a copy of somebody's instances for `base` to poison.

    Attributes:
        base: what the newcomers do; its adversaries are the positions behind the last honest user.
        seed: chooses whose instances are copied; more newcomers contain fewer.
        adversaries: those of `base`.
    """

    base: Attack
    seed: int = 0
    adversaries: tuple[int, ...] = ()
    relation: ClassVar[Relation] = Relation.JOIN

    def __post_init__(self) -> None:
        object.__setattr__(self, "adversaries", self.base.adversaries)
        super().__post_init__()
        check.not_negative_count(seed=self.seed)

    @property
    def collusive(self) -> bool:
        """Whether those of `base` are."""
        return self.base.collusive

    def poison(self, federation: Federation) -> Federation:
        """The federation that the newcomers have joined, their data as `base` poisons them."""
        places = tuple(range(federation.num_users, federation.num_users + self.size))
        if tuple(sorted(self.adversaries)) != places:
            raise ValueError(
                f"adversaries = {self.adversaries} must be the positions behind the last of "
                f"{federation.num_users} users, where newcomers stand"
            )
        if not self.size:
            return federation
        return self.base.poison(with_newcomers(federation, self.size, self.seed))

    def crafter(self, task: Task) -> Craft | None:
        """What `base` hands in."""
        return self.base.crafter(task)

    def goal(self, federation: Federation) -> Goal:
        """What `base` wants."""
        return self.base.goal(federation)


@dataclass(frozen=True, kw_only=True)
class Leaving(Attack):
    """The adversaries leave: the federation that certificates for `join`, read backwards, speak about."""

    relation: ClassVar[Relation] = Relation.JOIN

    def poison(self, federation: Federation) -> Federation:
        """The federation without them."""
        check_users(federation, self.adversaries)
        return without_users(federation, self.adversaries) if self.adversaries else federation


@dataclass(frozen=True, kw_only=True)
class Absent(Attack):
    """The adversaries' updates are zero: the federation before they joined, with the same divisor.

    Under Poisson sampling a user who adds nothing to the sum is as good as not there. Certificates for the
    relation `join` compare this training with any other that these users could bring about.
    """

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by zero, and labels by what abstains."""
        nothing = -1 if task.mechanism.sends_labels else 0

        def craft(coalition: Coalition, state: State) -> Tensor:
            return torch.full_like(coalition.updates, nothing)

        return craft


@dataclass(frozen=True, kw_only=True)
class Resized(Attack):
    """Each adversary holds `count` instances, its own ones over again if need be, before `base` poisons them.

    A unit is all that a user holds: how much that is, is the adversary's choice too.

    Attributes:
        base: what they do with them.
        count: number of instances of each.
        adversaries: those of `base`.
    """

    base: Attack
    count: int
    adversaries: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "adversaries", self.base.adversaries)
        super().__post_init__()
        check.count(count=self.count)

    @property
    def collusive(self) -> bool:
        """Whether those of `base` are."""
        return self.base.collusive

    def poison(self, federation: Federation) -> Federation:
        """The federation with as many instances of the adversaries as they like, as `base` poisons them."""
        limit = most_instances(federation)
        if self.adversaries and self.count > limit:
            raise ValueError(
                f"user_instances = {self.count} must be at most {limit}, the most that one user may hold"
            )
        return self.base.poison(resized(federation, self.adversaries, [self.count] * self.size))

    def crafter(self, task: Task) -> Craft | None:
        """What `base` hands in."""
        return self.base.crafter(task)

    def goal(self, federation: Federation) -> Goal:
        """What `base` wants."""
        return self.base.goal(federation)
