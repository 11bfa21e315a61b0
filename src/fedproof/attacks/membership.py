"""Who is there, and with how much: users or single instances that join, leave, are silent, or are others."""

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Attack, Coalition, Craft, Wrapped, generator
from fedproof.attacks.units import (
    check_users,
    frozen,
    most_instances,
    resized,
    with_copies,
    with_newcomers,
    without_rows,
    without_users,
)
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.rounds.state import State
from fedproof.threat import Relation, Unit


@dataclass(frozen=True, kw_only=True)
class Joining(Wrapped):
    """New users, each with an identity of its own, who attack as `base` does; honest ones stay as they are.

    A newcomer brings a copy of somebody's instances for `base` to poison.

    Attributes:
        base: what the newcomers do; its adversaries are the positions behind the last honest user.
        seed: chooses whose instances are copied; more newcomers contain fewer.
    """

    seed: int = 0
    relation: ClassVar[Relation] = Relation.JOIN

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative_count(seed=self.seed)

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
class Resized(Wrapped):
    """Each adversary holds `count` instances, its own ones over again if need be, before `base` poisons them.

    A unit is all that a user holds: how much that is, is the adversary's choice too.
    """

    count: int

    def __post_init__(self) -> None:
        super().__post_init__()
        check.count(count=self.count)

    def poison(self, federation: Federation) -> Federation:
        """The federation with as many instances of the adversaries as they like, as `base` poisons them."""
        limit = most_instances(federation)
        if self.adversaries and self.count > limit:
            raise ValueError(
                f"user_instances = {self.count} must be at most {limit}, the most that one user may hold"
            )
        return self.base.poison(resized(federation, self.adversaries, [self.count] * self.size))


# --- instance level: a few instances, of one user or dealt out to many --------------------------------------


@dataclass(frozen=True, kw_only=True)
class Instances(Wrapped):
    """`count` instances, poisoned as `base` would poison all of its adversaries'; the rest stays clean.

    Whose they are matters where users are drawn before instances: many users with one poisoned instance each
    are drawn more evenly than one who holds them all.

    Attributes:
        base: an attack on the data of the users who hold them, with `poison_fraction = 1`.
        count: number of poisoned instances, which an instance-level certificate counts.
        seed: chooses the instances, dealt out to the adversaries by turns; more of them contain fewer.
    """

    count: int
    seed: int = 0
    unit: ClassVar[Unit] = Unit.INSTANCE

    def __post_init__(self) -> None:
        super().__post_init__()
        check.not_negative_count(count=self.count, seed=self.seed)
        if self.count and not self.adversaries:
            raise ValueError(f"instances = {self.count}: somebody must hold them, adversaries is empty")

    @property
    def size(self) -> int:
        """Number of poisoned instances."""
        return self.count

    def poison(self, federation: Federation) -> Federation:
        """The federation with `count` instances as `base` poisons them."""
        after = self.base.poison(federation)
        chosen = self.chosen(federation, after)
        return _written(federation, chosen, after, chosen)

    def chosen(self, federation: Federation, after: Federation) -> NDArray[np.int64]:
        """Rows of `count` instances that `base` has changed."""
        return dealt_out(federation, self.adversaries, _changed(federation, after), self)

    def crafter(self, task: Task) -> None:
        """Nothing: single instances hand in no updates."""


@dataclass(frozen=True, kw_only=True)
class JoiningInstances(Instances):
    """`count` instances that join what their users hold: poisoned copies, under identities of their own."""

    relation: ClassVar[Relation] = Relation.JOIN

    def poison(self, federation: Federation) -> Federation:
        """The federation with `count` instances more, as `base` poisons those they are copies of."""
        check_users(federation, self.adversaries)
        poisoned = self.base.poison(federation)
        chosen = self.chosen(federation, poisoned)
        return _written(*with_copies(federation, chosen), poisoned, chosen)


@dataclass(frozen=True, kw_only=True)
class LeavingInstances(Instances):
    """`count` instances that leave: the other side of the relation `join`."""

    relation: ClassVar[Relation] = Relation.JOIN

    def poison(self, federation: Federation) -> Federation:
        """The federation without them."""
        check_users(federation, self.adversaries)
        everything = np.ones(len(federation.labels), dtype=np.bool_)
        return without_rows(federation, dealt_out(federation, self.adversaries, everything, self, spare=1))


def dealt_out(
    federation: Federation,
    users: tuple[int, ...],
    eligible: NDArray[np.bool_],
    attack: Instances,
    *,
    spare: int = 0,
) -> NDArray[np.int64]:
    """Rows of `attack.count` eligible instances, taken from the users by turns; each keeps `spare` ones."""
    own = []
    for user in users:
        start, stop = federation.offsets[user : user + 2].tolist()
        rows = start + np.flatnonzero(eligible[start:stop])
        path = () if len(users) == 1 else (user,)
        order = generator(attack.seed, 2, *path).permutation(rows)
        own.append(order[: max(0, len(rows) - spare)].tolist())
    turns = [row for row in chain.from_iterable(zip_longest(*own)) if row is not None]
    if len(turns) < attack.count:
        whose = f"user {users[0]} has" if len(users) == 1 else f"{len(users)} users have"
        raise ValueError(
            f"instances = {attack.count}: {whose} {len(turns)} instances that "
            f"{type(attack.base).__name__} can poison"
        )
    return np.array(turns[: attack.count], dtype=np.int64)


def _written(
    federation: Federation, places: NDArray[np.int64], source: Federation, rows: NDArray[np.int64]
) -> Federation:
    """The federation that holds the instances `rows` of `source` at these `places`."""
    features, labels = federation.features.copy(), federation.labels.copy()
    features[places], labels[places] = source.features[rows], source.labels[rows]
    return frozen(federation, features=features, labels=labels)


def _changed(before: Federation, after: Federation) -> NDArray[np.bool_]:
    """Which rows differ; NaN differs from all, and so it should."""
    other = (after.features != before.features).reshape(len(before.labels), -1).any(axis=1)
    return np.asarray(other | (after.labels != before.labels))
