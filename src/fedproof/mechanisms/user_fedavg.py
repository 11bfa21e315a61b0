"""User-level DP-FedAvg, and the updates it shares with FedAvg without privacy."""

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation import Contributions
from fedproof.mechanisms.augment import Augment
from fedproof.mechanisms.clipping import Bounded, bound, next_clip_norms
from fedproof.mechanisms.cores import on_cores
from fedproof.mechanisms.local import local_updates
from fedproof.mechanisms.noise import add_noise
from fedproof.mechanisms.randomness import data_order
from fedproof.mechanisms.rounds import (
    Cohort,
    RoundReport,
    Setting,
    State,
    Streams,
    cohort_of,
    contributions_of,
    report,
)
from fedproof.mechanisms.sampling import expected_cohort
from fedproof.protocol import Quantile, UserFedAvg


def play(
    mechanism: UserFedAvg, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """The state after one round: local updates, clip, sum, noise, divide by the expected cohort.

    Guarantee: given the models before it, a round is a Gaussian mechanism: noise of standard deviation
    `noise_multiplier * clip_norm` on a sum to which a member adds at most `clip_norm * clipping.sensitivity`.

    Args:
        mechanism: what is accounted, hence what is executed.
        setting: model, users, local training.
        state: before the round.
        streams: of the replicas in `state`.
        shared: updates `(users, dim)` if all replicas start this round from the same model, else None.
    """
    handed_in = gather_updates(setting, state, streams, shared)
    bounded = bound(handed_in, mechanism.clipping, state.clip_norms)
    total = setting.aggregation(bounded.contributions)
    noise_std = (mechanism.noise_multiplier * bounded.thresholds).to(total.dtype)
    noisy = add_noise(total, noise_std, setting.model.layout.layer_sizes, streams.noise)
    cohort = expected_cohort(mechanism.sampling, setting.users.num_users)
    clip_norms = _clip_norms(mechanism, bounded, state, streams, cohort)
    after = State(round=state.round + 1, params=state.params + noisy / cohort, clip_norms=clip_norms)
    return after, report(bounded)


def gather_updates(setting: Setting, state: State, streams: Streams, shared: Tensor | None) -> Contributions:
    """What the members of the round's cohorts hand in, after the attack if there is one."""
    chosen = streams.cohorts[:, state.round]
    layer_sizes = setting.model.layout.layer_sizes
    if shared is None:
        cohort = cohort_of(chosen)
        contributions = contributions_of(
            _train(setting, state, cohort, state.params.device), cohort.members, layer_sizes
        )
    else:
        # All that is needed of a table the device may not hold, and one row if all cohorts are empty.
        needed: NDArray[np.bool_] = np.asarray(chosen.any(axis=0))
        # Adversaries know of each other: what they hand in must not depend on who was drawn beside them.
        needed[list(getattr(setting.attack, "adversaries", ()))] = True
        drawn = np.flatnonzero(needed) if needed.any() else np.zeros(1, dtype=np.int64)
        updates = shared[torch.from_numpy(drawn).to(shared.device)].to(state.params.device)
        present = torch.from_numpy(chosen[:, drawn]).to(updates.device)
        contributions = replace(
            contributions_of(updates.unsqueeze(0), drawn[None, :], layer_sizes),
            present=present,
            scales=present.unsqueeze(2).to(updates.dtype),
        )
    return contributions if setting.attack is None else setting.attack(contributions, state)


def first_updates(setting: Setting, initial: Tensor, home: torch.device) -> Tensor:
    """Round-one update `(users, dim)` of every user from the `initial` (dim,) model, kept on `home`."""
    chosen = np.ones((1, setting.users.num_users), dtype=np.bool_)
    start = State(round=0, params=initial.unsqueeze(0), clip_norms=torch.ones(1, dtype=torch.float64))
    return _train(setting, start, cohort_of(chosen), home)[0]


def _train(setting: Setting, state: State, cohort: Cohort, home: torch.device) -> Tensor:
    """Updates `(replicas, members, dim)` of a round, 0 where there is no member, kept on `home`."""
    device, dim = state.params.device, state.params.shape[1]
    updates = torch.zeros((*cohort.members.shape, dim), dtype=state.params.dtype, device=home)
    order = data_order(setting.seed, state.round, setting.users.offsets, setting.local.epochs)
    on_device = torch.from_numpy(order).to(device)
    augment = Augment.of(setting.local, setting.seed, state.round)

    def train(pairs: NDArray[np.int64]) -> None:
        replica, slot = (torch.from_numpy(index[pairs]) for index in (cohort.replica, cohort.slot))
        start = state.params[replica.to(device)]
        trained = local_updates(
            setting.model, setting.users, setting.local, start, cohort.user[pairs], on_device, augment
        )
        updates[replica.to(home), slot.to(home)] = trained.to(home)

    on_cores(train, _stacks(setting, cohort), setting.cores)
    return updates


def _stacks(setting: Setting, cohort: Cohort) -> Iterator[NDArray[np.int64]]:
    # Users of like size share a stack: little padding, and those who stop early stand last.
    by_size = np.argsort(-setting.users.sizes[cohort.user], kind="stable")
    for begin in range(0, len(by_size), setting.stack):
        yield by_size[begin : begin + setting.stack]


def _clip_norms(
    mechanism: UserFedAvg, bounded: Bounded, state: State, streams: Streams, cohort: float
) -> Tensor:
    if not isinstance(mechanism.clipping, Quantile):
        return state.clip_norms
    noise = torch.empty_like(state.clip_norms)
    for row, stream in zip(noise.unsqueeze(1), streams.noise, strict=True):
        stream.normal_(row)
    return next_clip_norms(bounded, mechanism.clipping, state.clip_norms, noise, cohort)
