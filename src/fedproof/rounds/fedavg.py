"""Federated averaging without privacy: the same round, without bound and noise."""

from torch import Tensor

from fedproof.mechanisms import FedAvg
from fedproof.rounds.clipping import unbounded
from fedproof.rounds.state import RoundReport, Setting, State, Streams, report
from fedproof.rounds.user_fedavg import gather_updates


def play(
    mechanism: FedAvg, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """The state after one round: local updates, sum, divide by the expected cohort. There is no guarantee."""
    handed_in = unbounded(gather_updates(setting, state, streams, shared))
    total = setting.aggregation(handed_in.contributions)
    cohort = mechanism.divisor(setting.users.num_users)
    after = State(round=state.round + 1, params=state.params + total / cohort, clip_norms=state.clip_norms)
    return after, report(handed_in)
