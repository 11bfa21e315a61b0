"""Federated averaging without privacy."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.caveats import Caveat
from fedproof.mechanisms.contract import Mechanism, check_population
from fedproof.mechanisms.sampling import Sampling
from fedproof.threat import Relation

_NO_NOISE = Caveat(
    code="no-noise",
    sentence="no noise is added: there is no guarantee",
    remedy=(
        'Set mechanism.kind = "user-fedavg" and mechanism.noise_multiplier: without noise nothing is proved.'
    ),
)


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

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check_population(self)

    def caveats(self, relation: Relation) -> tuple[Caveat, ...]:
        """There is no guarantee at all."""
        return (_NO_NOISE,)

    def in_words(self) -> tuple[str, ...]:
        """Rounds, cohorts, that there is no noise."""
        return (*super().in_words(), "updates are averaged, and no noise is added")
