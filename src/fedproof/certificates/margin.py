"""Margin certificates: the whole distribution of f_A - f_B over the replicas, not only its mean.

With h the margin rounded down to the levels a_0 = -1 < a_1 < ... < a_m = 1, and w_i = a_i - a_{i-1},

    E' h = -1 + Σ w_i Pr'[h >= a_i] >= -1 + Σ w_i L_k(Pr[h >= a_i]),

and A is certified against k units if the right side is positive for every rival B (theory.md, section 3), or
larger than the gap that an ensemble of few replicas needs (`served_gap`). The probabilities are bounded level
by level, or the replicas are bet on.

A claim needs *every* rival to be beaten, so a wrong claim needs one particular test, that of the rival which
truly is not beaten, to fail: no failure probability is shared among rivals (Berger 1982, intersection-union).

Betting goes stage after stage. L_k lies above each of its tangents s·p + c. With one tangent per level a_i
and Ψ(h) = Σ_{a_i <= h} w_i s_i,

    Σ w_i L_k(Pr[h >= a_i]) >= E Ψ(h) + Σ w_i c_i,

so a bet against E Ψ(h) <= 1 + gap - Σ w_i c_i, Ψ bounded, is a bet against "k units can bring the margin
down to the gap", which is zero unless a finite ensemble is served. The replicas of a stage are bet on with
tangents and stakes chosen from all earlier ones.

Which replicas are earlier must not be anybody's choice: who sorts them knows what comes. `order` takes the
choice away (`scores.betting_order`). Stages are shares of the number of replicas, so the test is one for a
number that was fixed beforehand. Stages that do not depend on it would not allow to look often either: with
more replicas the order is another one.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np

from fedproof.accounting.tradeoff import Tradeoff
from fedproof.arrays import Bools, Floats, Integers
from fedproof.certificates.confidence import binomial_lower
from fedproof.certificates.scores import Array, input_parts
from fedproof.certificates.tight import CertifiedSizes, Holds, TradeoffBySize, ranking, walk

_SLACK = 1e-9  # sums must exceed their threshold by more than float error
_STEPS = 4096  # levels are multiples of 1/4096, so that a margin finds its level by multiplication
_TRUNCATION = 0.9  # the share of the capital that one replica may cost at most
_FIRST = 16  # one replica in sixteen chooses the class; from then on what was seen doubles at each stage


def levels(num: int) -> Floats:
    """Levels from -1 to 1, `num` steps, at multiples of 1/4096, finer towards 1 where confident models lie.

    >>> levels(4).tolist()
    [-1.0, -0.125, 0.5, 0.875, 1.0]
    """
    steps = np.linspace(0.0, 1.0, num + 1)
    return np.asarray(np.round((1 - 2 * (1 - steps) ** 2) * _STEPS) / _STEPS)


def margin_sizes_by_levels(
    scores: Array,
    curve: TradeoffBySize,
    *,
    failure_probability: float,
    max_size: int,
    gap: float = 0.0,
    num_levels: int = 48,
) -> CertifiedSizes:
    """Margin certificates from a lower band of the margin's survival function.

    Guarantee: per input, wrong with probability at most ψ. The top class is chosen from the same replicas
    among C, so each class gets ψ/C, and each level of one survival function ψ/(C·levels) (Clopper-Pearson).
    Assumes: independent, identically distributed replicas; their number was fixed before any was seen.
    """
    grid = levels(num_levels)
    num_replicas, _, num_classes = scores.shape
    band = binomial_lower(num_replicas, failure_probability / (num_classes * num_levels))
    table = cache(lambda size: curve(size).lower(band))
    parts = []
    for _, part in input_parts(scores):
        top, _, tied = ranking(part.mean(axis=0))
        at_least = count_at_least(histogram(part, top, grid))
        holds = _band_holds(at_least, np.diff(grid), table, gap)
        parts.append((top, top, tied, walk(len(top), holds, max_size)))
    return joined(parts)


def _band_holds(
    at_least: Integers, widths: Floats, table: Callable[[int], Floats], gap: float = 0.0
) -> Holds:
    def holds(size: int, inputs: Integers) -> Bools:
        return np.asarray((table(size)[at_least[inputs]] @ widths > 1 + gap + _SLACK).all(axis=1))

    return holds


def histogram(part: Floats, top: Integers, grid: Floats) -> Integers:
    """How many replicas have the margin at each level, rounded down: (inputs, rivals, levels + 1)."""
    num_inputs, num_classes, num_bins = part.shape[1], part.shape[2], len(grid)
    rows = np.arange(num_inputs)
    bins = np.searchsorted(grid, np.arange(2 * _STEPS + 1) / _STEPS - 1, side="right") - 1
    margins = part[:, rows, top][..., None] - part
    fine = np.floor((margins + 1) * _STEPS).astype(np.int64)
    flat = bins[fine] + num_bins * np.arange(num_inputs * num_classes).reshape(num_inputs, num_classes)
    counts = np.bincount(flat.ravel(), minlength=num_inputs * num_classes * num_bins)
    rivals = np.arange(num_classes) != top[:, None]
    kept = counts.reshape(num_inputs, num_classes, num_bins)[rivals]
    return np.asarray(kept.reshape(num_inputs, num_classes - 1, num_bins))


def count_at_least(counts: Integers) -> Integers:
    """How many margins reach each level above the lowest: (inputs, rivals, levels)."""
    return np.ascontiguousarray(np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1][..., 1:])


def joined(parts: list[tuple[Integers, Integers, Bools, Integers]]) -> CertifiedSizes:
    """The parts' columns (class tested, leader, tie, size), one after another."""
    top, leader, tied, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return CertifiedSizes(top=top, leader=leader, tied=tied, sizes=sizes)


# --- bets, stage after stage --------------------------------------------------------------------------------


def margin_sizes_by_betting(
    scores: Array,
    curve: TradeoffBySize,
    *,
    failure_probability: float,
    max_size: int,
    gap: float = 0.0,
    order: Integers | None = None,
    num_levels: int = 96,
) -> CertifiedSizes:
    """Margin certificates from one bet per input, rival and size.

    `order` is the order in which replicas are bet on; None: that of the file.

    Guarantee: per input, wrong with probability at most ψ. The class is chosen by replicas on which nothing
    is bet, every stage's bet by earlier stages, and the claim needs a capital of 1/ψ (Ville).
    Assumes: independent, identically distributed replicas, in an order that does not depend on what they
    score; their number was fixed before any was seen.
    Reference: theory.md, section 3; Waudby-Smith and Ramdas 2023, arXiv:2010.09686v7, for the bets.
    """
    grid, cuts = levels(num_levels), stages(len(scores))
    log = -float(np.log(failure_probability))
    rest = len(scores) - cuts[0]
    bets = [_Bet(grid=grid, num_seen=seen, num_rest=rest, log=log, gap=gap) for seen in cuts[:-1]]
    table = cache(lambda size: [bet.tangents(curve(size)) for bet in bets])
    parts = []
    for _, part in input_parts(scores, order):
        top, _, _ = ranking(part[: cuts[0]].mean(axis=0))
        leader, _, tied = ranking(part.mean(axis=0))
        counts = [histogram(part[begin:end], top, grid) for begin, end in zip([0, *cuts], cuts, strict=False)]
        holds = _holds(bets, counts, log, table)
        parts.append((top, leader, tied, walk(len(top), holds, max_size)))
    return joined(parts)


def stages(num_replicas: int) -> list[int]:
    """Numbers of replicas seen at the end of each stage; nothing is bet on the first.

    >>> stages(1000)
    [62, 124, 248, 496, 1000]
    """
    cuts = [max(1, num_replicas // _FIRST)]
    while 4 * cuts[-1] <= num_replicas:
        cuts.append(2 * cuts[-1])
    return [*cuts, num_replicas]


@dataclass(frozen=True, kw_only=True)
class _Bet:
    """The bet of one stage, chosen after `num_seen` replicas; all stages together bet on `num_rest`."""

    grid: Floats
    num_seen: int
    num_rest: int
    log: float  # log(1/ψ)
    gap: float

    def tangents(self, tradeoff: Tradeoff) -> tuple[Floats, Floats]:
        """Slopes and intercepts for each number 0, ..., `num_seen` of margins at or above a level.

        The tangent touches at what the bet can hope to prove, a little below the share that was seen.
        """
        share, error = np.arange(self.num_seen + 1) / self.num_seen, self.log / self.num_rest
        hoped = (share - 0.5 * np.sqrt(2 * error * share * (1 - share))) / (1 + error)
        return tradeoff.tangent(np.maximum(hoped, 0.0))

    def log_growth(self, seen: Integers, counts: Integers, slopes: Floats, intercepts: Floats) -> Floats:
        """Logarithm of the factor by which the stage multiplies the capital, one per pair of input and rival.

        `seen` and `counts` are histograms (pairs, levels + 1) of the earlier and the bet-on margins.
        """
        widths = np.diff(self.grid)
        gain = np.zeros(seen.shape)
        np.cumsum(widths * slopes, axis=-1, out=gain[..., 1:])
        total = np.maximum(gain[..., -1:], 1e-300)
        gain /= total  # Ψ/Ψ(1) at each level, in [0, 1]
        threshold = (1 + self.gap - np.sum(widths * intercepts, axis=-1, keepdims=True) + _SLACK) / total
        stake = np.minimum(self.stake(seen, gain), _TRUNCATION / threshold)
        stake[threshold >= 1] = 0.0  # no value of Ψ could speak against the hypothesis
        return np.asarray(np.sum(counts * np.log1p(stake * (gain - threshold)), axis=-1))

    def stake(self, seen: Integers, gain: Floats) -> Floats:
        """The best bet where the claim is just provable: sqrt(2 log(1/ψ) / (n σ²)), σ² from what was seen."""
        weights = seen / self.num_seen
        mean = np.sum(weights * gain, axis=-1, keepdims=True)
        spread = np.sum(weights * np.square(gain - mean), axis=-1, keepdims=True)
        variance = (0.25 + self.num_seen * spread) / (self.num_seen + 1)
        return np.asarray(np.sqrt(2 * self.log / (variance * self.num_rest)))


def _holds(
    bets: list[_Bet], counts: list[Integers], log: float, table: Callable[[int], list[tuple[Floats, Floats]]]
) -> Holds:
    """Whether the capital reaches 1/ψ at the end of some stage, for every rival.

    Most tests of small sizes are won in the first stages; only open ones go on to the next.
    """
    num_inputs, num_rivals, num_bins = counts[0].shape
    flat = [part.reshape(-1, num_bins) for part in counts]
    seen = [np.asarray(total) for total in np.cumsum(flat[:-1], axis=0)]
    at_least = [count_at_least(total) for total in seen]
    pairs = np.arange(num_inputs * num_rivals).reshape(num_inputs, num_rivals)

    def holds(size: int, inputs: Integers) -> Bools:
        undecided = pairs[inputs].ravel()
        capital = np.zeros(len(undecided))
        for stage, (bet, (slopes, intercepts)) in enumerate(zip(bets, table(size), strict=True)):
            reached = at_least[stage][undecided]
            lines = slopes[reached], intercepts[reached]
            capital = capital + bet.log_growth(seen[stage][undecided], flat[stage + 1][undecided], *lines)
            going_on = capital < log + _SLACK
            undecided, capital = undecided[going_on], capital[going_on]
        return np.isin(inputs, undecided // num_rivals, invert=True)

    return holds
