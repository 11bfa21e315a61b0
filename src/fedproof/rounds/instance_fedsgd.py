"""InsDP-FedSGD: each drawn user hands in one noisy gradient step."""

import numpy as np
from torch import Tensor

from fedproof.mechanisms import InstanceFedSGD
from fedproof.rounds.clipping import unbounded
from fedproof.rounds.instance import PrivateTraining, private_updates
from fedproof.rounds.state import RoundReport, Setting, State, Streams


def play(
    mechanism: InstanceFedSGD, setting: Setting, state: State, streams: Streams, shared: Tensor | None = None
) -> tuple[State, RoundReport]:
    """The state after one round: one noisy step of each member, sum, divide by the cohort.

    Guarantee: the sum of a cohort of m holds noise of standard deviation `√m * noise_multiplier * clip_norm`
    (times learning rate over batch size), to which one instance adds at most `clip_norm` (times the same).
    """
    num_users = setting.users.num_users
    training = PrivateTraining(
        steps=1,
        clip_norm=mechanism.clip_norm,
        noise_std=mechanism.noise_multiplier * mechanism.clip_norm,
        batch_probability=np.full(num_users, mechanism.batch_probability),
    )
    handed_in, report = private_updates(training, setting, state, streams)
    total = setting.aggregation(unbounded(handed_in).contributions)
    cohort = mechanism.divisor(num_users)
    after = State(round=state.round + 1, params=state.params + total / cohort, clip_norms=state.clip_norms)
    return after, report
