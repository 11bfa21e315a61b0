"""Who is drawn: random numbers that units draw by their identity, and the cohorts that follow from them.

Shared by the engine and by the server of a real federation, so that both draw the same users.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof import seeds
from fedproof.mechanisms import Everyone, FixedSize, Groups, Mechanism, Poisson, Sampling
from fedproof.seeds import SecureGenerator

# Constants of SplitMix64 as signed numbers: arithmetic of int64 wraps around in NumPy and torch alike.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


class Purpose(IntEnum):
    """First entry of the spawn key, see `rounds.randomness`."""

    INITIAL = 0
    ORDER = 1
    COHORT = 2
    NOISE = 3
    BATCH = 4
    AUGMENT = 5
    GROUP = 6
    START = 7
    RELEASE = 8


_SECRET = (Purpose.COHORT, Purpose.NOISE, Purpose.BATCH, Purpose.RELEASE)


def sequence(seed: int, purpose: Purpose, *path: int) -> np.random.SeedSequence:
    """What the random numbers of a purpose, of a replica, round or unit, start from.

    What privacy rests on follows from the whole seed; the rest from the half that runs may have in common.
    """
    return seeds.sequence(seed if purpose in _SECRET else seeds.common_half(seed), int(purpose), *path)


Numbers = np.random.Generator | SecureGenerator
"""What uniform and normal numbers are drawn from."""


def private_numbers(seed: int, purpose: Purpose, *path: int, secure: bool) -> Numbers:
    """The random numbers of one replica, or unit, for one purpose: of the seed, or the operating system."""
    return SecureGenerator() if secure else np.random.default_rng(sequence(seed, purpose, *path))


class Lots:
    """Uniform numbers that units draw by their identity, anew in every draw of every replica.

    Guarantee: a unit's number depends on the seed, the replica, the draw and its identity, and on nothing
    else: whoever joins or leaves changes no other unit's number. From the operating system (`secure`) numbers
    are fresh each time, hence independent of everything.

    Number i of a draw is element i of a sequence of SplitMix64, which computes each element by itself; its
    start is an element of the replica's own sequence.
    Reference: Steele, Lea, Flood 2014, Fast splittable pseudorandom number generators, OOPSLA.

    >>> lots = Lots(0, Purpose.COHORT, range(2))
    >>> few, many = (lots.draw(np.array([5]), np.array([1]), np.array([ids])) for ids in ([3], [9, 3]))
    >>> bool(few[0, 0] == many[0, 1])
    True
    """

    def __init__(self, seed: int, purpose: Purpose, replicas: Sequence[int], *, secure: bool = False) -> None:
        self.secure = secure
        states = (
            []
            if secure
            else [sequence(seed, purpose, replica).generate_state(1, np.uint64) for replica in replicas]
        )
        self._states = np.concatenate([np.empty(0, np.uint64), *states]).view(np.int64)

    def starts(self, numbers: NDArray[np.int64], replica: NDArray[np.int64]) -> NDArray[np.int64]:
        """Starts `(rows, 1)` of draws `numbers` (rows,) of the replicas with these indices."""
        return np.asarray(_mixed(self._states[replica] + (numbers + 1) * _GAMMA)[:, None])

    def draw(
        self, numbers: NDArray[np.int64], replica: NDArray[np.int64], ids: NDArray[np.int64]
    ) -> NDArray[np.float64]:
        """Numbers in [0, 1) for `ids` (rows, units): row r is draw `numbers[r]` of replica `replica[r]`."""
        if self.secure:
            return SecureGenerator().random(ids.shape)
        return np.asarray(element(self.starts(numbers, replica), ids) * np.float64(2.0**-53))


def element(starts: Any, ids: Any) -> Any:
    """The upper 53 bits of elements `ids` of sequences: all that a float64 in [0, 1) can hold.

    For arrays and tensors of int64 alike.
    """
    return (_mixed(ids * _GAMMA + starts) >> 11) & (2**53 - 1)


def scattered(ids: NDArray[np.int64]) -> NDArray[np.int64]:
    """Identities as numbers of 63 bits that look random, each a function of one identity."""
    return np.asarray((_mixed(ids * _GAMMA) >> 1) & (2**63 - 1))


def _mixed(state: Any) -> Any:
    """The finaliser of SplitMix64, a bijection of 64 bits; shifts are made logical by a mask."""
    for bits, factor in zip((30, 27), _FACTORS, strict=True):
        state = (state ^ ((state >> bits) & (2 ** (64 - bits) - 1))) * factor
    return state ^ ((state >> 31) & (2**33 - 1))


_AT_ONCE = 2**16  # numbers: enough for speed, and half a megabyte


def draw_cohorts(
    sampling: Sampling,
    ids: NDArray[np.int64],
    rounds: int,
    seed: int,
    replicas: range,
    *,
    secure: bool = False,
) -> NDArray[np.bool_]:
    """Whether a unit takes part, `(replicas, rounds, units)`.

    Guarantee: except where cohorts have a fixed size, whether a unit takes part depends on its identity
    alone.
    """
    sampling.check_units(len(ids))
    chosen = np.ones((len(replicas), rounds, len(ids)), dtype=np.bool_)
    if isinstance(sampling, Everyone):
        return chosen
    lots = Lots(seed, Purpose.COHORT, replicas, secure=secure)
    drawn = chosen.reshape(-1, len(ids))  # a row for each round of each replica
    step = max(1, _AT_ONCE // max(1, len(ids)))
    for begin in range(0, len(drawn), step):
        row = np.arange(begin, min(begin + step, len(drawn)))
        numbers = lots.draw(row % rounds, row // rounds, np.broadcast_to(ids, (len(row), len(ids))))
        drawn[row] = _chosen(sampling, numbers)
    return chosen


def _chosen(sampling: Poisson | FixedSize, numbers: NDArray[np.float64]) -> NDArray[np.bool_]:
    if isinstance(sampling, Poisson):
        return numbers < sampling.probability
    # The users with the smallest of independent uniform numbers are a uniformly random subset.
    chosen = np.zeros(numbers.shape, dtype=np.bool_)
    smallest = np.argpartition(numbers, sampling.cohort - 1, axis=1)[:, : sampling.cohort]
    np.put_along_axis(chosen, smallest, True, axis=1)
    return chosen


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


def _members(groups: int | None, ids: NDArray[np.int64], seed: int, replicas: range) -> NDArray[np.bool_]:
    """Who is in the group of each replica, `(replicas, 1, units)`."""
    count = len(ids) if groups is None else groups
    if replicas.stop > count:
        raise ValueError(f"replica {replicas.stop - 1} must be below groups = {count}")
    wanted = np.arange(replicas.start, replicas.stop)[:, None, None]
    own = np.arange(count) if groups is None else groups_of(groups, ids, seed)
    return np.asarray(own == wanted)


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
    generators = (np.random.default_rng(sequence(seed, Purpose.GROUP, number)) for number in known.tolist())
    orders = np.stack([generator.permutation(groups) for generator in generators])
    return np.asarray(orders[block, places])
