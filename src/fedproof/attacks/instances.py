"""Instance level: a few poisoned instances among the data of one user."""

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from fedproof import check
from fedproof.attacks.attack import Attack, Goal, generator, with_rows
from fedproof.federation import Federation
from fedproof.threat import Unit


@dataclass(frozen=True, kw_only=True)
class Instances(Attack):
    """`count` instances of one user, poisoned as `base` would poison all of them; the rest stays clean.

    Attributes:
        base: an attack on the data of one user, with `poison_fraction = 1`.
        count: number of poisoned instances, which an instance-level certificate counts.
        seed: chooses the instances; a larger count contains those of a smaller one.
        adversaries: those of `base`.
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
        if len(self.adversaries) > 1 or (self.count and not self.adversaries):
            raise ValueError(
                f"adversaries = {self.adversaries} must be one user, whose instances are poisoned"
            )

    @property
    def size(self) -> int:
        """Number of poisoned instances."""
        return self.count

    def poison(self, federation: Federation) -> Federation:
        """The federation with `count` instances as `base` poisons them."""
        after = self.base.poison(federation)
        changed = (after.labels != federation.labels) | (after.features != federation.features).reshape(
            len(federation.labels), -1
        ).any(axis=1)
        rows = np.flatnonzero(changed)
        if len(rows) < self.count:
            raise ValueError(
                f"instances = {self.count}: user {self.adversaries[0]} has {len(rows)} instances "
                f"that {type(self.base).__name__} can poison"
            )
        chosen = generator(self.seed, 2).permutation(rows)[: self.count]
        features, labels = federation.features.copy(), federation.labels.copy()
        features[chosen], labels[chosen] = after.features[chosen], after.labels[chosen]
        return with_rows(federation, features=features, labels=labels)

    def goal(self, federation: Federation) -> Goal:
        """What `base` wants."""
        return self.base.goal(federation)
