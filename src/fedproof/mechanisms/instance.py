"""DP-SGD of many (replica, user) pairs at once, on batches of each user's own instances."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation import Contributions
from fedproof.mechanisms.gradients import Draw, Tally, clipped_sums
from fedproof.mechanisms.local import descend
from fedproof.mechanisms.randomness import Stream
from fedproof.mechanisms.rounds import (
    Cohort,
    RoundReport,
    Setting,
    State,
    Streams,
    cohort_of,
    contributions_of,
)
from fedproof.mechanisms.users import Users


@dataclass(frozen=True, kw_only=True)
class PrivateTraining:
    """How a user trains with DP-SGD.

    Attributes:
        steps: number of noisy steps.
        clip_norm: bound on the gradient of one instance.
        noise_std: standard deviation of the noise on the sum of a batch.
        batch_probability: `(users,)`, chance that an instance of the user enters a batch.
        shuffled: whether batches are parts of shuffled passes instead of Poisson samples.
    """

    steps: int
    clip_norm: float
    noise_std: float
    batch_probability: NDArray[np.float64]
    shuffled: bool = False


def private_updates(
    training: PrivateTraining,
    setting: Setting,
    state: State,
    streams: Streams,
    velocity: Tensor | None = None,
) -> tuple[Contributions, RoundReport]:
    """What the members of the round's cohorts hand in after `training.steps` noisy steps each.

    Guarantee: given the models before it, each step is a Gaussian mechanism on a batch, a Poisson sample
    unless `shuffled`: noise of standard deviation `noise_std` on a sum to which one instance adds at most
    `clip_norm`.

    Args:
        training: what members do.
        setting: what stays the same.
        state: the models before the round.
        streams: the randomness.
        velocity: `(pairs, dim)`, momentum to begin with, changed in place; None begins at rest.
    """
    cohort = cohort_of(streams.cohorts[:, state.round])
    replica = torch.from_numpy(cohort.replica).to(state.params.device)
    start = state.params[replica]
    velocity = torch.zeros_like(start) if velocity is None else velocity
    params, tally = start.clone(), Tally(len(replica), start)
    rows = _Rows.of(setting.users, cohort, start.device)
    for draw, divisors in _draws(training, setting, rows, streams.batches):
        gradient = clipped_sums(setting, params, draw, training.clip_norm, tally)
        gradient.add_(_noise(cohort, streams.noise, start), alpha=training.noise_std)
        descend(params, velocity, gradient.div_(divisors), setting.local)
    updates = start.new_zeros((*cohort.members.shape, start.shape[1]))
    updates[replica, torch.from_numpy(cohort.slot).to(replica.device)] = params.sub_(start)
    contributions = contributions_of(updates, cohort.members, setting.model.layout.layer_sizes)
    if setting.attack is not None:
        contributions = setting.attack(contributions, state)
    sizes = (cohort.members >= 0).sum(1)
    return contributions, tally.of_replicas(cohort).report(sizes, training.clip_norm)


# --- batches ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The instances of the pairs of one round.

    Attributes:
        count: instances of the whole federation.
        user: `(pairs,)`.
        replica: `(pairs, 1)`.
        rows: `(pairs, largest user)`, the rows of each pair's user, and others behind them.
        own: which of `rows` belong to the user.
    """

    count: int
    user: NDArray[np.int64]
    replica: Tensor
    rows: Tensor
    own: Tensor

    @staticmethod
    def of(users: Users, cohort: Cohort, device: torch.device) -> "_Rows":
        count = int(users.offsets[-1])
        rows = users.offsets[cohort.user, None] + np.arange(users.sizes.max())
        arrays = (
            cohort.replica[:, None],
            np.minimum(rows, count - 1),
            rows < users.offsets[cohort.user + 1, None],
        )
        replica, there, own = (torch.from_numpy(array).to(device) for array in arrays)
        return _Rows(count=count, user=cohort.user, replica=replica, rows=there, own=own)

    def numbers(self, streams: Sequence[Stream]) -> Tensor:
        """A uniform number for each of `rows`; a replica draws for all instances, whoever is drawn."""
        # float64: with the 24 bits of float32 a chance could be exceeded by 6e-8, which nobody accounts.
        numbers = torch.empty((len(streams), self.count), dtype=torch.float64, device=self.rows.device)
        for row, stream in zip(numbers, streams, strict=True):
            stream.uniform_(row)
        return numbers[self.replica, self.rows]

    def of_pairs(self, by_user: NDArray[np.generic]) -> Tensor:
        """Values `(users,)` as `(pairs, 1)`."""
        return torch.from_numpy(by_user[self.user, None]).to(self.rows.device)


def _draws(
    training: PrivateTraining, setting: Setting, rows: _Rows, streams: Sequence[Stream]
) -> Iterator[tuple[Draw, Tensor]]:
    """The batches of all steps, and `(pairs, 1)`, what their noisy sums are divided by."""
    if training.shuffled:
        return _passes(training, setting, rows, streams)
    return _poisson(training, setting, rows, streams)


def _poisson(
    training: PrivateTraining, setting: Setting, rows: _Rows, streams: Sequence[Stream]
) -> Iterator[tuple[Draw, Tensor]]:
    """Every instance of a pair by itself, with the user's chance."""
    chance = rows.of_pairs(training.batch_probability)
    divisors = torch.full(rows.replica.shape, float(setting.local.batch_size), device=chance.device)
    for _ in range(training.steps):
        chosen = (rows.numbers(streams) < chance) & rows.own
        yield Draw.of(rows.rows[chosen], chosen.sum(1)), divisors


def _passes(
    training: PrivateTraining, setting: Setting, rows: _Rows, streams: Sequence[Stream]
) -> Iterator[tuple[Draw, Tensor]]:
    """Parts of passes over each pair's instances, every pass in an order of its own."""
    size = setting.local.batch_size
    in_pass = -(-setting.users.sizes // size)
    order, batches, instances = rows.rows, rows.of_pairs(in_pass), rows.of_pairs(setting.users.sizes)
    for step in range(training.steps):
        # Whether anybody begins, cohort or not: how much a replica draws must not depend on its neighbours.
        if (step % in_pass == 0).any():
            keys = torch.where(rows.own, rows.numbers(streams), 2.0)  # what is not the user's own comes last
            fresh = rows.rows.gather(1, keys.argsort(dim=1, stable=True))
            order = torch.where(step % batches == 0, fresh, order)
        place = step % batches * size + torch.arange(size, device=order.device)
        inside = place < instances
        found = order.gather(1, place.clamp(max=order.shape[1] - 1))
        counts = inside.sum(1)
        yield Draw.of(found[inside], counts), counts.unsqueeze(1).float()


# --- noise --------------------------------------------------------------------------------------------------


def _noise(cohort: Cohort, streams: Sequence[Stream], like: Tensor) -> Tensor:
    """Standard normal numbers `(pairs, dim)`, those of a replica's members from its own stream."""
    noise = torch.empty_like(like)
    ends = np.cumsum((cohort.members >= 0).sum(1)).tolist()
    for stream, begin, end in zip(streams, [0, *ends[:-1]], ends, strict=True):
        stream.normal_(noise[begin:end])
    return noise
