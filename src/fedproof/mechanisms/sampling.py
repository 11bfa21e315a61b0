"""Who takes part in a round."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check


@dataclass(frozen=True, kw_only=True)
class Poisson:
    """Each unit takes part independently with `probability`, anew in every round."""

    probability: float

    def __post_init__(self) -> None:
        check.probability(probability=self.probability)


MOST_USERS = 10**10  # the law of who is drawn takes seconds for so many, and minutes for more


@dataclass(frozen=True, kw_only=True)
class FixedSize:
    """A uniformly random cohort of exactly `cohort` out of `users`, anew in every round."""

    cohort: int
    users: int

    def __post_init__(self) -> None:
        check.count(cohort=self.cohort, users=self.users)
        if self.users > MOST_USERS:
            raise ValueError(f"users = {self.users} must be at most {MOST_USERS}, more than there are people")
        if self.cohort > self.users:
            raise ValueError(f"cohort = {self.cohort} must be at most the number of users = {self.users}")

    @property
    def probability(self) -> float:
        """Chance that one given unit is drawn."""
        return self.cohort / self.users


@dataclass(frozen=True, kw_only=True)
class Everyone:
    """No sampling: every unit takes part in every round."""

    probability: ClassVar[float] = 1.0


Sampling = Poisson | FixedSize | Everyone


def expected_cohort(sampling: Sampling, num_units: int) -> float:
    """Expected number of units that are drawn of `num_units`: the fixed divisor of a sum over them.

    >>> expected_cohort(Poisson(probability=0.1), 200)
    20.0
    """
    return float(sampling.cohort) if isinstance(sampling, FixedSize) else sampling.probability * num_units
