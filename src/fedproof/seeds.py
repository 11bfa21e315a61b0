"""Where a run's randomness begins: the operating system, or a seed that somebody chose. Free of torch.

Cohorts and noise are part of every theorem but a partition's: nothing is certified against an adversary who
knows them. So the seed is fresh unless a configuration names one, and a certificate says which it was.
"""

import hashlib
import os
import secrets
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

BITS = 128
_CHOSEN = 64  # bits of the longest seed that counts as chosen by somebody
_BLOCK = 1 << 14  # numbers made at once: what lies between bits and numbers stays in the cache
_WORDS = 4  # behind each normal number: two radii and two angles

KNOWN = "corrupted units were chosen without knowing the seed, and act without knowing it"
FRESH = (
    "the seed was drawn by the operating system and is not published; corrupted units were chosen "
    "independently of it, and act so"
)
NO_SEED = (
    "cohorts and noise were drawn by the operating system and are not published; corrupted units were chosen "
    "independently of them, and act so"
)


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


def sequence(seed: int, *key: int) -> np.random.SeedSequence:
    """What the random numbers under `key` start from.

    With a seed of more than 64 bits, whoever finds out one sequence, say that of the initial model, cannot
    get from it to the seed or to another sequence: NumPy's own way from seed and key to a sequence can be
    gone backwards, so SHA-256 stands before it. Shorter seeds are for repeating, not secret, and go NumPy's.
    """
    if seed.bit_length() <= _CHOSEN:
        return np.random.SeedSequence(seed, spawn_key=key)
    return np.random.SeedSequence(int.from_bytes(_digest("stream", seed, *key)))


def _digest(*parts: object) -> bytes:
    return hashlib.sha256(" ".join(map(str, ("fedproof", *parts))).encode()).digest()


class SecureGenerator:
    """Random numbers that nobody can compute again.

    The two methods of `numpy.random.Generator` that training uses, fed by `os.urandom`.

    Guarantee: there is no state, hence no seed to guess and none to go back to; numbers are independent of
    all others, whoever draws them, in whatever process. They are made in float64 from 53 random bits each.
    """

    def random(
        self,
        size: int | tuple[int, ...] = (),
        dtype: DTypeLike = np.float64,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Uniform numbers in [0, 1), all multiples of the type's spacing below one."""
        bits = np.finfo(np.dtype(dtype)).nmant + 1  # those of float64 would round up to 1 in float32
        return _filled(size, dtype, out, lambda count: _uniform(count, bits))

    def standard_normal(
        self,
        size: int | tuple[int, ...] = (),
        dtype: DTypeLike = np.float64,
        out: NDArray[Any] | None = None,
    ) -> NDArray[Any]:
        """Standard normal numbers: half the sum of four, each by Box and Muller's method.

        Which floating point numbers a sampler can give tells what was added to them (Mironov 2012). Half the
        sum of four has the same law, but four words of 53 bits lie behind each number: who sees it would
        have to try three of them.

        Reference: Holohan and Braghin 2021, arXiv:2107.10138, with n = 2; as `secure_mode` of Opacus.
        """
        return _filled(size, dtype, out, _normal)


def _filled(
    size: int | tuple[int, ...],
    dtype: DTypeLike,
    out: NDArray[Any] | None,
    draw: Callable[[int], NDArray[np.float64]],
) -> NDArray[Any]:
    """The contiguous `out`, or a new array, with drawn numbers in place, block after block."""
    array = np.empty(size, dtype) if out is None else out
    flat = array.reshape(-1)
    assert np.shares_memory(flat, array) or not array.size
    for start in range(0, flat.size, _BLOCK):
        block = flat[start : start + _BLOCK]
        block[:] = draw(block.size)
    return array


def _uniform(count: int, bits: int) -> NDArray[np.float64]:
    words = np.frombuffer(os.urandom(8 * count), dtype=np.uint64)
    return np.asarray((words >> np.uint64(64 - bits)) * 2.0**-bits)


def _normal(count: int) -> NDArray[np.float64]:
    """Half the sum of two pairs of Box and Muller, each of radius √(-2 log u) at a uniform angle."""
    numbers = _uniform(_WORDS * count, 53).reshape(_WORDS, count)
    # 1 - u lies in (0, 1]: the logarithm is finite.
    radii = np.sqrt(-2 * np.log1p(-numbers[:2]))
    angles = 2 * np.pi * numbers[2:]
    return np.asarray((radii * (np.cos(angles) + np.sin(angles))).sum(axis=0) / 2)
