"""What a round of any mechanism needs, changes and reports, for a block of replicas."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation import Aggregation, Contributions
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining
from fedproof.models.model import Model, as_inputs, host_tensor
from fedproof.rounds.clipping import Bounded
from fedproof.rounds.randomness import Stream
from fedproof.rounds.stacking import Stacking
from fedproof.seeds import Lots


@dataclass(frozen=True, kw_only=True)
class State:
    """Where a block of replicas stands before a round.

    Attributes:
        round: rounds done.
        params: `(replicas, dim)`, the global models.
        clip_norms: `(replicas,)` in float64; only adaptive clipping changes them.
        velocity: `(replicas * users, dim)`, everybody's momentum, where it is kept from round to round.
    """

    round: int
    params: Tensor
    clip_norms: Tensor
    velocity: Tensor | None = None


Tampering = Callable[[Contributions, State], Contributions]
"""What adversaries do in a round: they see all updates and the global models, and may replace their own.

Called between local training and the server's clipping: at user level nothing the attack returns escapes the
bound. At instance level the server does not clip, because there the threat is poisoned instances.
"""


@dataclass(frozen=True, kw_only=True)
class Users:
    """Instances of all users in one tensor; user u owns rows `offsets[u]:offsets[u + 1]`.

    Attributes:
        features: `(instances, ...)`, floating, or token ids.
        labels: `(instances,)`.
        balance: `(instances,)`, weights with mean one that make all classes of a user count alike.
        offsets: `(users + 1,)`, on the host, where cohorts are put together.
        who: `(users,)`, identities.
        which: `(instances,)`, identities, on the device, where batches are drawn.
        most_instances: how many one user may hold; None if there is no limit.
    """

    features: Tensor
    labels: Tensor
    balance: Tensor
    offsets: NDArray[np.int64]
    who: NDArray[np.int64]
    which: Tensor
    most_instances: int | None

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of instances of each user."""
        return np.diff(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What stays the same over rounds and replicas.

    Attributes:
        model: trained by everybody, its frozen tensors on the device.
        users: the federation's instances on the device.
        local: how a user trains.
        seed: of the order of instances.
        stacking: how many (replica, user) pairs are trained at once.
        cores: number of stacks trained side by side.
        aggregation: rule of the server.
        population: declared number of units; how many there are if none is declared.
        expected_cohort: how many of them are in a cohort on average.
        cohort_spread: standard deviation of this number.
        attack: None if nobody is adversarial.
    """

    model: Model
    users: Users
    local: LocalTraining
    seed: int = field(repr=False)
    stacking: Stacking
    cores: int
    aggregation: Aggregation
    population: int
    expected_cohort: float
    cohort_spread: float
    attack: Tampering | None = None

    def pieces(self, num_replicas: int) -> tuple[float, float]:
        """How many (replica, user) pairs a round has, on average, and the standard deviation: both public."""
        return num_replicas * self.expected_cohort, math.sqrt(num_replicas) * self.cohort_spread


@dataclass(frozen=True, kw_only=True)
class Streams:
    """The randomness of a block of replicas.

    Attributes:
        cohorts: `(replicas, rounds, users)`, who takes part.
        noise: one stream for each replica.
        batches: one stream for each replica, of the order of pooled instances; none if nothing is pooled.
        lots: which instances enter which DP-SGD batch.
    """

    cohorts: NDArray[np.bool_]
    noise: Sequence[Stream]
    batches: Sequence[Stream]
    lots: Lots


@dataclass(frozen=True, kw_only=True)
class RoundReport:
    """What happened in a round, one entry for each replica.

    Attributes:
        cohort_size: number of users drawn.
        mean_norm: mean norm of what is clipped (updates, or per-instance gradients), before clipping.
        clipped_share: share of them that was longer than the clip norm.
        non_finite: number of updates (or gradients) that held NaN or infinity and counted as zero.
        clip_norm: in force; the mean over layers where each has its own.
    """

    cohort_size: Tensor
    mean_norm: Tensor
    clipped_share: Tensor
    non_finite: Tensor
    clip_norm: Tensor


Play = Callable[[Any, Setting, State, Streams, Tensor | None], tuple[State, RoundReport]]
"""One round of a mechanism: the state after it, and what happened."""


def report(bounded: Bounded) -> RoundReport:
    """Report of a round in which whole updates were bounded."""
    present = bounded.contributions.present
    size = present.sum(1)
    norms = bounded.norms.square().sum(2).sqrt()
    longer = (bounded.norms > bounded.thresholds.unsqueeze(1)).any(2)
    return RoundReport(
        cohort_size=size,
        mean_norm=(norms * present).sum(1) / size.clamp(min=1),
        clipped_share=(longer & present).sum(1) / size.clamp(min=1),
        non_finite=(~bounded.finite & present).sum(1),
        clip_norm=bounded.thresholds.mean(1),
    )


@dataclass(frozen=True, kw_only=True)
class Cohort:
    """The members of one round as (replica, user) pairs, and where each stands among its replica's members.

    Attributes:
        replica, user, slot: `(pairs,)`, ordered by replica, then user.
        members: `(replicas, width)`, the user in each slot, -1 where there is none.
    """

    replica: NDArray[np.int64]
    user: NDArray[np.int64]
    slot: NDArray[np.int64]
    members: NDArray[np.int64]


def cohort_of(chosen: NDArray[np.bool_]) -> Cohort:
    """The pairs of `chosen` (replicas, users).

    >>> cohort_of(np.array([[True, False, True], [False, False, True]])).members.tolist()
    [[0, 2], [2, -1]]
    """
    replica, user = np.nonzero(chosen)
    slot = (chosen.cumsum(axis=1) - 1)[replica, user]
    members = np.full((len(chosen), max(1, int(chosen.sum(axis=1).max()))), -1, dtype=np.int64)
    members[replica, slot] = user
    return Cohort(replica=replica, user=user, slot=slot, members=members)


def contributions_of(
    updates: Tensor, members: NDArray[np.int64], layer_sizes: tuple[int, ...]
) -> Contributions:
    """Unbounded contributions of the given `members` (replicas, width)."""
    who = torch.from_numpy(members).to(updates.device)
    present = who >= 0
    return Contributions(
        updates=updates,
        present=present,
        scales=present.unsqueeze(2).to(updates.dtype),
        members=who,
        layer_sizes=layer_sizes,
    )


# --- the users' instances on the device ---------------------------------------------------------------------


def users_on(federation: Federation, device: torch.device, dtype: torch.dtype) -> Users:
    """The users of `federation`, their instances on `device`."""
    return Users(
        features=as_inputs(federation.features, device, dtype),
        labels=host_tensor(federation.labels).to(device),
        balance=torch.from_numpy(class_balance(federation)).to(device, dtype),
        offsets=federation.offsets,
        who=federation.who,
        which=host_tensor(federation.which).to(device),
        most_instances=federation.most_instances,
    )


def class_balance(federation: Federation) -> NDArray[np.float64]:
    """The weight of each instance for its user: its data divided by its classes and by the instance's class.

    Guarantee: a user's weights depend on its own labels alone, and their mean is one.
    """
    owner = np.repeat(np.arange(federation.num_users), federation.sizes)
    _, group, counts = np.unique(
        owner * federation.num_classes + federation.labels, return_inverse=True, return_counts=True
    )
    held = np.bincount(owner, weights=1 / counts[group])  # how many classes a user holds
    return np.asarray(federation.sizes[owner] / (held[owner] * counts[group]))
