"""Who takes part in which round."""

import numpy as np
from numpy.typing import NDArray

from fedproof.mechanisms.randomness import cohort_generator, group_generator
from fedproof.protocol import (
    CohortOnce,
    Everyone,
    FixedSize,
    Mechanism,
    Partition,
    Poisson,
    Queries,
    Sampling,
)


def cohorts_of(
    mechanism: Mechanism, num_users: int, seed: int, replicas: range, *, secure: bool = False
) -> NDArray[np.bool_]:
    """Who takes part in which round of a mechanism, `(replicas, rounds, users)`.

    The groups of a partition follow from the seed even where all that is secret is `secure`: all replicas
    must agree on them, and nothing rests on their being unknown.

    Guarantee: the same users in every round of a replica where the cohort is drawn once, else anew in each.
    """
    assert not isinstance(mechanism, Queries)
    if isinstance(mechanism, Partition):
        if replicas.stop > mechanism.groups:
            raise ValueError(f"replica {replicas.stop - 1} must be below groups = {mechanism.groups}")
        wanted = np.arange(replicas.start, replicas.stop)[:, None, None]
        own = groups_of(mechanism.groups, num_users, seed) == wanted
        return np.asarray(own.repeat(mechanism.rounds, axis=1))
    if isinstance(mechanism, CohortOnce):
        once = draw_cohorts(mechanism.sampling, num_users, 1, seed, replicas, secure=secure)
        # A view: with many instances and rounds a copy would fill the memory.
        return np.broadcast_to(once, (len(once), mechanism.rounds, num_users))
    return draw_cohorts(mechanism.sampling, num_users, mechanism.rounds, seed, replicas, secure=secure)


def groups_of(groups: int, num_units: int, seed: int) -> NDArray[np.int64]:
    """The group of each unit (user or instance); sizes differ by at most one.

    Guarantee: a unit's group depends on its number and the seed alone: each block of `groups` units is spread
    over all groups in a random order of its own. No group is empty.

    >>> groups_of(3, 7, seed=0)[:3].tolist() == groups_of(3, 100, seed=0)[:3].tolist()
    True
    """
    if groups > num_units:
        raise ValueError(
            f"groups = {groups} must be at most the number of units = {num_units}: a group without data has "
            "no model"
        )
    blocks = -(-num_units // groups)
    return np.concatenate([group_generator(seed, block).permutation(groups) for block in range(blocks)])[
        :num_units
    ]


def cohort_size(mechanism: Mechanism, num_users: int) -> float:
    """Expected number of users in a round of the mechanism."""
    assert not isinstance(mechanism, Queries)
    if isinstance(mechanism, Partition):
        return num_users / mechanism.groups
    return expected_cohort(mechanism.sampling, num_users)


def draw_cohorts(
    sampling: Sampling, num_users: int, rounds: int, seed: int, replicas: range, *, secure: bool = False
) -> NDArray[np.bool_]:
    """Whether a user takes part, `(replicas, rounds, users)`."""
    check_users(sampling, num_users)
    if isinstance(sampling, Everyone):
        return np.ones((len(replicas), rounds, num_users), dtype=np.bool_)
    chosen = np.empty((len(replicas), rounds, num_users), dtype=np.bool_)
    for row, replica in enumerate(replicas):
        numbers = cohort_generator(seed, replica, secure=secure).random((rounds, num_users))
        chosen[row] = _chosen(sampling, numbers)
    return chosen


def check_users(sampling: Sampling, num_users: int) -> None:
    """Raise ValueError if `sampling` was made for another number of users."""
    if isinstance(sampling, FixedSize) and sampling.users != num_users:
        raise ValueError(f"sampling.users = {sampling.users} must be the number of users = {num_users}")


def expected_cohort(sampling: Sampling, num_users: int) -> float:
    """Expected size of a cohort: the fixed divisor of the sum.

    Guarantee: it does not depend on who was drawn, as the sensitivity of the average demands.

    >>> expected_cohort(Poisson(probability=0.1), 200)
    20.0
    """
    return float(sampling.cohort) if isinstance(sampling, FixedSize) else sampling.probability * num_users


def _chosen(sampling: Poisson | FixedSize, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    if isinstance(sampling, Poisson):
        return numbers < sampling.probability
    # The users with the smallest of independent uniform numbers are a uniformly random subset.
    chosen = np.zeros(numbers.shape, dtype=np.bool_)
    smallest = np.argpartition(numbers, sampling.cohort - 1, axis=1)[:, : sampling.cohort]
    np.put_along_axis(chosen, smallest, True, axis=1)
    return chosen
