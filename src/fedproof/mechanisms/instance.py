"""Users add noise themselves: InsDP-FedSGD, one step a round, and InsDP-FedAvg, several."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedproof import check
from fedproof.arrays import Floats, Integers
from fedproof.mechanisms.contract import DIVIDED, Mechanism, Query, counted, noise_in_words
from fedproof.mechanisms.sampling import Everyone, FixedSize, Poisson, Sampling, digits
from fedproof.statements import Statement
from fedproof.threat import Relation, Unit

DP_SGD_OPTIONS = frozenset(("batch_size", "learning_rate", "momentum", "weight_decay"))


@dataclass(frozen=True, kw_only=True)
class InstanceFedSGD(Mechanism):
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
    adversaries: int = 0
    by_size: bool = False
    kind: ClassVar[str] = "instance-fedsgd"
    executor: ClassVar[str] = "fedproof.rounds.instance"
    step_options: ClassVar[frozenset[str]] = DP_SGD_OPTIONS - {"momentum"}  # a first step has none
    local_steps: ClassVar[int] = 1
    shuffled: ClassVar[bool] = False
    keep_momentum: ClassVar[bool] = False
    unit = Unit.INSTANCE

    def __post_init__(self) -> None:
        super().__post_init__()
        check.probability(batch_probability=self.batch_probability)
        if not isinstance(self.sampling, FixedSize):
            raise ValueError(
                f"sampling = {self.sampling!r} must be FixedSize(cohort=..., users=...): each drawn "
                "user adds its share of the noise, so the size of the cohort must not vary"
            )

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

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """A rule other than the sum may be used, and chances may follow from sizes."""
        noise = [] if self.rule == "mean" else [Statement.of("noise-of-the-sum", rule=self.rule)]
        return (*noise, *_unmet_by_size(self, relation))

    def in_words(self) -> tuple[str, ...]:
        noise, cohort = noise_in_words(self.noise_multiplier), self.sampling.cohort
        return (
            *super().in_words(),
            "every instance of a drawn user enters that user's batch independently with probability "
            f"{digits(self.batch_probability)}",
            "the gradient of each instance is clipped to norm S",
            f"each drawn user adds {noise} to the SUM of its clipped gradients",
            f"only the total over all {cohort} users is ever seen, divided by a number fixed beforehand",
        )

    def batch_probabilities(self, sizes: Integers, batch_size: int) -> Floats:
        """Chance `(users,)` that an instance enters a batch: for all the declared one."""
        return np.full(len(sizes), self.batch_probability)


@dataclass(frozen=True, kw_only=True)
class InstanceFedAvg(Mechanism):
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
    kind: ClassVar[str] = "instance-fedavg"
    executor: ClassVar[str] = "fedproof.rounds.instance"
    step_options: ClassVar[frozenset[str]] = DP_SGD_OPTIONS
    unit = Unit.INSTANCE

    def __post_init__(self) -> None:
        super().__post_init__()
        check.count(local_steps=self.local_steps)
        check.probability(batch_probability=self.batch_probability)
        if self.keep_momentum and not isinstance(self.sampling, Everyone):
            raise ValueError(
                f"keep_momentum = True needs sampling = Everyone(), not {self.sampling!r}: momentum goes on "
                "from one round to the next"
            )

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

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """Batches may be shuffled, and chances may follow from sizes."""
        shuffled = [Statement.of("shuffled-batches")] if self.shuffled else []
        return (*shuffled, *_unmet_by_size(self, relation))

    def in_words(self) -> tuple[str, ...]:
        steps = counted(self.local_steps, "step")
        return (
            f"{counted(self.rounds, 'round')} in which a user takes {steps} on its own data",
            "in each step, every instance of the user enters the batch independently with probability "
            f"{digits(self.batch_probability)} or less",
            "the gradient of each instance is clipped to norm S",
            f"{noise_in_words(self.noise_multiplier)} is added to the SUM of the clipped gradients",
            DIVIDED,
        )

    def check_users(self, sizes: Integers, batch_size: int) -> None:
        """Raise ValueError if an instance of some user enters batches more often than is accounted."""
        self.batch_probabilities(sizes, batch_size)

    def batch_probabilities(self, sizes: Integers, batch_size: int) -> Floats:
        """Chance `(users,)` that an instance enters a batch: declared, or the batch size over the user's.

        Guarantee: no user's chance is above the one that is accounted.
        """
        if not self.by_size:
            return np.full(len(sizes), self.batch_probability)
        chances = np.minimum(1, batch_size / sizes)
        if chances.max() > self.batch_probability * (1 + 1e-9):
            raise ValueError(
                f"batch_probability = {self.batch_probability} must be at least batch_size / size of the "
                f"smallest user = {batch_size}/{sizes.min()} = {chances.max():.6g}: it is what is accounted"
            )
        return chances


def _unmet_by_size(mechanism: Mechanism, relation: Relation) -> tuple[Statement, ...]:
    """Where chances follow from sizes, whoever joins changes the chances of others."""
    joins = mechanism.by_size and relation is Relation.JOIN
    return (Statement.of("chance-by-size"),) if joins else ()
