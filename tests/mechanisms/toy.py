"""A mechanism in one file: what it is, and how a round of it is executed."""

from dataclasses import dataclass, replace
from typing import ClassVar

from torch import Tensor

from fedproof import check
from fedproof.mechanisms import Everyone, Mechanism, Query
from fedproof.rounds.state import RoundReport, Setting, State, Streams
from fedproof.rounds.user_fedavg import play as averaged


@dataclass(frozen=True, kw_only=True)
class Halved(Mechanism):
    """Everybody takes part in every round, and half of the noisy mean is taken."""

    rounds: int
    noise_multiplier: float
    clip_norm: float = 1.0
    kind: ClassVar[str] = "halved"
    executor: ClassVar[str] = "tests.mechanisms.toy"
    sampling = Everyone()

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.positive(noise_multiplier=self.noise_multiplier, clip_norm=self.clip_norm)

    @property
    def queries(self) -> tuple[Query, ...]:
        return (Query(noise_multiplier=self.noise_multiplier, sampling=self.sampling, count=self.rounds),)


def play(
    mechanism: Halved, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    after, report = averaged(mechanism, setting, state, streams, shared)
    return replace(after, params=(state.params + after.params) / 2), report
