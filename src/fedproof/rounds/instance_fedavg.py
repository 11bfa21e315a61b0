"""InsDP-FedAvg: users run DP-SGD, the server averages."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms import InstanceFedAvg, LocalTraining
from fedproof.rounds.clipping import unbounded
from fedproof.rounds.instance import PrivateTraining, private_updates
from fedproof.rounds.state import RoundReport, Setting, State, Streams


def play(
    mechanism: InstanceFedAvg, setting: Setting, state: State, streams: Streams
) -> tuple[State, RoundReport]:
    """The state after one round: noisy local steps, sum, divide by the expected cohort.

    Guarantee: all that leaves a user has been noised there; the server's work is post-processing.
    """
    training = PrivateTraining(
        steps=mechanism.local_steps,
        clip_norm=mechanism.clip_norm,
        noise_std=mechanism.noise_multiplier * mechanism.clip_norm,
        batch_probability=batch_probabilities(mechanism, setting.local, setting.users.sizes),
        shuffled=mechanism.shuffled,
    )
    velocity = _velocity(setting, state) if mechanism.keep_momentum else None
    handed_in, report = private_updates(training, setting, state, streams, velocity)
    total = setting.aggregation(unbounded(handed_in).contributions)
    cohort = mechanism.divisor(setting.users.num_users)
    after = State(
        round=state.round + 1,
        params=state.params + total / cohort,
        clip_norms=state.clip_norms,
        velocity=velocity,
    )
    return after, report


def _velocity(setting: Setting, state: State) -> Tensor:
    """Everybody's momentum as the last round left it, to go on with."""
    if state.velocity is None:
        return state.params.new_zeros((len(state.params) * setting.users.num_users, state.params.shape[1]))
    return state.velocity.clone()


def batch_probabilities(
    mechanism: InstanceFedAvg, local: LocalTraining, sizes: NDArray[np.int64]
) -> NDArray[np.float64]:
    """Chance `(users,)` that an instance enters a batch: the declared one, or the batch size over the user's.

    Guarantee: no user's chance is above the one that is accounted.
    """
    if not mechanism.by_size:
        return np.full(len(sizes), mechanism.batch_probability)
    chances = np.minimum(1, local.batch_size / sizes)
    if chances.max() > mechanism.batch_probability * (1 + 1e-9):
        raise ValueError(
            f"batch_probability = {mechanism.batch_probability} must be at least batch_size / size of the "
            f"smallest user = {local.batch_size}/{sizes.min()} = {chances.max():.6g}: it is what is accounted"
        )
    return chances
