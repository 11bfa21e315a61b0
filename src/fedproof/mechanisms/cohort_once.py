"""Cohorts drawn once, and disjoint groups: the same members in every round, averaged or on pooled data."""

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms.augment import Augment
from fedproof.mechanisms.clipping import bound, unbounded
from fedproof.mechanisms.cores import on_cores
from fedproof.mechanisms.gradients import Draw, Tally, clipped_sums
from fedproof.mechanisms.local import Batch, descend, descent
from fedproof.mechanisms.noise import add_noise
from fedproof.mechanisms.randomness import Stream
from fedproof.mechanisms.rounds import RoundReport, Setting, State, Streams, report
from fedproof.mechanisms.sampling import expected_cohort
from fedproof.mechanisms.user_fedavg import gather_updates
from fedproof.protocol import CohortOnce, Flat, Partition


def play(
    mechanism: CohortOnce | Partition, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """The state after one round among the members of each replica's cohort.

    Guarantee: nobody outside the cohort has any influence. With noise the round is that of `UserFedAvg`, or
    one step on the drawn instances: a Gaussian mechanism whose sum is divided by the expected cohort. Without
    noise nothing is claimed about a single member, and the members' mean is taken.
    """
    if mechanism.pooled:
        if isinstance(mechanism, CohortOnce) and mechanism.noise_multiplier:
            return _noisy_step(mechanism, setting, state, streams)
        return _pooled(setting, state, streams)
    handed_in = gather_updates(setting, state, streams, shared)
    if isinstance(mechanism, Partition) or not mechanism.noise_multiplier:
        plain = unbounded(handed_in)
        members = plain.contributions.present.sum(1).clamp(min=1).unsqueeze(1)
        return _moved(state, setting.aggregation(plain.contributions) / members), report(plain)
    bounded = bound(handed_in, Flat(), state.clip_norms)
    total = setting.aggregation(bounded.contributions)
    return _moved(state, _noisy_mean(mechanism, setting, state, streams, total)), report(bounded)


def _noisy_mean(
    mechanism: CohortOnce, setting: Setting, state: State, streams: Streams, total: Tensor
) -> Tensor:
    """Sums `(replicas, dim)` of what was clipped, noised, divided by a number that nobody's draw changes."""
    noise_std = (mechanism.noise_multiplier * state.clip_norms).to(total.dtype).unsqueeze(1)
    noisy = add_noise(total, noise_std, setting.model.layout.layer_sizes, streams.noise)
    return noisy / expected_cohort(mechanism.sampling, setting.users.num_users)


def _moved(state: State, update: Tensor) -> State:
    return State(round=state.round + 1, params=state.params + update, clip_norms=state.clip_norms)


# --- one noisy step on the drawn instances ------------------------------------------------------------------


def _noisy_step(
    mechanism: CohortOnce, setting: Setting, state: State, streams: Streams
) -> tuple[State, RoundReport]:
    chosen = streams.cohorts[:, state.round]
    tally = Tally(len(chosen), state.params)
    total = clipped_sums(
        setting,
        state.params,
        _drawn(chosen, state.params.device),
        mechanism.clip_norm,
        tally,
        width=setting.local.batch_size,
    )
    gradient = _noisy_mean(mechanism, setting, state, streams, total)
    params = state.params.clone()
    descend(params, torch.zeros_like(params), gradient, setting.local)
    after = replace(state, round=state.round + 1, params=params)
    return after, tally.report(chosen.sum(axis=1), mechanism.clip_norm)


def _drawn(chosen: NDArray[np.bool_], device: torch.device) -> Draw:
    """The instances of each replica; units are instances here, so a unit's number is its row."""
    arrays = (np.nonzero(chosen)[1], chosen.sum(axis=1))
    return Draw.of(*(torch.from_numpy(array).to(device) for array in arrays))


# --- the members' instances as one data set -----------------------------------------------------------------


def _pooled(setting: Setting, state: State, streams: Streams) -> tuple[State, RoundReport]:
    chosen = streams.cohorts[:, state.round]
    sizes = chosen.astype(np.int64) @ setting.users.sizes
    augment = Augment.of(setting.local, setting.seed, state.round)
    update = torch.zeros_like(state.params)
    # Replicas with many instances first, so that those who stop early stand last in their stack.
    by_size = np.argsort(-sizes, kind="stable")
    stacks = [by_size[begin : begin + setting.stack] for begin in range(0, len(by_size), setting.stack)]

    def train(replicas: NDArray[np.int64]) -> None:
        where = torch.from_numpy(replicas).to(update.device)
        batches = _batches(setting, chosen[replicas], [streams.batches[row] for row in replicas])
        update[where] = descent(
            setting.model, setting.users, setting.local, state.params[where], batches, augment
        )

    on_cores(train, stacks, setting.cores)
    return _moved(state, update), _report(chosen, update)


def _batches(setting: Setting, chosen: NDArray[np.bool_], streams: Sequence[Stream]) -> Iterator[Batch]:
    """Batches of the pooled instances of stacked replicas, sorted by falling number of instances."""
    device = setting.users.labels.device
    owners = chosen[:, np.repeat(np.arange(chosen.shape[1]), setting.users.sizes)]
    counts = owners.sum(axis=1)
    table = np.zeros((len(chosen), max(1, int(counts[0]))), dtype=np.int64)
    table[np.arange(table.shape[1]) < counts[:, None]] = np.nonzero(owners)[1]
    rows = torch.from_numpy(table).to(device)
    for epoch in range(setting.local.epochs):
        yield from _epoch(epoch, rows.gather(1, _order(counts, rows, streams)), counts, setting)


def _order(counts: NDArray[np.int64], rows: Tensor, streams: Sequence[Stream]) -> Tensor:
    keys = torch.full(rows.shape, 2.0, dtype=torch.float64, device=rows.device)  # padding comes last
    for own, count, stream in zip(keys, counts.tolist(), streams, strict=True):
        stream.uniform_(own[:count])
    return keys.argsort(dim=1, stable=True)


def _epoch(epoch: int, order: Tensor, counts: NDArray[np.int64], setting: Setting) -> Iterator[Batch]:
    size = setting.local.batch_size
    left = torch.from_numpy(counts).to(order.device).unsqueeze(1)
    for begin in range(0, int(counts[0]), size):
        active = int((counts > begin).sum())
        rows = order[:active, begin : begin + size]
        place = torch.arange(begin, begin + rows.shape[1], device=order.device)
        yield Batch(
            epoch=epoch,
            step=begin // size,
            active=active,
            rows=rows,
            inside=place < left[:active],
            sizes=(left[:active] - begin).clamp(max=size),
        )


def _report(chosen: NDArray[np.bool_], update: Tensor) -> RoundReport:
    norms = torch.linalg.vector_norm(update.double(), dim=1)
    nothing = torch.zeros_like(norms)
    return RoundReport(
        cohort_size=torch.from_numpy(chosen.sum(axis=1)).to(update.device),
        mean_norm=norms,
        clipped_share=nothing,
        non_finite=(~norms.isfinite()).double(),
        clip_norm=torch.full_like(norms, torch.inf),
    )
