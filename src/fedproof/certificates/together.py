"""All inputs at once: how many labels of a partition k poisoned units can change together.

A certificate for each input counts the worst case of each, and adding them up assumes that the same k groups
are the worst for all. They are not: whom an adversary corrupts is one choice for all inputs.
"""

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import block_array, csr_array, diags_array

from fedproof import check
from fedproof.arrays import Floats, Integers, votes_of
from fedproof.certificates.rules import Rule, duels, elected
from fedproof.certificates.scores import Array, input_parts

SECONDS = 60.0  # for each size, unless another limit is set
_ERROR = 1e-3  # by which the solver's bound may be too small: far more than its tolerances


def collective(
    scores: Array,
    sizes: Iterable[int],
    *,
    rule: Rule = Rule.PLURALITY,
    own_vote: bool = False,
    seconds: float = SECONDS,
) -> dict[int, int]:
    """For each size the number of inputs whose labels so many poisoned units can change at once, at most.

    `scores` are those of a partition's models (groups, inputs, classes); `seconds` limits the search for each
    size, and if it is over the bound that is proved by then is given.

    Guarantee: with certainty. Let z_g be one if a unit of group g is poisoned, Σ z_g <= k. The winner A of an
    input can lose to B only if the poisoned groups make up for the lead of A over B, ties counted, that is
    Σ z_g a_gB >= n_A - n_B + [A < B], where a_gB is two for a vote for A, none for one for B and one for
    another (pairwise: s_AB + [A < B], and one plus the sign of f_A - f_B). The most inputs for which some B
    can be found is an integer program, and every bound on its value, as of a search that was cut short, is a
    bound on the number of labels that change. For plurality it is attained: poisoned groups vote as each
    input needs it. It never exceeds the number of inputs that are not certified for k one by one. With
    `own_vote`, where k units with a vote of their own may join, it is that number: k newcomers vote against
    all of these at once.
    Assumes: as `partition_sizes`; and HiGHS, which solves the program in floating point, misses its bound by
    less than a thousandth of an input.
    Reference: Chen, Li, Li, Wu, Yan 2022, arXiv:2205.13176, for the program.

    >>> scores = np.tile(np.eye(2)[[0, 0, 0, 1, 1]][:, None], (1, 4, 1))  # one unit changes all four or none
    >>> collective(scores, [0, 1])
    {0: 0, 1: 4}
    """
    check.positive(seconds=seconds)
    if rule is Rule.RUN_OFF:
        raise ValueError("collective needs rule plurality or pairwise: a run-off is lost in too many ways")
    wanted = list(sizes)
    for size in wanted:
        check.not_negative_count(size=size)
    most = min(max(wanted, default=0), len(scores))
    parts = [_ways(rule, part, most, columns.start) for columns, part in input_parts(scores, votes=True)]
    ways = _Ways(*(np.concatenate(column) for column in zip(*parts, strict=True)))
    if own_vote:
        return {size: len(np.unique(ways.inputs[ways.needs <= size])) if size else 0 for size in wanted}
    return {size: _most_flipped(ways, min(size, len(scores)), seconds) for size in wanted}


class _Ways(NamedTuple):
    """Ways to change labels, one for each input and rival that some choice of groups allows.

    Attributes:
        inputs: whose label (ways,).
        needs: what it takes (ways,).
        gains: what each group adds to it if it is poisoned, 0, 1 or 2 (ways, groups).
    """

    inputs: Integers
    needs: Integers
    gains: NDArray[np.int8]

    def within(self, size: int) -> "_Ways":
        """Those that so many groups are enough for."""
        twos, ones = ((self.gains == gain).sum(axis=1) for gain in (2, 1))
        both = np.minimum(twos, size)
        enough = 2 * both + np.minimum(ones, size - both) >= self.needs
        return _Ways(*(column[enough] for column in self))


def _ways(rule: Rule, part: Floats, most: int, first: int) -> _Ways:
    """The ways that `most` groups are enough for, in the inputs of a part that begins with input `first`."""
    votes, fought = votes_of(part), duels(part)
    counts = votes.sum(axis=0).astype(np.int64)
    top, _ = elected(rule, counts, fought)
    rows, classes = np.arange(len(top)), np.arange(part.shape[2])
    if rule is Rule.PLURALITY:
        gains, lead = votes[:, rows, top][..., None] - votes, counts[rows, top][:, None] - counts
    else:
        gains, lead = np.sign(part[:, rows, top][..., None] - part), fought[rows, top]
    inputs, rivals = np.nonzero(classes != top[:, None])
    needs = (lead + (top[:, None] < classes))[inputs, rivals]
    taken = (1 + gains[:, inputs, rivals].T).astype(np.int8)
    return _Ways(inputs + first, np.maximum(needs, 0), taken).within(most)


def _most_flipped(ways: _Ways, size: int, seconds: float) -> int:
    """The most inputs with a way whose need is met by the gains of `size` groups, or a bound on it."""
    ways = ways.within(size)
    places, place = np.unique(ways.inputs, return_inverse=True)
    one_by_one = len(places)
    if not one_by_one or not size:
        return 0
    count, groups = ways.gains.shape
    once = csr_array((np.ones(count), (place, np.arange(count))), shape=(one_by_one, count))
    needs = diags_array(ways.needs.astype(np.float64))
    asked = block_array(
        [
            [csr_array(ways.gains.astype(np.float64)), -needs],
            [csr_array((one_by_one, groups)), once],
            [csr_array(np.ones((1, groups))), csr_array((1, count))],
        ],
        format="csr",
    )
    least = np.concatenate((np.zeros(count), np.full(one_by_one + 1, -np.inf)))
    limit = np.concatenate((np.full(count, np.inf), np.ones(one_by_one), [size]))
    answer = milp(
        np.concatenate((np.zeros(groups), -np.ones(count))),
        integrality=np.ones(groups + count),
        bounds=Bounds(0, 1),
        constraints=LinearConstraint(asked, least, limit),
        options={"time_limit": seconds, "mip_rel_gap": 0.0},
    )
    bound = answer.get("mip_dual_bound")
    if bound is None or not math.isfinite(bound):
        return one_by_one
    return min(one_by_one, math.floor(-float(bound) + _ERROR))
