"""Cohorts drawn once, or disjoint groups, with noise: users' updates, or one step on the instances."""

from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms import Mechanism
from fedproof.rounds import user_fedavg
from fedproof.rounds.clipping import add_noise
from fedproof.rounds.gradients import Draw, Tally, clipped_sums
from fedproof.rounds.local import descend
from fedproof.rounds.state import RoundReport, Setting, State, Streams


def play(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """The state after one round among the members of each replica's cohort, or group.

    Guarantee: nobody outside the cohort has any influence. The round is that of `UserFedAvg`, or one step on
    the drawn instances: a Gaussian mechanism whose sum is divided by the expected cohort.
    """
    if mechanism.pooled:
        return _noisy_step(mechanism, setting, state, streams)
    return user_fedavg.play(mechanism, setting, state, streams, shared)


def _noisy_step(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams
) -> tuple[State, RoundReport]:
    chosen = streams.cohorts[:, state.round]
    tally = Tally(len(chosen), state.params)
    total = clipped_sums(
        setting,
        state.params,
        _drawn(chosen, state.params.device),
        clip_norm=mechanism.clip_norm,
        tally=tally,
        lane=np.arange(len(chosen)),
        pieces=(len(chosen), 0.0),
        width=setting.local.batch_size,
    )
    noise_std = (mechanism.noise_multiplier * state.clip_norms).to(total.dtype).unsqueeze(1)
    noisy = add_noise(total, noise_std, setting.model.layout.layer_sizes, streams.noise)
    gradient = noisy / mechanism.divisor(setting.users.num_users)  # which nobody's draw changes
    params = state.params.clone()
    descend(params, torch.zeros_like(params), gradient, setting.local)
    after = replace(state, round=state.round + 1, params=params)
    return after, tally.report(chosen.sum(axis=1), mechanism.clip_norm)


def _drawn(chosen: NDArray[np.bool_], device: torch.device) -> Draw:
    """The instances of each replica; units are instances here, so a unit's number is its row."""
    arrays = (np.nonzero(chosen)[1], chosen.sum(axis=1))
    return Draw.of(*(torch.from_numpy(array).to(device) for array in arrays))
