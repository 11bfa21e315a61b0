"""Who takes part in a round."""

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from fedproof import check


class SamplingKind(StrEnum):
    """How the members of a round are drawn, as files and options call it."""

    POISSON = "poisson"
    FIXED = "fixed"
    NONE = "none"


def digits(value: float) -> str:
    """All digits that tell one number from the next: a rounded echo would hide a typing error."""
    return f"{value:.12g}"


class Drawing:
    """What is asked of a way to take part; kinds answer what differs from this."""

    closed: ClassVar[bool] = False  # whoever joins changes nobody's chance
    drawn_from: ClassVar[int | None] = None  # how many units there must be; None: any number

    def spread(self, num_units: int) -> float:
        """Standard deviation of the number of units that take part."""
        return 0.0

    def check_units(self, num_units: int) -> None:
        """Raise ValueError if so many units cannot be drawn from."""


@dataclass(frozen=True, kw_only=True)
class Poisson(Drawing):
    """Each unit takes part independently with `probability`, anew in every round."""

    probability: float
    kind: ClassVar[str] = SamplingKind.POISSON.value

    def __post_init__(self) -> None:
        check.probability(probability=self.probability)
        check.plain(self)

    def expected(self, num_units: int) -> float:
        """Expected number of units that are drawn: the fixed divisor of a sum over them.

        >>> Poisson(probability=0.1).expected(200)
        20.0
        """
        return self.probability * num_units

    def near(self, chance: float) -> "Poisson":
        """The same way of drawing with another chance."""
        return Poisson(probability=chance)

    def spread(self, num_units: int) -> float:
        """Standard deviation of the number of units that are drawn."""
        return math.sqrt(self.expected(num_units) * (1 - self.probability))

    def in_words(self, unit: str) -> str:
        """Who takes part, for a reader."""
        return f"every {unit} takes part independently with probability {digits(self.probability)}"


MOST_USERS = 10**10  # the law of who is drawn takes seconds for so many, and minutes for more


@dataclass(frozen=True, kw_only=True)
class FixedSize(Drawing):
    """A uniformly random cohort of exactly `cohort` out of `users`, anew in every round."""

    cohort: int
    users: int
    kind: ClassVar[str] = SamplingKind.FIXED.value
    closed: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.count(cohort=self.cohort, users=self.users)
        if self.users > MOST_USERS:
            raise ValueError(f"users = {self.users} must be at most {MOST_USERS}, more than there are people")
        if self.cohort > self.users:
            raise ValueError(f"cohort = {self.cohort} must be at most the number of users = {self.users}")
        check.plain(self)

    @property
    def drawn_from(self) -> int:  # type: ignore[override]
        """How many units there must be."""
        return self.users

    @property
    def probability(self) -> float:
        """Chance that one given unit is drawn."""
        return self.cohort / self.users

    def expected(self, num_units: int) -> float:
        """Number of units that are drawn."""
        return float(self.cohort)

    def near(self, chance: float) -> "FixedSize":
        """The same way of drawing with the cohort whose chance is nearest."""
        return FixedSize(cohort=max(1, round(chance * self.users)), users=self.users)

    def in_words(self, unit: str) -> str:
        """Who takes part, for a reader."""
        chosen = f"all choices of {self.cohort} being equally likely"
        return f"exactly {self.cohort} of the {self.users} {unit}s are drawn, {chosen}"

    def check_units(self, num_units: int) -> None:
        """Raise ValueError if this was made for another number of units."""
        if self.users != num_units:
            raise ValueError(f"sampling.users = {self.users} must be the number of users = {num_units}")


@dataclass(frozen=True, kw_only=True)
class Everyone(Drawing):
    """No sampling: every unit takes part in every round."""

    probability: ClassVar[float] = 1.0
    kind: ClassVar[str] = SamplingKind.NONE.value

    def expected(self, num_units: int) -> float:
        """All of them."""
        return float(num_units)

    def near(self, chance: float) -> "Everyone":
        """There is no other way to take everyone."""
        return self

    def in_words(self, unit: str) -> str:
        """Who takes part, for a reader."""
        return f"every {unit} takes part"


@dataclass(frozen=True, kw_only=True)
class Groups(Drawing):
    """Units are split once into `count` disjoint groups; replica g trains on group g.

    Without a count every unit is a group of its own.
    """

    count: int | None
    closed: ClassVar[bool] = True

    def expected(self, num_units: int) -> float:
        """Mean size of a group; sizes do not vary by chance, they follow from identities."""
        return 1.0 if self.count is None else num_units / self.count

    def in_words(self, unit: str) -> str:
        """Who takes part, for a reader."""
        if self.count is None:
            return f"every {unit} is a group of its own, known by its identity"
        return f"every {unit} is put into one of {self.count} groups, by its identity alone"

    def check_units(self, num_units: int) -> None:
        """Raise ValueError if there are fewer units than groups, or nobody who could be outvoted."""
        if self.count is None and num_units < 2:
            raise ValueError(f"there must be at least 2 units, one model for each; found {num_units}")
        if self.count is not None and self.count > num_units:
            raise ValueError(
                f"groups = {self.count} must be at most the number of units = {num_units}: a group without "
                "data has no model"
            )


Sampling = Poisson | FixedSize | Everyone
AnySampling = Sampling | Groups
