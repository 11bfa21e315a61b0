"""What is executed round by round, and the queries an observer gets from it."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.clipping import Clipping, Flat, Quantile
from fedproof.mechanisms.query import Query
from fedproof.mechanisms.sampling import Everyone, FixedSize, Poisson, Sampling, expected_cohort
from fedproof.threat import Relation, Unit, as_unit


@dataclass(frozen=True, kw_only=True)
class UserFedAvg:
    """User-level DP-FedAvg: clipped, noised sum of the cohort's updates, divided by the expected cohort.

    `population` is the declared number of users, which the divisor is made from; None leaves it to whoever
    executes the mechanism, who must not change it when somebody joins.

    Guarantee: each round is one Gaussian query with sensitivity `clip_norm * clipping.sensitivity` per user.

    >>> UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1)).queries
    (Query(noise_multiplier=1.8, sampling=Poisson(probability=0.1), count=3, selection_probability=1.0),)
    """

    rounds: int
    noise_multiplier: float
    sampling: Sampling
    clip_norm: float = 1.0
    clipping: Clipping = field(default_factory=Flat)
    rule: str = "mean"
    population: int | None = None
    unit: ClassVar[Unit] = Unit.USER

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        _check_population(self)

    def divisor(self, num_units: int) -> float:
        """What the noisy sum is divided by, where `num_units` users take part and no population is declared.

        Guarantee: it depends on nobody's data, and with a declared population on nobody's presence.
        """
        return expected_cohort(self.sampling, self.population or num_units)

    @property
    def effective_noise_multiplier(self) -> float:
        """Noise multiplier of one Gaussian query that stands for all that a round releases."""
        per_sensitivity = self.noise_multiplier / self.clipping.sensitivity
        if isinstance(self.clipping, Quantile):
            # Joint release of the update (std σS, norm S) and the bit (std σ_b, norm 1/2).
            return 1 / math.hypot(1 / per_sensitivity, 1 / (2 * self.clipping.count_noise_std))
        return per_sensitivity

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of the whole training sees."""
        return (
            Query(
                noise_multiplier=self.effective_noise_multiplier, sampling=self.sampling, count=self.rounds
            ),
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the accounted guarantee would only be heuristic; empty if it is sound."""
        return self.clipping.reasons + _rule_reasons(self.rule)

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons


@dataclass(frozen=True, kw_only=True)
class InstanceFedSGD:
    """InsDP-FedSGD: each drawn user takes one DP-SGD step per round and adds its own noise.

    The server sums `sampling.cohort` noisy gradients, so the noise multiplier of the sum is √cohort times the
    local one. Each instance of a drawn user enters the batch independently with `batch_probability`.
    `by_size` tells that this chance was made from the users' numbers of instances: whoever joins may change
    it.

    Assumes: a cohort of fixed size (with a random size the noise on the sum would be random too).
    """

    rounds: int
    noise_multiplier: float
    sampling: FixedSize
    batch_probability: float
    clip_norm: float = 1.0
    rule: str = "mean"
    by_size: bool = False
    unit: ClassVar[Unit] = Unit.INSTANCE

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        check.probability(batch_probability=self.batch_probability)
        if not isinstance(self.sampling, FixedSize):
            raise ValueError(
                f"sampling = {self.sampling!r} must be FixedSize(cohort=..., users=...): each drawn "
                "user adds its share of the noise, so the size of the cohort must not vary"
            )

    def divisor(self, num_units: int) -> float:
        """What the sum of noisy gradients is divided by: the size of the cohort."""
        return expected_cohort(self.sampling, num_units)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of the whole training sees of one user's instances."""
        return (
            Query(
                noise_multiplier=math.sqrt(self.sampling.cohort) * self.noise_multiplier,
                sampling=Poisson(probability=self.batch_probability),
                count=self.rounds,
                selection_probability=self.sampling.probability,
            ),
        )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the accounted guarantee would only be heuristic; empty if it is sound."""
        if self.rule == "mean":
            return ()
        return (f"the noise of all users adds up in a sum only, which the rule {self.rule} does not compute",)

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons + _size_reasons(self, relation)


@dataclass(frozen=True, kw_only=True)
class InstanceFedAvg:
    """InsDP-FedAvg: each drawn user runs `local_steps` DP-SGD steps on Poisson batches of its instances.

    Each instance enters a batch independently with `batch_probability`, whoever holds it and how many others
    its user holds. With `by_size` a user's own chance is the batch size over its number of instances, and
    `batch_probability` the largest of them (the smallest user decides): an instance that joins then lowers
    the chance of its neighbours, so that nothing is proved about joining. A user may be drawn in every round,
    so all of them are counted. `population` is the declared number of users that the server's mean is for.

    With `shuffled` batches are parts of shuffled passes over the user's instances, the last of a pass being
    smaller and divided by its own size: what many do, the paper's code too, and account like this, but it is
    not a Poisson sample. With `keep_momentum` users go on in a round with the momentum they ended the last
    one with, which is post-processing of what was noised.
    """

    rounds: int
    local_steps: int
    noise_multiplier: float
    batch_probability: float
    sampling: Sampling = field(default_factory=Everyone)
    clip_norm: float = 1.0
    shuffled: bool = False
    keep_momentum: bool = False
    by_size: bool = False
    population: int | None = None
    unit: ClassVar[Unit] = Unit.INSTANCE

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds, local_steps=self.local_steps)
        check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
        check.probability(batch_probability=self.batch_probability)
        _check_population(self)
        if self.keep_momentum and not isinstance(self.sampling, Everyone):
            raise ValueError(
                f"keep_momentum = True needs sampling = Everyone(), not {self.sampling!r}: momentum goes on "
                "from one round to the next"
            )

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the accounted guarantee would only be heuristic; empty if it is sound."""
        if not self.shuffled:
            return ()
        return ("batches are parts of shuffled passes, but are accounted as if they were Poisson samples",)

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons + _size_reasons(self, relation)

    def divisor(self, num_units: int) -> float:
        """What the sum of updates is divided by, where `num_units` users take part and none are declared."""
        return expected_cohort(self.sampling, self.population or num_units)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of the whole training sees of one user's instances."""
        return (
            Query(
                noise_multiplier=self.noise_multiplier,
                sampling=Poisson(probability=self.batch_probability),
                count=self.rounds * self.local_steps,
            ),
        )


def _check_drawn_unit(mechanism: "CohortOnce | Partition") -> None:
    """Instances that are drawn one by one belong to no user who could train on them alone."""
    unit = as_unit(mechanism.unit)
    object.__setattr__(mechanism, "unit", unit)  # plain strings are welcome
    if unit is Unit.INSTANCE and not mechanism.pooled:
        raise ValueError(
            "pooled = False must be True for unit = 'instance': instances of many users are trained on "
            "together, nobody trains on one alone"
        )


@dataclass(frozen=True, kw_only=True)
class CohortOnce:
    """A cohort drawn once, then `rounds` rounds of training in which exactly its members take part.

    Without noise (`noise_multiplier` 0) nothing is clipped and there is no privacy; the model is robust
    because adversaries matter only when they are drawn. With noise it is the hybrid: every round is the
    clipped, noised sum of `UserFedAvg`, all rounds on one and the same sample. `pooled` trains on the
    instances of all members as one data set, each step being a round of FedSGD among them; at user level
    without noise, because a user with many instances adds more than the clip norm to a step.

    With `unit` instance it is instances that are drawn, each by itself and whoever holds it, which is
    bagging; `sampling` then counts instances. With noise a round is one step of SGD on all drawn instances:
    the sum of their gradients, each clipped to `clip_norm`, noised and divided by the expected cohort.
    `population` is the declared number of units, which that divisor is made from, as in `UserFedAvg`.

    Guarantee (noise): given the sample, `rounds` Gaussian queries compose to one with √rounds times the
    shift, so an observer sees one query of noise multiplier σ/√rounds on units sampled once. It holds for
    users and instances alike, because it asks three things of a unit alone: whether it is drawn does not
    depend on the others' data; if drawn it adds a vector of norm `clip_norm` or less to every sum, so j units
    that joined move a sum by j clip norms and j that were replaced by 2j; nothing else in a round, the
    divisor least of all, depends on the sample.
    Reference: theory.md, section 3, "Certificates from sampling alone, and the hybrid".

    >>> once = CohortOnce(rounds=4, noise_multiplier=3.0, sampling=FixedSize(cohort=10, users=1000))
    >>> once.queries[0].noise_multiplier, once.queries[0].count
    (1.5, 1)
    """

    rounds: int
    sampling: Poisson | FixedSize
    noise_multiplier: float = 0.0
    clip_norm: float = 1.0
    pooled: bool = False
    rule: str = "mean"
    unit: Unit = Unit.USER
    population: int | None = None

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        _check_drawn_unit(self)
        _check_population(self)
        check.not_negative(noise_multiplier=self.noise_multiplier)
        check.positive(clip_norm=self.clip_norm)
        if not isinstance(self.sampling, Poisson | FixedSize):
            raise ValueError(
                f"sampling = {self.sampling!r} must be Poisson or FixedSize: drawing everyone protects nobody"
            )
        if self.pooled and self.noise_multiplier and self.unit is Unit.USER:
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier!r} must be 0 for pooled training of users, which "
                "does not bound what one user adds to a step"
            )

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of the whole training sees; empty without noise, when all is seen."""
        if not self.noise_multiplier:
            return ()
        together = self.noise_multiplier / math.sqrt(self.rounds)
        return (Query(noise_multiplier=together, sampling=self.sampling, count=1),)

    def divisor(self, num_units: int) -> float:
        """What a noisy sum is divided by, where `num_units` units take part and no population is declared."""
        return expected_cohort(self.sampling, self.population or num_units)

    @property
    def reasons(self) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic; without noise any rule of the server will do."""
        return _rule_reasons(self.rule) if self.noise_multiplier else ()

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons


@dataclass(frozen=True, kw_only=True)
class Partition:
    """Users split once into `groups` disjoint groups; replica g trains on group g alone, without noise.

    Which group a user belongs to depends on its identity and the seed, not on anybody's data nor on how many
    users there are. There is no privacy. `pooled` trains on a group's instances as one data set. With `unit`
    instance it is instances that are split, each by its own identity, which is deep partition aggregation.

    Guarantee: k poisoned units touch k models at most, under `join` and under `replace` alike. Proof: a unit
    that joins has an identity of its own, so it enters one group and leaves all others as they were. A unit
    that is replaced keeps its identity, hence its group: what it holds now is in the one model that what it
    held before was in. (Were groups chosen by content, as by a hash of the instance, a replaced unit could
    leave one group and enter another, and `replace` would cost two models for each unit.)
    Assumes: identities are given out once and not used again; no unit has two.

    Reference: Cao, Zhang, Jia, Gong 2022 (FLCert-D), arXiv:2210.00584; Levine, Feizi 2021 (DPA),
    arXiv:2006.14768.
    """

    groups: int
    rounds: int = 1
    pooled: bool = False
    unit: Unit = Unit.USER
    reasons: ClassVar[tuple[str, ...]] = ()
    queries: ClassVar[tuple[Query, ...]] = ()

    def __post_init__(self) -> None:
        check.count(groups=self.groups, rounds=self.rounds)
        _check_drawn_unit(self)
        if self.groups < 2:
            raise ValueError(f"groups = {self.groups} must be at least 2: one model has nobody to outvote it")

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons


@dataclass(frozen=True, kw_only=True)
class FedAvg:
    """Federated averaging without privacy: no noise, hence no guarantee."""

    rounds: int
    sampling: Sampling
    population: int | None = None
    unit: ClassVar[Unit] = Unit.USER
    reasons: ClassVar[tuple[str, ...]] = ("no noise is added: there is no guarantee",)

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        _check_population(self)

    def divisor(self, num_units: int) -> float:
        """What the sum of updates is divided by, where `num_units` users take part and none are declared."""
        return expected_cohort(self.sampling, self.population or num_units)

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons


@dataclass(frozen=True, kw_only=True)
class Queries:
    """A mechanism of which only the Gaussian queries are known, as read from another library's event."""

    queries: tuple[Query, ...]
    unit: Unit = Unit.USER
    reasons: tuple[str, ...] = ()

    def reasons_under(self, relation: Relation) -> tuple[str, ...]:
        """Why the guarantee would only be heuristic under one relation."""
        return self.reasons


PrivateMechanism = UserFedAvg | InstanceFedSGD | InstanceFedAvg | CohortOnce | Queries
Mechanism = PrivateMechanism | Partition | FedAvg


def _check_population(mechanism: "UserFedAvg | InstanceFedAvg | CohortOnce | FedAvg") -> None:
    population, sampling = mechanism.population, mechanism.sampling
    if population is None:
        return
    check.count(population=population)
    if isinstance(sampling, FixedSize) and sampling.users != population:
        raise ValueError(f"population = {population} must be sampling.users = {sampling.users}")


def _size_reasons(mechanism: "InstanceFedSGD | InstanceFedAvg", relation: Relation) -> tuple[str, ...]:
    """Why chances that follow from sizes void what is proved about instances that join."""
    if not mechanism.by_size or relation is not Relation.JOIN:
        return ()
    return (
        "the chance of an instance to enter a batch follows from how many instances users hold: one that "
        "joins changes the chances of others",
    )


def _rule_reasons(rule: str) -> tuple[str, ...]:
    """Why a rule other than the mean voids the sensitivity that the noise was made for."""
    if rule == "mean":
        return ()
    return (
        f"the rule {rule} looks at every update by itself before noise hides it: one unit may move its "
        "result by more than the clip norm that the noise was made for",
    )
