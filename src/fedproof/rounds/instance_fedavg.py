"""InsDP-FedAvg: users run DP-SGD, the server averages."""

from torch import Tensor

from fedproof.mechanisms import InstanceFedAvg
from fedproof.rounds.clipping import unbounded
from fedproof.rounds.instance import PrivateTraining, private_updates
from fedproof.rounds.state import RoundReport, Setting, State, Streams


def play(
    mechanism: InstanceFedAvg, setting: Setting, state: State, streams: Streams, shared: Tensor | None = None
) -> tuple[State, RoundReport]:
    """The state after one round: noisy local steps, sum, divide by the expected cohort.

    Guarantee: all that leaves a user has been noised there; the server's work is post-processing.
    """
    training = PrivateTraining(
        steps=mechanism.local_steps,
        clip_norm=mechanism.clip_norm,
        noise_std=mechanism.noise_multiplier * mechanism.clip_norm,
        batch_probability=mechanism.batch_probabilities(setting.users.sizes, setting.local.batch_size),
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
