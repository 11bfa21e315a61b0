"""Replicas as a set: an order that nobody chose, and copies that cannot be chance."""

import hashlib
from collections import Counter

import numpy as np
from numpy.typing import NDArray

from fedproof.certificates.scores import Array, little_endian, replica_parts

Integers = NDArray[np.int64]

_TELLING = 8  # inputs that each by itself tell almost all different replicas apart
_LOOKED_AT = 256  # inputs among which they are looked for
_ALIKE = 0.01  # share of different replicas that may agree on a telling input
_COPIES = 0.05  # share of copies that is put up with, and two more


def digests(scores: Array) -> list[bytes]:
    """sha256 of every replica's scores; 0 and -0 are the same number, as are all orders of bytes."""
    found = []
    for _, part in replica_parts(scores):
        numbers = little_endian(part + 0.0)  # -0 + 0 is 0
        found += [hashlib.sha256(np.ascontiguousarray(replica).data).digest() for replica in numbers]
    return found


def betting_order(scores: Array) -> Integers:
    """The order in which replicas are bet on: that of a hash of each, keyed with a hash of all.

    Guarantee: every permutation of the replicas gives the same sequence of scores, so sorting them changes
    nothing. The key depends on all of them: no replica's place can be known before all are trained.
    Assumes: sha256 orders replicas as a random function would, independently of what they score. Who alters
    digits until the order suits him is not covered; he could as well alter the scores.

    >>> scores = np.random.default_rng(0).dirichlet([1, 1], size=(5, 3))
    >>> np.array_equal(scores[betting_order(scores)], scores[::-1][betting_order(scores[::-1])])
    True
    """
    found = digests(scores)
    key = hashlib.sha256(b"".join(sorted(found))).digest()
    places = [hashlib.sha256(key + digest).digest() for digest in found]
    return np.array(sorted(range(len(places)), key=places.__getitem__), dtype=np.int64)


def check_copies(scores: Array) -> None:
    """Raise ValueError if replicas of a mechanism with noise are copies of others.

    Independent replicas do agree: where confidences are 0 and 1, rounded to few digits, or of a model that
    nobody trained. So copies are refused only where chance cannot explain them: more than one in twenty of
    the replicas repeats another on all inputs, not counting the scores that occur most often (of the model
    that nobody trained), while eight inputs that differ from each other tell, each by itself, 99 of 100
    different replicas apart. Then two different replicas rarely agree on one input, and never on all.

    >>> scores = np.random.default_rng(0).dirichlet([1, 1, 1], size=(20, 9))
    >>> check_copies(scores)
    >>> check_copies(np.concatenate([scores, scores]))
    Traceback (most recent call last):
    ValueError: scores repeat 19 of 40 replicas number for number: copies are no independent trainings
    """
    found = digests(scores)
    counts = Counter(found)
    num, copies = len(found), len(found) - len(counts) - (max(counts.values()) - 1)
    if copies < 2 + _COPIES * num:
        return
    first = {digest: index for index, digest in reversed(list(enumerate(found)))}
    if _telling_inputs(scores, sorted(first.values())) >= _TELLING:
        raise ValueError(
            f"scores repeat {copies} of {num} replicas number for number: copies are no independent trainings"
        )


def _telling_inputs(scores: Array, different: list[int]) -> int:
    """How many inputs, not counting repeated ones, tell almost all of the `different` replicas apart."""
    least = len(different) * (1 - _ALIKE)
    seen = set()
    for item in range(min(scores.shape[1], _LOOKED_AT)):
        column = np.ascontiguousarray(scores[:, item][different])
        if len(np.unique(column, axis=0)) >= least:
            seen.add(hashlib.sha256(column.data).digest())
    return len(seen)
