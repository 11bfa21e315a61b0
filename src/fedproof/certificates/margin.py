"""Margin certificates: the whole distribution of f_A - f_B over the replicas, not only its mean.

With h the margin rounded down to the levels a_0 = -1 < a_1 < ... < a_m = 1, and w_i = a_i - a_{i-1},

    E' h = -1 + Σ w_i Pr'[h >= a_i] >= -1 + Σ w_i L_k(Pr[h >= a_i]),

and A is certified against k units if the right side is positive for every rival B (theory.md, section 3), or
larger than the gap that an ensemble of few replicas needs (`served`).

A claim needs *every* rival to be beaten, so a wrong claim needs one particular test, that of the rival which
truly is not beaten, to fail: no failure probability is shared among rivals (Berger 1982, intersection-union).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from numpy.typing import NDArray

from fedproof.arrays import Floats, Integers
from fedproof.certificates.confidence import binomial_lower
from fedproof.certificates.scores import Array, input_parts
from fedproof.certificates.tight import Curve, ranking, walk

SLACK = 1e-9  # sums must exceed their threshold by more than float error
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
    scores: Array,
    curve: Curve,
    *,
    failure_probability: float,
    max_size: int,
    gap: float = 0.0,
    num_levels: int = 48,
) -> MarginSizes:
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
        means = part.mean(axis=0)
        top, _, tied = ranking(means)
        at_least = count_at_least(histogram(part, top, grid))
        holds = _band_holds(at_least, np.diff(grid), table, gap)
        parts.append((top, top, tied, walk(len(top), holds, max_size)))
    return joined(parts)


def _band_holds(
    at_least: Integers, widths: Floats, table: Callable[[int], Floats], gap: float = 0.0
) -> Callable[[int, Integers], NDArray[np.bool_]]:
    def holds(size: int, inputs: Integers) -> NDArray[np.bool_]:
        return np.asarray((table(size)[at_least[inputs]] @ widths > 1 + gap + SLACK).all(axis=1))

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


def joined(parts: list[tuple[Integers, Integers, NDArray[np.bool_], Integers]]) -> MarginSizes:
    """The parts' columns (class tested, leader, tie, size), one after another."""
    top, leader, tied, sizes = (np.concatenate(column) for column in zip(*parts, strict=True))
    return MarginSizes(top=top, leader=leader, tied=tied, sizes=sizes)
