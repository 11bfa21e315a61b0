"""Who takes part in which round, by the units' identities."""

import numpy as np
from numpy.typing import NDArray

from fedproof.lots import draw_cohorts
from fedproof.mechanisms import Groups, Mechanism
from fedproof.rounds.randomness import group_generator


def cohorts_of(
    mechanism: Mechanism, ids: NDArray[np.int64], seed: int, replicas: range, *, secure: bool = False
) -> NDArray[np.bool_]:
    """Who of the units with identities `ids` takes part in which round, `(replicas, rounds, units)`.

    The groups of a partition follow from the seed even where all that is secret is `secure`: all replicas
    must agree on them, and nothing rests on their being unknown.

    Guarantee: the same units in every round of a replica where the cohort is drawn once, else anew in each.
    Except where cohorts have a fixed size, whether a unit takes part depends on its identity alone.
    """
    sampling, rounds = mechanism.sampling, 1 if mechanism.once else mechanism.rounds
    if isinstance(sampling, Groups):
        drawn = _members(sampling.count, ids, seed, replicas)
    else:
        drawn = draw_cohorts(sampling, ids, rounds, seed, replicas, secure=secure)
    # A view where they are drawn once: with many instances and rounds a copy would fill the memory.
    return np.broadcast_to(drawn, (len(drawn), mechanism.rounds, len(ids)))


def _members(groups: int, ids: NDArray[np.int64], seed: int, replicas: range) -> NDArray[np.bool_]:
    """Who is in the group of each replica, `(replicas, 1, units)`."""
    if replicas.stop > groups:
        raise ValueError(f"replica {replicas.stop - 1} must be below groups = {groups}")
    wanted = np.arange(replicas.start, replicas.stop)[:, None, None]
    return np.asarray(groups_of(groups, ids, seed) == wanted)


def groups_of(groups: int, ids: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The group of each unit (user or instance).

    Guarantee: a unit's group depends on its identity and the seed alone: each block of `groups` consecutive
    identities is spread over all groups in a random order of its own. Where identities count from zero, the
    sizes of groups differ by at most one and no group is empty.

    >>> bool((groups_of(3, np.arange(7), seed=0)[3:] == groups_of(3, np.arange(3, 100), seed=0)[:4]).all())
    True
    """
    Groups(count=groups).check_units(len(ids))
    blocks, places = np.divmod(ids, groups)
    known, block = np.unique(blocks, return_inverse=True)
    orders = np.stack([group_generator(seed, number).permutation(groups) for number in known.tolist()])
    return np.asarray(orders[block, places])
