"""Replicas as a set: an order that nobody chose, and copies that cannot be chance."""

import hashlib
from collections import Counter

import numpy as np

from fedproof.arrays import Integers
from fedproof.certificates.scores import Array, little_endian, replica_parts

_FEWEST = 20  # different replicas that must occur equally often before chance is ruled out


def digests(scores: Array) -> list[bytes]:
    """sha256 of every replica's scores; 0 and -0 are the same number, as are all orders of bytes."""
    found = []
    for _, part in replica_parts(scores):
        numbers = little_endian(part + 0.0)  # -0 + 0 is 0
        found += [hashlib.sha256(np.ascontiguousarray(replica).data).digest() for replica in numbers]
    return found


def betting_order(scores: Array) -> Integers:
    """The order in which replicas are bet on: that of a hash of each, keyed with a hash of all.

    Replicas that score the same are told apart by a count: they must not stand together, or the order would
    be one by scores.

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
    seen: Counter[bytes] = Counter()
    places = []
    for digest in found:
        places.append(hashlib.sha256(key + digest + seen[digest].to_bytes(8, "little")).digest())
        seen[digest] += 1
    return np.array(sorted(range(len(places)), key=places.__getitem__), dtype=np.int64)


def check_copies(scores: Array) -> None:
    """Raise ValueError if replicas occur so regularly more than once that they cannot be independent.

    Independent replicas may well agree: votes, confidences of few digits, models that nobody trained, cohorts
    drawn again. But then the numbers of times that replicas occur vary. Let N_r be how many different
    replicas occur exactly r times. Whatever the law of a replica is, E N_r <= 0.62 E[N_{r-1} + N_{r+1}] for
    r >= 2 and r <= n/20, because each occurs binomially often: P[X = r] / (P[X = r - 1] + P[X = r + 1]) is
    largest at a mean near sqrt(r (r + 1)), where it is sqrt((r + 1)/r)/2 but for a part in n. A file that was
    appended to itself has N_2 = n/2 and neither N_1 nor N_3.

    Guarantee: independent replicas are refused with probability below 1e-9. Who changes the last digit of a
    copy is not found.

    >>> scores = np.random.default_rng(0).dirichlet([1, 1, 1], size=(20, 9))
    >>> check_copies(scores)
    >>> check_copies(np.concatenate([scores, scores]))
    Traceback (most recent call last):
    ValueError: scores hold 20 replicas 2 times each, number for number: copies are no independent trainings
    """
    times = Counter(Counter(digests(scores)).values())
    for often, different in sorted(times.items()):
        around = times[often - 1] + times[often + 1]
        if often >= 2 and different >= _FEWEST + 2 * around:
            raise ValueError(
                f"scores hold {different} replicas {often} times each, number for number: copies are no "
                "independent trainings"
            )
