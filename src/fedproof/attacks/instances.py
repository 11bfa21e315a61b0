"""Instance level: a few poisoned instances, of one user or dealt out to many."""

from dataclasses import dataclass
from itertools import chain, zip_longest
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.attacks.attack import Attack, Goal, generator
from fedproof.attacks.units import check_users, frozen, with_copies, without_rows
from fedproof.federation import Federation
from fedproof.threat import Relation, Unit


@dataclass(frozen=True, kw_only=True)
class Instances(Attack):
    """`count` instances, poisoned as `base` would poison all of its adversaries'; the rest stays clean.

    Whose they are matters where users are drawn before instances: many users with one poisoned instance each
    are drawn more evenly than one who holds them all.

    Attributes:
        base: an attack on the data of the users who hold them, with `poison_fraction = 1`.
        count: number of poisoned instances, which an instance-level certificate counts.
        seed: chooses the instances; a larger count contains those of a smaller one.
        adversaries: those of `base`; instances are dealt out to them by turns.
    """

    base: Attack
    count: int
    seed: int = 0
    adversaries: tuple[int, ...] = ()
    unit: ClassVar[Unit] = Unit.INSTANCE

    def __post_init__(self) -> None:
        object.__setattr__(self, "adversaries", self.base.adversaries)
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
        features, labels = federation.features.copy(), federation.labels.copy()
        features[chosen], labels[chosen] = after.features[chosen], after.labels[chosen]
        return frozen(federation, features=features, labels=labels)

    def chosen(self, federation: Federation, after: Federation) -> NDArray[np.int64]:
        """Rows of `count` instances that `base` has changed."""
        return dealt_out(federation, self.adversaries, _changed(federation, after), self)

    def goal(self, federation: Federation) -> Goal:
        """What `base` wants."""
        return self.base.goal(federation)


@dataclass(frozen=True, kw_only=True)
class JoiningInstances(Instances):
    """`count` instances that join what their users hold: poisoned copies, under identities of their own."""

    relation: ClassVar[Relation] = Relation.JOIN

    def poison(self, federation: Federation) -> Federation:
        """The federation with `count` instances more, as `base` poisons those they are copies of."""
        check_users(federation, self.adversaries)
        poisoned = self.base.poison(federation)
        chosen = self.chosen(federation, poisoned)
        after, places = with_copies(federation, chosen)
        features, labels = after.features.copy(), after.labels.copy()
        features[places], labels[places] = poisoned.features[chosen], poisoned.labels[chosen]
        return frozen(after, features=features, labels=labels)


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


def _changed(before: Federation, after: Federation) -> NDArray[np.bool_]:
    """Which rows differ; NaN differs from all, and so it should."""
    other = (after.features != before.features).reshape(len(before.labels), -1).any(axis=1)
    return np.asarray(other | (after.labels != before.labels))
