"""Where a run's randomness begins: a seed of the operating system, or one that somebody chose. Free of torch.

Cohorts and noise are part of every theorem but a partition's: nothing is certified against an adversary who
knows them. So the seed is fresh unless a configuration names one, and a certificate says which it was.
"""

import hashlib
import secrets

import numpy as np

BITS = 128
_CHOSEN = 64  # bits of the longest seed that counts as chosen by somebody

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
