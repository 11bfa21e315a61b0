"""Other numbers of instances: adversaries hold as many as they like, up to the public limit."""

from dataclasses import dataclass

from fedproof import check
from fedproof.attacks.attack import Attack, Craft, Goal
from fedproof.attacks.units import most_instances, resized
from fedproof.ensemble.task import Task
from fedproof.federation import Federation


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
