"""Disjoint groups, each with a model of its own, without noise and with it."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import (
    SOLVER_OPTIONS,
    Members,
    Query,
    Releases,
    check_drawn_unit,
    check_pooled_noise,
    noisy_sum_in_words,
)
from fedproof.mechanisms.sampling import Everyone, Groups
from fedproof.statements import Statement
from fedproof.threat import Unit


class Grouped(Members):
    """What is common to all that split units once into disjoint groups, each with a model of its own."""

    groups: int | None
    releases: ClassVar[Releases] = Releases.GROUPS

    def __post_init__(self) -> None:
        super().__post_init__()
        check_drawn_unit(self)
        if self.groups is None:
            return
        check.count(groups=self.groups)
        if self.groups < 2:
            raise ValueError(f"groups = {self.groups} must be at least 2: one model has nobody to outvote it")

    @property
    def sampling(self) -> Groups:
        """Every unit is in one group."""
        return Groups(count=self.groups)

    def models(self, num_units: int) -> int:
        return num_units if self.groups is None else self.groups


@dataclass(frozen=True, kw_only=True)
class Partition(Grouped):
    """Users split once into `groups` disjoint groups; replica g trains on group g alone, without noise.

    Which group a user belongs to depends on its identity and the seed, not on anybody's data nor on how many
    users there are. Without `groups` every user is a group of its own: one user, one vote, and as many models
    as users, each known by the identity of its user. There is no privacy. `pooled` trains on a group's
    instances as one data set. With `unit` instance it is instances that are split, each by its own identity,
    which is deep partition aggregation.

    Guarantee: k poisoned units touch k models at most, under `join` and under `replace` alike. Proof: a unit
    that joins has an identity of its own, so it enters one group and leaves all others as they were. A unit
    that is replaced keeps its identity, hence its group: what it holds now is in the one model that what it
    held before was in. (Were groups chosen by content, as by a hash of the instance, a replaced unit could
    leave one group and enter another, and `replace` would cost two models for each unit.) Where every user is
    a group of its own, a user that joins adds a model, one that leaves takes its own away, and all others
    stay as they are.
    Assumes: identities are given out once and not used again; no unit has two.

    Reference: Cao, Zhang, Jia, Gong 2022 (FLCert-D), arXiv:2210.00584; Levine, Feizi 2021 (DPA),
    arXiv:2006.14768.
    """

    groups: int | None = None
    rounds: int = 1
    pooled: bool = False
    unit: Unit = Unit.USER
    kind: ClassVar[str] = "partition"
    divides: ClassVar[bool] = False
    step_options: ClassVar[frozenset[str]] = SOLVER_OPTIONS
    unaccounted: ClassVar[str] = (
        "Partition adds no noise and has no privacy guarantee; its certificate counts votes (method vote)"
    )
    noise_multiplier = 0.0
    queries = ()

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.groups is None and self.unit is Unit.INSTANCE:
            raise ValueError("groups = None must be a number for unit = 'instance': one instance is no data")

    @property
    def apart(self) -> bool:
        """Whether nobody names a number of groups."""
        return self.groups is None

    @property
    def shares_first_round(self) -> bool:
        """A model of one user alone is trained alone."""
        return not self.pooled and not self.apart

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        whose = "group-by-identity" if self.groups else "group-of-one"
        return Statement.of("group-alone"), Statement.of(whose, unit=self.unit)

    def in_words(self) -> tuple[str, ...]:
        return (*super().in_words(), "each model is trained on its own group alone, and no noise is added")


@dataclass(frozen=True, kw_only=True)
class NoisyPartition(Grouped):
    """Units split once into `groups` disjoint groups; replica g trains on group g alone, with noise.

    Groups are those of `Partition`. In every round all members of a group take part in a clipped, noised sum
    that is divided by the declared population over the number of groups: of users' updates as in
    `UserFedAvg`, or, with `unit` instance, of the gradients of all its instances (`pooled`), one step.

    Guarantee: all models together cost what one costs, `rounds` Gaussian queries without sampling. Proof
    (parallel composition): model g is a function of group g and of noise of its own. A unit's group follows
    from its identity and the seed, so two data sets that differ in one unit, which is there or not, or
    holds something else under the same identity, differ in one group. All other models have the same law on
    both, and are independent of the one that differs: the likelihood ratio of all models is that of this one.
    Reference: McSherry 2009, Theorem 4.

    Guarantee: k poisoned units touch k models at most, as in `Partition`, and votes are counted: with the
    noise of every model held fixed, a model is a function of its group alone. So the certificate speaks of
    these models, noise included, and needs no secret.
    Assumes: identities are given out once and not used again; the noise does not depend on who takes part.

    >>> noisy = NoisyPartition(groups=50, rounds=4, noise_multiplier=2.0, population=1000)
    >>> noisy.queries[0].count, noisy.parallel, noisy.divisor(990)
    (4, 50, 20.0)
    """

    groups: int
    noise_multiplier: float
    rounds: int = 1
    clip_norm: float = 1.0
    pooled: bool = False
    unit: Unit = Unit.USER
    population: int | None = None
    kind: ClassVar[str] = "noisy-partition"
    rule = "mean"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_pooled_noise(self)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of one model's training sees; of all, no more."""
        return (Query(noise_multiplier=self.noise_multiplier, sampling=Everyone(), count=self.rounds),)

    @property
    def parallel(self) -> int:  # type: ignore[override]  # a property where others have a number
        """All models of one training."""
        return self.groups

    def declared_population(self, num_units: int) -> int | None:
        """As declared: how many are there must not decide what sums are divided by."""
        return self.population

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        return (
            Statement.of("noisy-group-alone"),
            Statement.of("noisy-group-by-identity", unit=self.unit),
        )

    def in_words(self) -> tuple[str, ...]:
        alone = "each model is trained on its own group alone"
        return (*super().in_words(), alone, *noisy_sum_in_words(self))
