"""DP-SGD of many (replica, user) pairs at once, on batches of each user's own instances."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation import Contributions
from fedproof.mechanisms.cores import on_cores
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


@dataclass(frozen=True, kw_only=True)
class _Draw:
    """The batches of one step.

    Attributes:
        rows: rows of the federation, those of one pair after the other, and one more for padding.
        counts: `(pairs,)`, how many of them belong to each pair.
        divisors: `(pairs, 1)`, by which the noisy sums are divided.
    """

    rows: Tensor
    counts: Tensor
    divisors: Tensor

    def batch(self, pairs: Tensor) -> tuple[Tensor, Tensor]:
        """Rows `(len(pairs), width)` and mask of what is no padding."""
        counts = self.counts[pairs].unsqueeze(1)
        begin = (self.counts.cumsum(0) - self.counts)[pairs].unsqueeze(1)
        place = torch.arange(max(1, int(counts.max())), device=self.rows.device)
        mask = place < counts
        return self.rows[torch.where(mask, begin + place, len(self.rows) - 1)], mask


def private_updates(
    training: PrivateTraining,
    setting: Setting,
    state: State,
    streams: Streams,
    velocity: Tensor | None = None,
) -> tuple[Contributions, RoundReport]:
    """What the members of the round's cohorts hand in after `training.steps` noisy steps each.

    Guarantee: given the models before it, each step is a Gaussian mechanism on a Poisson batch: noise of
    standard deviation `noise_std` on a sum to which one instance adds at most `clip_norm`.

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
    params, tally = start.clone(), _Tally(len(replica), start)
    rows = _Rows.of(setting.users, cohort, start.device)
    for draw in _draws(training, setting, rows, streams.batches):
        gradient = _clipped_sums(training, setting, params, draw, tally)
        gradient.add_(_noise(cohort, streams.noise, start), alpha=training.noise_std)
        descend(params, velocity, gradient.div_(draw.divisors), setting.local)
    updates = start.new_zeros((*cohort.members.shape, start.shape[1]))
    updates[replica, torch.from_numpy(cohort.slot).to(replica.device)] = params.sub_(start)
    contributions = contributions_of(updates, cohort.members, setting.model.layout.layer_sizes)
    if setting.attack is not None:
        contributions = setting.attack(contributions, state)
    return contributions, tally.report(cohort, training.clip_norm)


class _Tally:
    """Counts of what was clipped, for each pair."""

    def __init__(self, num_pairs: int, like: Tensor) -> None:
        self._sums = torch.zeros((num_pairs, 4), dtype=torch.float64, device=like.device)

    def add(self, pairs: Tensor, mask: Tensor, norms: Tensor, finite: Tensor, clip_norm: float) -> None:
        """Count the instances of one batch."""
        seen = (mask, norms * mask, (norms > clip_norm) & mask, ~finite & mask)
        self._sums[pairs] += torch.stack([column.double().sum(1) for column in seen], dim=1)

    def report(self, cohort: Cohort, clip_norm: float) -> RoundReport:
        """Report for each replica."""
        grid = self._sums.new_zeros((*cohort.members.shape, 4))
        places = (torch.from_numpy(index).to(grid.device) for index in (cohort.replica, cohort.slot))
        grid[tuple(places)] = self._sums
        seen, length, clipped, bad = grid.sum(1).unbind(1)
        return RoundReport(
            cohort_size=torch.from_numpy((cohort.members >= 0).sum(1)).to(grid.device),
            mean_norm=length / seen.clamp(min=1),
            clipped_share=clipped / seen.clamp(min=1),
            non_finite=bad,
            clip_norm=torch.full_like(seen, clip_norm),
        )


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
) -> Iterator[_Draw]:
    """The batches of all steps."""
    if training.shuffled:
        return _passes(training, setting, rows, streams)
    return _poisson(training, setting, rows, streams)


def _poisson(
    training: PrivateTraining, setting: Setting, rows: _Rows, streams: Sequence[Stream]
) -> Iterator[_Draw]:
    """Every instance of a pair by itself, with the user's chance."""
    chance = rows.of_pairs(training.batch_probability)
    divisors = torch.full(rows.replica.shape, float(setting.local.batch_size), device=chance.device)
    for _ in range(training.steps):
        yield _draw(rows.rows, (rows.numbers(streams) < chance) & rows.own, divisors)


def _passes(
    training: PrivateTraining, setting: Setting, rows: _Rows, streams: Sequence[Stream]
) -> Iterator[_Draw]:
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
        yield _draw(found, inside, inside.sum(1, keepdim=True).float())


def _draw(rows: Tensor, chosen: Tensor, divisors: Tensor) -> _Draw:
    # One row more, for padding: all batches may be empty.
    padded = torch.cat([rows[chosen], rows.new_zeros(1)])
    return _Draw(rows=padded, counts=chosen.sum(1), divisors=divisors)


# --- clipped sums -------------------------------------------------------------------------------------------


def _clipped_sums(
    training: PrivateTraining, setting: Setting, params: Tensor, draw: _Draw, tally: _Tally
) -> Tensor:
    """Sum of clipped gradients `(pairs, dim)` over each pair's batch."""
    total = torch.empty_like(params)

    def work(pairs: Tensor) -> None:
        rows, mask = draw.batch(pairs)
        found = setting.model.clipped_gradient(
            params[pairs], setting.users.features[rows], setting.users.labels[rows], mask, training.clip_norm
        )
        total[pairs] = found.total
        tally.add(pairs, mask, found.norms, found.finite, training.clip_norm)

    on_cores(work, _stacks(draw.counts, setting.stack), setting.cores)
    return total


def _stacks(counts: Tensor, stack: int) -> Iterator[Tensor]:
    # Batches of like size share a stack: Poisson batches differ by half their size, which would be padding.
    if len(counts):
        yield from torch.split(counts.argsort(descending=True, stable=True), stack)


def _noise(cohort: Cohort, streams: Sequence[Stream], like: Tensor) -> Tensor:
    """Standard normal numbers `(pairs, dim)`, those of a replica's members from its own stream."""
    noise = torch.empty_like(like)
    ends = np.cumsum((cohort.members >= 0).sum(1)).tolist()
    for stream, begin, end in zip(streams, [0, *ends[:-1]], ends, strict=True):
        stream.normal_(noise[begin:end])
    return noise
