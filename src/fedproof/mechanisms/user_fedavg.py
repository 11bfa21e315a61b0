"""User-level DP-FedAvg, and federated averaging without privacy."""

import math
from dataclasses import dataclass, field
from typing import ClassVar

from fedproof.mechanisms.clipping import Clipping, Flat
from fedproof.mechanisms.contract import Mechanism, Query, noisy_sum_in_words, unmet_by_rule
from fedproof.mechanisms.sampling import Sampling
from fedproof.statements import Statement
from fedproof.threat import Relation


@dataclass(frozen=True, kw_only=True)
class UserFedAvg(Mechanism):
    """User-level DP-FedAvg: clipped, noised sum of the cohort's updates, divided by the expected cohort.

    `population` is the declared number of users, which the divisor is made from; None leaves it to whoever
    executes the mechanism, who must not change it when somebody joins.

    Guarantee: each round is one Gaussian query with sensitivity `clip_norm * clipping.sensitivity` per user.

    >>> from fedproof.mechanisms import Poisson
    >>> UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1)).queries
    (Query(noise_multiplier=1.8, sampling=Poisson(probability=0.1), count=3, selection_probability=1.0),)
    """

    rounds: int
    noise_multiplier: float
    sampling: Sampling
    clip_norm: float = 1.0
    clipping: Clipping = field(default_factory=Flat)
    rule: str = "mean"
    adversaries: int = 0
    population: int | None = None
    kind: ClassVar[str] = "user-fedavg"
    executor: ClassVar[str] = "fedproof.rounds.user_fedavg"

    @property
    def effective_noise_multiplier(self) -> float:
        """Noise multiplier of one Gaussian query that stands for all that a round releases.

        The update has standard deviation σS and norm S, the bit of an adaptive clip norm σ_b and 1/2.
        """
        per_sensitivity = self.noise_multiplier / self.clipping.sensitivity
        if self.clipping.bit_noise is None:
            return per_sensitivity
        return 1 / math.hypot(1 / per_sensitivity, 1 / (2 * self.clipping.bit_noise))

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of the whole training sees."""
        noise = self.effective_noise_multiplier
        return (Query(noise_multiplier=noise, sampling=self.sampling, count=self.rounds),)

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """The clip norm may depend on data without noise, and a rule other than the mean be used."""
        return self.clipping.unmet + unmet_by_rule(self.rule)

    def in_words(self) -> tuple[str, ...]:
        return (*super().in_words(), *noisy_sum_in_words(self))


@dataclass(frozen=True, kw_only=True)
class FedAvg(Mechanism):
    """Federated averaging without privacy: no noise, hence no guarantee."""

    rounds: int
    sampling: Sampling
    population: int | None = None
    kind: ClassVar[str] = "fedavg"
    executor: ClassVar[str] = "fedproof.rounds.user_fedavg"
    unaccounted: ClassVar[str] = (
        "FedAvg adds no noise and has no privacy guarantee: use UserFedAvg with a noise_multiplier"
    )
    noise_multiplier = 0.0
    queries = ()

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """There is no guarantee at all."""
        return (Statement.of("no-noise"),)

    def in_words(self) -> tuple[str, ...]:
        return (*super().in_words(), "updates are averaged, and no noise is added")
