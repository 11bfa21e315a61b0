"""Disjoint groups, each with a private model of its own."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import (
    DIVIDED,
    Mechanism,
    Releases,
    check_drawn_unit,
    check_pooled_noise,
    check_population,
    noise_in_words,
)
from fedproof.mechanisms.partition import check_groups
from fedproof.mechanisms.query import Query
from fedproof.mechanisms.sampling import Everyone, Groups
from fedproof.threat import Unit


@dataclass(frozen=True, kw_only=True)
class NoisyPartition(Mechanism):
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
    releases: ClassVar[Releases] = Releases.GROUPS
    executor: ClassVar[str] = "fedproof.rounds.cohort_once"
    once: ClassVar[bool] = True
    rule = "mean"

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        check_drawn_unit(self)
        check_groups(self.groups)
        check_population(self)
        check_pooled_noise(self)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of one model's training sees; of all, no more."""
        return (Query(noise_multiplier=self.noise_multiplier, sampling=Everyone(), count=self.rounds),)

    @property
    def parallel(self) -> int:  # type: ignore[override]  # a property where others have a number
        """All models of one training."""
        return self.groups

    @property
    def sampling(self) -> Groups:
        """Every unit is in one group."""
        return Groups(count=self.groups)

    def models(self, num_units: int) -> int:
        """One for each group."""
        return self.groups

    def declared_population(self, num_units: int) -> int | None:
        """As declared: how many are there must not decide what sums are divided by."""
        return self.population

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the groups."""
        return (
            "every model was trained on its own group alone, and the same group with the same noise gives "
            "the same model again; neither the noise nor what sums are divided by depends on who takes part",
            f"which group one {self.unit} belongs to depends on no data; the statement is about these "
            "models, the noise in them being what it was",
        )

    def in_words(self) -> tuple[str, ...]:
        """Rounds, groups, clipping, noise, divisor."""
        whole = self.unit is Unit.USER
        clipped = self.clipping.words if whole else "the gradient of each instance is clipped to norm S"
        noise, what = noise_in_words(self.noise_multiplier), "updates" if whole else "gradients"
        return (
            *super().in_words(),
            "each model is trained on its own group alone",
            clipped,
            f"{noise} is added to the SUM of the clipped {what}",
            DIVIDED,
        )
