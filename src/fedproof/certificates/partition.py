"""The certificate of disjoint groups: count the votes."""

import numpy as np
from numpy.typing import NDArray

from fedproof.arrays import Integers, votes_of
from fedproof.certificates.scores import Array, input_parts


def vote_counts(scores: Array) -> Integers:
    """Votes `(inputs, classes)` of the models in `scores` (models, inputs, classes)."""
    parts = [votes_of(part).sum(axis=0) for _, part in input_parts(scores)]
    return np.concatenate(parts).astype(np.int64)


def partition_sizes(counts: Integers) -> tuple[Integers, Integers]:
    """The class with most votes, the first of equal ones, and how many units cannot change it.

    Guarantee: the winner A stays for every k <= floor((n_A - n_B - [B < A]) / 2), B any other class, with
    certainty: a poisoned or an added unit touches one group, whose vote may move from A to B.
    Assumes: training on a group is a function of that group alone.
    Reference: Levine, Feizi 2021, arXiv:2006.14768v2, Theorem 1; theory.md, section 3.

    >>> top, sizes = partition_sizes(np.array([[6, 3, 0], [3, 6, 0], [3, 3, 2]]))
    >>> top.tolist(), sizes.tolist()
    ([0, 1, 0], [1, 1, 0])
    """
    top = counts.argmax(axis=1)
    rows, classes = np.arange(len(counts)), np.arange(counts.shape[1])
    lead = counts[rows, top][:, None] - counts - (classes < top[:, None])
    lead[rows, top] = np.iinfo(np.int64).max
    return top, lead.min(axis=1) // 2


def partition_costs(costs: NDArray[np.float64], cost_bound: float, size: int) -> tuple[float, float]:
    """Bounds on the mean cost of a partition's models once `size` units are poisoned.

    `costs` (groups,) are the attacker's cost of each model, in [0, `cost_bound`].

    Guarantee: with certainty. Of the models at most `size` change, in the worst case the dearest to 0, or the
    cheapest to the bound; all others cost what they cost before.

    >>> partition_costs(np.array([0.5, 0.25, 0.25, 0.0]), 1.0, 1)
    (0.125, 0.5)
    """
    ordered, touched = np.sort(costs), min(size, len(costs))
    kept = len(costs) - touched
    lower, upper = ordered[:kept].sum(), ordered[touched:].sum() + touched * cost_bound
    return float(lower / len(costs)), float(upper / len(costs))
