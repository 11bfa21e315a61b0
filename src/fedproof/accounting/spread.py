"""Poisoned instances of users who are drawn as a whole: spread over users in the worst way there is.

Users are drawn openly (their other instances give them away), each with chance q at most, and then instances
of drawn users. Let n_i of the k poisoned instances belong to user i. Given who is drawn, J = Σ n_i over the
drawn users take part, and the release is dominated by the pair of J instances; call its divergence h_α(J).
The law of who is drawn is the same on both sides, so by joint convexity

    H_α(M(D) || M(D')) <= E h_α(J),   0 <= J <= k,   E J = Σ q_i n_i <= q k,

however the instances are spread and however the draws depend on each other. The largest that E h_α(J) can be
is the concave envelope of h_α on {0, ..., k} at q k (Jensen; h_α, and hence the envelope, rises with j,
because an instance may contribute nothing). For k = 1 it is q h_α(1), what one user's instance costs. For
k > 1 it is more than q h_α(k), the k instances of one user: spread out, they hardly ever all stay away.

As a function of α the envelope is a supremum of convex functions, so it is convex, it lies between (1 - α)₊
and one, and is the divergence of a pair of its own. It bounds every round whatever came before, so it
composes.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache

import numpy as np

from fedproof.accounting.loss import DiscretePair
from fedproof.accounting.pairs import ROUNDED, MonotonePair, poisson_pair
from fedproof.arrays import Floats, Integers
from fedproof.mechanisms import Query
from fedproof.threat import Relation

_ALL_UP_TO = 128  # numbers of instances that are all looked at; beyond, in steps of a twentieth
_CERTAIN = 1e-4  # a pair that is told apart with this much error at most is taken to be told apart


@dataclass(frozen=True, kw_only=True)
class SpreadPair:
    """The envelope of the divergences of 0, ..., `size` instances, at the expected number that is drawn."""

    query: Query
    relation: Relation
    size: int

    @property
    def expected(self) -> float:
        """The expected number of instances that are drawn with their users."""
        return self.query.selection_probability * self.size

    @cached_property
    def _measured(self) -> list[tuple[int, float, float]]:
        """Numbers 1, 2, 4, ... for all sizes, spread and reach of each; none beyond what is certain."""
        found: list[tuple[int, float, float]] = []
        for power in range((self.size - 1).bit_length() + 1):
            pair = self._of(min(self.size, 1 << power))
            spread, reach = pair.spread_and_reach()
            found.append((1 << power, max(spread, 1e-12), max(reach, 1e-12)))  # all losses may be 0
            if pair.told_apart() > 1 - _CERTAIN:
                break
        return found

    @property
    def num_components(self) -> int:
        """Number of normal components of the largest mixture that matters, eight times if there are more.

        There are then many mixtures to put on the grid, which must be coarser. A power of two, as the grid.
        """
        components = self._of(min(self.size, self._measured[-1][0])).num_components
        return components if self.size == 1 else 8 << (components - 1).bit_length()

    def spread_and_reach(self) -> tuple[float, float]:
        """About the standard deviation of the loss, and the largest absolute loss that matters.

        Drawn are as many instances as expected, or more and less often; the widest loss of all these sets the
        grid, not more than four times as wide as that of the expected number. In powers of two, so that the
        sizes on the way to a certificate share their grids.
        """
        (_, single, least), *_ = self._measured
        if self.size == 1:
            return single, least
        usual = max(spread for number, spread, _ in self._measured if number <= max(1.0, self.expected))
        widest = max(math.sqrt(min(1.0, self.expected / n)) * spread for n, spread, _ in self._measured)
        ratio = min(max(widest, single), 4 * usual) / single
        reach = max(reach for *_, reach in self._measured)
        return single * 2.0 ** math.floor(math.log2(ratio)), 2.0 ** math.ceil(math.log2(reach))

    def discretise(self, step: float) -> DiscretePair:
        """The pair on a grid of losses, dominating every way to spread the instances."""
        positions, rows = [0], [(np.zeros(1), np.zeros(1))]
        for first, last in _blocks(self.size):  # all numbers of a block are bounded by its last
            positions.append(first)
            rows.append(_divergences(self._query, self.relation, last, step))
            if rows[-1][0][-1] > 1 - _CERTAIN:
                positions.append(last + 1)
                rows.append((np.ones(1), np.ones(1)))
                break
        positions.append(max(self.size, positions[-1] + 1))
        rows.append(rows[-1])
        forward, backward = (_padded([row[way] for row in rows]) for way in (0, 1))
        ahead = envelope(np.array(positions), forward, self.expected)
        symmetric = self.relation == Relation.REPLACE
        back = ahead if symmetric else envelope(np.array(positions), backward, self.expected)
        return pair_of_profiles(step, ahead, back)

    def _of(self, number: int) -> MonotonePair:
        return _instances(self._query, self.relation, number)

    @cached_property
    def _query(self) -> Query:
        """One release to an observer who sees all users drawn; the same for every number of rounds."""
        return replace(self.query, count=1, selection_probability=1.0)


def envelope(positions: Integers, values: Floats, at: float) -> Floats:
    """The concave envelope of each column of `values` (positions, columns) over `positions`, read at `at`.

    The envelope is the largest value there of a chord from a position on the left to one on the right.

    >>> envelope(np.array([0, 1, 2]), np.array([[0.0], [1.0], [4.0]]), 1.0).tolist()  # half of each end
    [2.0]
    """
    left, right = np.flatnonzero(positions <= at), np.flatnonzero(positions > at)
    best = np.full(values.shape[1], -np.inf)
    for start in left:
        slopes = (values[right] - values[start]) / (positions[right] - positions[start])[:, None]
        best = np.maximum(best, values[start] + (at - positions[start]) * slopes.max(axis=0))
    return best


def pair_of_profiles(step: float, forward: Floats, backward: Floats) -> DiscretePair:
    """The discrete pair whose divergences at α = exp(i step) are H_α(P || Q) and H_α(Q || P) as given.

    A profile that is linear between grid ratios is that of masses on them: its slope at α is minus the Q-mass
    of larger ratios, and rises at each ratio by the Q-mass there. Between its grid points a convex profile
    lies below. Losses below zero are those of the pair read backwards, and the rest of either has loss zero.
    Rounding may ask for negative masses, in place of which there are none; that adds mass, and raises every
    divergence.
    """
    forward, backward = _padded([forward, backward])
    forward[0] = backward[0] = max(forward[0], backward[0])  # both are the total variation
    ratios = np.exp(np.arange(len(forward)) * step)
    falls = [np.append(-np.diff(profile) / np.diff(ratios), 0.0) for profile in (forward, backward)]
    q_above, p_below = (np.maximum(fall[:-1] - fall[1:], 0.0) for fall in falls)
    rest = [max(0.0, 1 - float(forward[0] + falls[0][0] + falls[1][0]))]
    return DiscretePair(
        step=step,
        first=1 - len(ratios),
        clean=np.concatenate((p_below[::-1], rest, ratios[1:] * q_above)),
        poisoned=np.concatenate(((ratios[1:] * p_below)[::-1], rest, q_above)),
        clean_only=float(forward[-1]) + ROUNDED,
        poisoned_only=float(backward[-1]) + ROUNDED,
    )


def _blocks(size: int) -> list[tuple[int, int]]:
    """Consecutive ranges of numbers from 1 to `size`, single ones as long as they are small."""
    blocks, last = [], 0
    while last < size:
        first, last = last + 1, min(size, last + 1 + max(0, last - _ALL_UP_TO) // 20)
        blocks.append((first, last))
    return blocks


def _padded(rows: list[Floats]) -> Floats:
    """Rows of different lengths as one array, the last value of each going on."""
    longest = max(map(len, rows))
    return np.stack([np.pad(row, (0, longest - len(row)), mode="edge") for row in rows])


@lru_cache(maxsize=256)
def _instances(query: Query, relation: Relation, number: int) -> MonotonePair:
    """The pair of `number` instances whose users are all drawn."""
    return poisson_pair(query, relation, number)


@lru_cache(maxsize=256)
def _divergences(query: Query, relation: Relation, number: int, step: float) -> tuple[Floats, Floats]:
    """H_α(P || Q) and H_α(Q || P) of that pair at α = 1, exp(step), exp(2 step), ..."""
    pair = _instances(query, relation, number).discretise(step)
    return pair.forward.divergences(), pair.backward.divergences()
