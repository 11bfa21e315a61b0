"""Where a run's randomness begins, and who is drawn by it. Free of torch.

It begins with the operating system, or with a seed that somebody chose. Cohorts and noise are part of every
theorem but a partition's: nothing is certified against an adversary who knows them. So the seed is fresh
unless a configuration names one, and a certificate says which it was.
"""

import hashlib
import os
import secrets
from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Self

import numpy as np
from numpy.typing import DTypeLike, NDArray

from fedproof.arrays import Bools, Floats, Integers
from fedproof.mechanisms import Everyone, FixedSize, Groups, Mechanism, Poisson, Sampling

BITS = 128
_CHOSEN = 64  # bits of the longest seed that counts as chosen by somebody
_BLOCK = 1 << 14  # numbers made at once: what lies between bits and numbers stays in the cache


def fresh_seed() -> int:
    """A seed of 128 bits from the operating system: nobody chose it, and nobody can guess it."""
    return secrets.randbits(BITS)


def paired_seed(common: int) -> int:
    """A fresh seed whose `common_half` is `common`: for runs that start alike, each with noise of its own.

    Models with the same noise give it away: two of one kind less one with twice the noise have none.
    """
    return common << BITS | fresh_seed()


def common_half(seed: int) -> int:
    """What initial model and order follow from; cohorts and noise follow from the whole seed.

    >>> common_half(7), common_half(paired_seed(fresh_seed())) < 2**BITS
    (7, True)
    """
    return seed >> BITS if seed.bit_length() > BITS else seed


def derived_seed(seed: int, purpose: str) -> int:
    """A seed of 128 bits for another purpose; what is drawn from the two has nothing in common.

    >>> derived_seed(0, "pilot") == derived_seed(0, "pilot") != derived_seed(1, "pilot")
    True
    """
    return int.from_bytes(_digest(purpose, seed)[: BITS // 8])


def keyed(seed: int, *key: int) -> np.random.SeedSequence:
    """What the random numbers under `key` start from.

    With a seed of more than 64 bits, whoever finds out one sequence, say that of the initial model, cannot
    get from it to the seed or to another sequence: NumPy's own way from seed and key to a sequence can be
    gone backwards, so SHA-256 stands before it. Shorter seeds are for repeating, not secret, and go NumPy's.
    """
    if seed.bit_length() <= _CHOSEN and max(key, default=0) < 2**32:  # NumPy would cut a longer one in two
        return np.random.SeedSequence(seed, spawn_key=key)
    return np.random.SeedSequence(int.from_bytes(_digest("stream", seed, *key)))


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(" ".join(map(str, ("fedproof", *parts))).encode()).digest()


class SecureGenerator:
    """Random bits that nobody can compute again, from `os.urandom`.

    Guarantee: there is no state, hence no seed to guess and none to go back to; bits are independent of all
    others, whoever draws them, in whatever process.
    """

    def random(
        self, size: int | tuple[int, ...] = (), dtype: DTypeLike = np.float64, out: NDArray[Any] | None = None
    ) -> NDArray[Any]:
        """Uniform numbers in [0, 1), all multiples of the type's spacing below one."""
        bits = np.finfo(np.dtype(dtype)).nmant + 1  # those of float64 would round up to 1 in float32
        array = np.empty(size, dtype) if out is None else out
        flat = array.reshape(-1)
        assert np.shares_memory(flat, array) or not array.size
        for start in range(0, flat.size, _BLOCK):
            block = flat[start : start + _BLOCK]
            words = self.words(block.size).view(np.uint64)
            block[:] = (words >> np.uint64(64 - bits)) * 2.0**-bits
        return array

    def words(self, count: int) -> Integers:
        """Uniform words of 64 bits, as signed numbers."""
        return np.frombuffer(bytearray(os.urandom(8 * count)), dtype=np.int64)  # which may be written to

    def further(self, word: int, place: int) -> int:
        """64 bits more: who asks looks at them once, so they need not be known again."""
        return int.from_bytes(os.urandom(8))


class SeededGenerator:
    """Random bits that follow from a seed: NumPy's PCG64.

    >>> one, other = (SeededGenerator(np.random.SeedSequence(7)) for _ in range(2))
    >>> bool((one.words(3) == other.advanced(1).words(3)).any()), one.further(5, 0) == other.further(5, 0)
    (False, True)
    """

    def __init__(self, start: np.random.SeedSequence) -> None:
        self._generator = np.random.Generator(np.random.PCG64(start))
        self._start = start
        self.random = self._generator.random

    def words(self, count: int) -> Integers:
        """Uniform words of 64 bits, as signed numbers."""
        return self._generator.bit_generator.random_raw(count).view(np.int64)

    def advanced(self, words: int) -> Self:
        """This generator, standing where so many words more have left it."""
        self._generator.bit_generator.advance(words)  # type: ignore[attr-defined]  # PCG64 has it
        return self

    def further(self, word: int, place: int) -> int:
        """64 bits more behind a word: a function of seed, word and place, see `exact.Further`."""
        return further_bits(self._start, word, place)


def further_bits(start: np.random.SeedSequence, word: int, place: int) -> int:
    """64 bits behind a word that was drawn from a sequence, by SHA-256."""
    return int.from_bytes(_digest("further", start.entropy, *start.spawn_key, word, place)[:8])


# --- who is drawn: numbers that units draw by their identity, alike in the engine and on a server -----------

# Constants of SplitMix64 as signed numbers: arithmetic of int64 wraps around in NumPy and torch alike.
_GAMMA = 0x9E3779B97F4A7C15 - 2**64
_FACTORS = (0xBF58476D1CE4E5B9 - 2**64, 0x94D049BB133111EB - 2**64)


class Purpose(IntEnum):
    """First entry of the spawn key, see `fedproof.rounds.randomness`."""

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
    return keyed(seed if purpose in _SECRET else common_half(seed), int(purpose), *path)


Numbers = SeededGenerator | SecureGenerator
"""What uniform numbers, and words for `exact.normals`, are drawn from."""


def private_numbers(seed: int, purpose: Purpose, *path: int, secure: bool) -> Numbers:
    """The random numbers of one replica, or unit, for one purpose: of the seed, or the operating system."""
    return SecureGenerator() if secure else SeededGenerator(sequence(seed, purpose, *path))


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

    def starts(self, numbers: Integers, replica: Integers) -> Integers:
        """Starts `(rows, 1)` of draws `numbers` (rows,) of the replicas with these indices."""
        return np.asarray(_mixed(self._states[replica] + (numbers + 1) * _GAMMA)[:, None])

    def draw(self, numbers: Integers, replica: Integers, ids: Integers) -> Floats:
        """Numbers in [0, 1) for `ids` (rows, units): row r is draw `numbers[r]` of replica `replica[r]`."""
        if self.secure:
            return SecureGenerator().random(ids.shape)
        return np.asarray(element(self.starts(numbers, replica), ids) * np.float64(2.0**-53))


def element(starts: Any, ids: Any) -> Any:
    """The upper 53 bits of elements `ids` of sequences: all that a float64 in [0, 1) can hold.

    For arrays and tensors of int64 alike.
    """
    return (_mixed(ids * _GAMMA + starts) >> 11) & (2**53 - 1)


def scattered(ids: Integers) -> Integers:
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
    ids: Integers,
    rounds: int,
    seed: int,
    replicas: Sequence[int],
    *,
    secure: bool = False,
) -> Bools:
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


def _chosen(sampling: Poisson | FixedSize, numbers: Floats) -> Bools:
    if isinstance(sampling, Poisson):
        return numbers < sampling.probability
    # The users with the smallest of independent uniform numbers are a uniformly random subset.
    chosen = np.zeros(numbers.shape, dtype=np.bool_)
    smallest = np.argpartition(numbers, sampling.cohort - 1, axis=1)[:, : sampling.cohort]
    np.put_along_axis(chosen, smallest, True, axis=1)
    return chosen


def cohorts_of(
    mechanism: Mechanism, ids: Integers, seed: int, replicas: Sequence[int], *, secure: bool = False
) -> Bools:
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


def _members(groups: int | None, ids: Integers, seed: int, replicas: Sequence[int]) -> Bools:
    """Who is in the group of each replica, `(replicas, 1, units)`."""
    count = len(ids) if groups is None else groups
    wanted = np.asarray(replicas)[:, None, None]
    if wanted.max() >= count:
        raise ValueError(f"replica {wanted.max()} must be below groups = {count}")
    own = np.arange(count) if groups is None else groups_of(groups, ids, seed)
    return np.asarray(own == wanted)


def groups_of(groups: int, ids: Integers, seed: int) -> Integers:
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
