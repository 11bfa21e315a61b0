"""InsDP-FedSGD."""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.mechanisms.caveats import Caveat, size_caveats
from fedproof.mechanisms.contract import Mechanism, noise_in_words
from fedproof.mechanisms.query import Query
from fedproof.mechanisms.sampling import FixedSize, Poisson, digits
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
    step_options: ClassVar[frozenset[str]] = DP_SGD_OPTIONS
    local_steps: ClassVar[int] = 1
    shuffled: ClassVar[bool] = False
    keep_momentum: ClassVar[bool] = False
    unit = Unit.INSTANCE

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.not_negative_count(adversaries=self.adversaries)
        check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)
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

    def caveats(self, relation: Relation) -> tuple[Caveat, ...]:
        """A rule other than the sum may be used, and chances may follow from sizes."""
        found = size_caveats() if self.by_size and relation is Relation.JOIN else ()
        if self.rule == "mean":
            return found
        noise = Caveat(
            code="noise-of-the-sum",
            sentence=(
                f"the noise of all users adds up in a sum only, which the rule {self.rule} does not compute"
            ),
            remedy='Set aggregation.rule = "mean": the certificate itself withstands poisoning.',
        )
        return (noise, *found)

    def in_words(self) -> tuple[str, ...]:
        """Rounds, cohorts, batches, clipping, noise of each user, what is seen."""
        noise, cohort = noise_in_words(self.noise_multiplier), self.sampling.cohort
        return (
            *super().in_words(),
            "every instance of a drawn user enters that user's batch independently with probability "
            f"{digits(self.batch_probability)}",
            "the gradient of each instance is clipped to norm S",
            f"each drawn user adds {noise} to the SUM of its clipped gradients",
            f"only the total over all {cohort} users is ever seen, divided by a number fixed beforehand",
        )

    def batch_probabilities(self, sizes: NDArray[np.int64], batch_size: int) -> NDArray[np.float64]:
        """Chance `(users,)` that an instance enters a batch: for all the declared one."""
        return np.full(len(sizes), self.batch_probability)
