"""DP-SGD of many (replica, user) pairs at once, on Poisson batches of each user's own instances."""

from collections.abc import Sequence
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
    """

    steps: int
    clip_norm: float
    noise_std: float
    batch_probability: NDArray[np.float64]


def private_updates(
    training: PrivateTraining, setting: Setting, state: State, streams: Streams
) -> tuple[Contributions, RoundReport]:
    """What the members of the round's cohorts hand in after `training.steps` noisy steps each.

    Guarantee: given the models before it, each step is a Gaussian mechanism on a Poisson batch: noise of
    standard deviation `noise_std` on a sum to which one instance adds at most `clip_norm`.
    """
    cohort = cohort_of(streams.cohorts[:, state.round])
    replica = torch.from_numpy(cohort.replica).to(state.params.device)
    start = state.params[replica]
    params, velocity, tally = start.clone(), torch.zeros_like(start), Tally(len(replica), start)
    sampler = _Sampler.of(training, setting.users, cohort, start.device)
    for _ in range(training.steps):
        draw = sampler.draw(streams.batches)
        gradient = clipped_sums(setting, params, draw, training.clip_norm, tally)
        gradient.add_(_noise(cohort, streams.noise, start), alpha=training.noise_std)
        descend(params, velocity, gradient.div_(setting.local.batch_size), setting.local)
    updates = start.new_zeros((*cohort.members.shape, start.shape[1]))
    updates[replica, torch.from_numpy(cohort.slot).to(replica.device)] = params.sub_(start)
    contributions = contributions_of(updates, cohort.members, setting.model.layout.layer_sizes)
    if setting.attack is not None:
        contributions = setting.attack(contributions, state)
    sizes = (cohort.members >= 0).sum(1)
    return contributions, tally.of_replicas(cohort).report(sizes, training.clip_norm)


@dataclass(frozen=True, kw_only=True)
class _Sampler:
    """Poisson batches for the pairs of one round.

    Attributes:
        chance: `(instances,)`, of entering a batch.
        replica: `(pairs, 1)`.
        rows: `(pairs, largest user)`, the rows of each pair's user, and others behind them.
        own: which of `rows` belong to the user.
    """

    chance: Tensor
    replica: Tensor
    rows: Tensor
    own: Tensor

    @staticmethod
    def of(training: PrivateTraining, users: Users, cohort: Cohort, device: torch.device) -> "_Sampler":
        owner = np.repeat(np.arange(users.num_users), users.sizes)
        rows = users.offsets[cohort.user, None] + np.arange(users.sizes.max())
        own = rows < users.offsets[cohort.user + 1, None]
        arrays = (
            training.batch_probability[owner],
            cohort.replica[:, None],
            np.minimum(rows, len(owner) - 1),
            own,
        )
        chance, replica, rows_, own_ = (torch.from_numpy(array).to(device) for array in arrays)
        return _Sampler(chance=chance, replica=replica, rows=rows_, own=own_)

    def draw(self, streams: Sequence[Stream]) -> Draw:
        """The batches of one step; a replica draws for all instances, whoever is in its cohort."""
        # float64: with the 24 bits of float32 a chance could be exceeded by 6e-8, which nobody accounts.
        numbers = torch.empty(
            (len(streams), len(self.chance)), dtype=torch.float64, device=self.chance.device
        )
        for row, stream in zip(numbers, streams, strict=True):
            stream.uniform_(row)
        chosen = (numbers < self.chance)[self.replica, self.rows] & self.own
        # One row more, for padding: all batches may be empty.
        rows = torch.cat([self.rows[chosen], self.replica.new_zeros(1)])
        return Draw(rows=rows, counts=chosen.sum(1))


def _noise(cohort: Cohort, streams: Sequence[Stream], like: Tensor) -> Tensor:
    """Standard normal numbers `(pairs, dim)`, those of a replica's members from its own stream."""
    noise = torch.empty_like(like)
    ends = np.cumsum((cohort.members >= 0).sum(1)).tolist()
    for stream, begin, end in zip(streams, [0, *ends[:-1]], ends, strict=True):
        stream.normal_(noise[begin:end])
    return noise
