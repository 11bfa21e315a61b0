"""Margin certificates: the whole distribution of f_A - f_B over the replicas, not only its mean.

With h the margin rounded down to the levels a_0 = -1 < a_1 < ... < a_m = 1, and w_i = a_i - a_{i-1},

    E' h = -1 + Σ w_i Pr'[h >= a_i] >= -1 + Σ w_i L_k(Pr[h >= a_i]),

and A is certified against k units if the right side is positive for every rival B (theory.md, section 3).

A claim needs *every* rival to be beaten, so a wrong claim needs one particular test, that of the rival which
truly is not beaten, to fail: no failure probability is shared among rivals (Berger 1982, intersection-union).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.tradeoff import Tradeoff
from fedproof.certificates.confidence import binomial_lower
from fedproof.certificates.scores import Array, input_parts
from fedproof.certificates.tight import Curve, ranking, walk

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_SLACK = 1e-9
_TRUNCATION = 0.9
_PILOT_SHARE = 8  # one replica in eight chooses the class, the tangents and the stake
_STEPS = 4096  # levels are multiples of 1/4096, so that a margin finds its level by multiplication


@dataclass(frozen=True, kw_only=True)
class MarginSizes:
    """Per input: the class tested, the class that leads over all replicas, a tie, the size (-1: none)."""

    top: Integers
    leader: Integers
    tied: NDArray[np.bool_]
    sizes: Integers


def levels(num: int) -> Floats:
    """Levels from -1 to 1, `num` steps, at multiples of 1/4096, finer towards 1 where confident models lie.

    >>> levels(4).tolist()
    [-1.0, -0.125, 0.5, 0.875, 1.0]
    """
    steps = np.linspace(0.0, 1.0, num + 1)
    return np.asarray(np.round((1 - 2 * (1 - steps) ** 2) * _STEPS) / _STEPS)


def margin_sizes_by_levels(
    scores: Array, curve: Curve, *, failure_probability: float, max_size: int, num_levels: int = 48
) -> MarginSizes:
    """Margin certificates from a lower band of the margin's survival function.

    Guarantee: per input, wrong with probability at most ψ. The top class is chosen from the same replicas
    among C, so each class gets ψ/C, and each level of one survival function ψ/(C·levels) (Clopper-Pearson).
    """
    grid = levels(num_levels)
    num_replicas, _, num_classes = scores.shape
    band = binomial_lower(num_replicas, failure_probability / (num_classes * num_levels))
    table = cache(lambda size: curve(size).lower(band))
    parts = []
    for _, part in input_parts(scores):
        means = part.mean(axis=0)
        top, _, tied = ranking(means)
        at_least = _at_least(_histogram(part, top, grid))
        holds = _band_holds(at_least, np.diff(grid), table)
        parts.append((top, top, tied, walk(len(top), holds, max_size)))
    return _joined(parts)


def margin_sizes_by_betting(
    scores: Array, curve: Curve, *, failure_probability: float, max_size: int, num_levels: int = 96
) -> MarginSizes:
    """Margin certificates from one bet per input, rival and size.

    L_k lies above each of its tangents s·p + c, so with one tangent per level, Ψ(h) = Σ_{a_i <= h} w_i s_i,

        Σ w_i L_k(Pr[h >= a_i]) >= E Ψ(h) + Σ w_i c_i.

    The first eighth of the replicas chooses the top class, the tangents and the stake; the rest bet against
    E Ψ(h) + Σ w_i c_i <= 1 and the claim is made if the capital reaches 1/ψ.

    Guarantee: per input, wrong with probability at most ψ (the choices are independent of the bet).
    """
    grid = levels(num_levels)
    pilot = max(1, len(scores) // _PILOT_SHARE)
    bet = _Bet(
        grid=grid, num_pilot=pilot, num_rest=len(scores) - pilot, log=float(np.log(1 / failure_probability))
    )
    table = cache(lambda size: bet.tangents(curve(size)))
    parts = []
    for _, part in input_parts(scores):
        top, _, _ = ranking(part[:pilot].mean(axis=0))
        leader, _, tied = ranking(part.mean(axis=0))
        at_least = _at_least(_histogram(part[:pilot], top, grid))
        counts = _histogram(part[pilot:], top, grid)
        holds = _bet_holds(bet, at_least, counts, table)
        parts.append((top, leader, tied, walk(len(top), holds, max_size)))
    return _joined(parts)


@dataclass(frozen=True, kw_only=True)
class _Bet:
    grid: Floats
    num_pilot: int
    num_rest: int
    log: float  # log(1/ψ)

    def tangents(self, tradeoff: Tradeoff) -> tuple[Floats, Floats]:
        """Slopes and intercepts for each number 0, ..., pilot of margins at or above a level.

        The tangent touches at what the bet can hope to prove, a little below the pilot's share.
        """
        share, error = np.arange(self.num_pilot + 1) / self.num_pilot, self.log / self.num_rest
        hoped = (share - 0.5 * np.sqrt(2 * error * share * (1 - share))) / (1 + error)
        return tradeoff.tangent(np.maximum(hoped, 0.0))

    def wins(
        self, pilot: Integers, counts: Integers, slopes: Floats, intercepts: Floats
    ) -> NDArray[np.bool_]:
        """Whether the capital reaches 1/ψ, for pilot and counts (inputs, rivals, levels)."""
        widths = np.diff(self.grid)
        gain = np.concatenate(
            [np.zeros((*pilot.shape[:-1], 1)), np.cumsum(widths * slopes, axis=-1)], axis=-1
        )
        total = np.maximum(gain[..., -1:], 1e-300)
        gain /= total  # Ψ/Ψ(1) at each level, in [0, 1]
        threshold = (1 - np.sum(widths * intercepts, axis=-1, keepdims=True) + _SLACK) / total
        stake = np.minimum(self.stake(pilot, gain), _TRUNCATION / threshold)
        lawful = threshold[..., 0] < 1
        factors = np.where(lawful[..., None], 1 + stake * (gain - threshold), 1.0)
        return np.asarray(lawful & (np.sum(counts * np.log(factors), axis=-1) >= self.log + _SLACK))

    def stake(self, pilot: Integers, gain: Floats) -> Floats:
        """The best bet where the claim is just provable: sqrt(2 log(1/ψ) / (n σ²)), σ² by the pilot."""
        share = np.concatenate([np.full((*pilot.shape[:-1], 1), self.num_pilot), pilot], axis=-1)
        weights = -np.diff(share, axis=-1, append=0) / self.num_pilot
        mean = np.sum(weights * gain, axis=-1, keepdims=True)
        spread = np.sum(weights * np.square(gain - mean), axis=-1, keepdims=True)
        variance = (0.25 + self.num_pilot * spread) / (self.num_pilot + 1)
        return np.asarray(np.sqrt(2 * self.log / (variance * self.num_rest)))


def _bet_holds(
    bet: _Bet, pilot: Integers, counts: Integers, table: Callable[[int], tuple[Floats, Floats]]
) -> Callable[[int, Integers], NDArray[np.bool_]]:
    def holds(size: int, inputs: Integers) -> NDArray[np.bool_]:
        slopes, intercepts = table(size)
        seen = pilot[inputs]
        return np.asarray(bet.wins(seen, counts[inputs], slopes[seen], intercepts[seen]).all(axis=1))

    return holds


def _band_holds(
    at_least: Integers, widths: Floats, table: Callable[[int], Floats]
) -> Callable[[int, Integers], NDArray[np.bool_]]:
    def holds(size: int, inputs: Integers) -> NDArray[np.bool_]:
        return np.asarray((table(size)[at_least[inputs]] @ widths > 1 + _SLACK).all(axis=1))

    return holds


def _histogram(part: Floats, top: Integers, grid: Floats) -> Integers:
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


def _at_least(counts: Integers) -> Integers:
    """How many margins reach each level above the lowest: (inputs, rivals, levels)."""
    return np.ascontiguousarray(np.cumsum(counts[..., ::-1], axis=-1)[..., ::-1][..., 1:])


def _joined(parts: list[tuple[Integers, Integers, NDArray[np.bool_], Integers]]) -> MarginSizes:
    top, leader, tied, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return MarginSizes(top=top, leader=leader, tied=tied, sizes=sizes)
