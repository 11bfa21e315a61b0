"""Privacy-loss distributions on a grid, rounded against ourselves, and their composition.

A dominating pair (P, Q) is replaced by a discrete pair whose likelihood ratios lie on a geometric grid. Each
cell between two grid ratios is split onto its two ends so that both its P-mass and its Q-mass are kept. That
is a mean-preserving spread of the ratio, so the discrete pair dominates the true one at every α
("connect the dots": Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv:2207.04380v1).
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import fft

Floats = NDArray[np.float64]

# Beyond this loss the smaller of the two masses is below 1e-26 and is given away.
LARGEST_LOSS = 60.0
# Mass given away at each end of a convolution, and slack for the rounding of the FFT.
_TAIL = 1e-15
ROUNDING = 1e-12
_MOST_SUMMED = 1 << 23  # cells of a sum: a gigabyte while it is transformed


@dataclass(frozen=True, kw_only=True)
class DiscretePair:
    """Masses of P and Q on losses `(first + i) * step`, and what has infinite loss.

    Attributes:
        clean: P-mass at each loss log(P/Q).
        poisoned: Q-mass at each loss.
        clean_only: P-mass taken to have no Q-mass.
        poisoned_only: Q-mass taken to have no P-mass.
    """

    step: float
    first: int
    clean: Floats
    poisoned: Floats
    clean_only: float
    poisoned_only: float

    def revealed(self, probability: float) -> "DiscretePair":
        """This pair played with `probability`, openly, and nothing released otherwise."""
        if probability == 1:
            return self
        nothing = np.zeros(len(self.clean))
        nothing[-self.first] = 1 - probability
        return DiscretePair(
            step=self.step,
            first=self.first,
            clean=probability * self.clean + nothing,
            poisoned=probability * self.poisoned + nothing,
            clean_only=probability * self.clean_only,
            poisoned_only=probability * self.poisoned_only,
        )

    @property
    def forward(self) -> "LossDistribution":
        """The loss log(P/Q) under P."""
        return LossDistribution(step=self.step, first=self.first, masses=self.clean, infinite=self.clean_only)

    @property
    def backward(self) -> "LossDistribution":
        """The loss log(Q/P) under Q."""
        last = self.first + len(self.clean) - 1
        return LossDistribution(
            step=self.step, first=-last, masses=self.poisoned[::-1], infinite=self.poisoned_only
        )


@dataclass(frozen=True, kw_only=True)
class LossDistribution:
    """Pessimistic law of a privacy loss: `masses[i]` at `(first + i) * step`, `infinite` at infinity."""

    step: float
    first: int
    masses: Floats
    infinite: float

    def repeat(self, count: int) -> "LossDistribution":
        """The loss of `count` adaptive repetitions."""
        if count == 1:
            return self
        if self.infinite >= 1 or self.masses.sum() <= _TAIL:
            return LossDistribution(step=self.step, first=0, masses=np.zeros(1), infinite=1.0)
        # What is flushed to zero is far below the tail given away; denormal numbers would overflow inside.
        normal = np.where(self.masses < 1e-250, 0.0, self.masses)
        low, masses = self_convolve(normal, count)
        infinite = _TAIL - np.expm1(count * np.log1p(-self.infinite))
        return LossDistribution(
            step=self.step,
            first=self.first * count + low,
            masses=np.maximum(masses, 0.0),
            infinite=min(1.0, float(infinite)),
        )

    def then(self, other: "LossDistribution") -> "LossDistribution":
        """The loss of this release followed by another on the same grid."""
        size = len(self.masses) + len(other.masses) - 1
        spectrum = np.fft.rfft(self.masses, size) * np.fft.rfft(other.masses, size)
        return LossDistribution(
            step=self.step,
            first=self.first + other.first,
            masses=np.maximum(np.fft.irfft(spectrum, size), 0.0),
            infinite=self.infinite + other.infinite - self.infinite * other.infinite,
        )

    def profile(self) -> tuple[Floats, Floats]:
        """Grid points ε >= 0 and an upper bound on δ(ε) at each.

        Guarantee: δ(ε) = E[(1 - exp(ε - loss))₊] is exact for the discrete law, plus `ROUNDING`.
        """
        start = max(0, -self.first)
        masses = self.masses[start:]
        if len(masses) == 0:
            return np.zeros(1), np.array([min(1.0, self.infinite + ROUNDING)])
        begin = self.first + start  # positive if all losses are: grid points below it matter too
        epsilons = (begin + np.arange(len(masses))) * self.step
        above = _tail_sums(masses)
        discounted = _tail_sums(masses * np.exp(-epsilons))
        deltas = self.infinite + above - np.exp(np.minimum(epsilons, 700.0)) * discounted
        if begin > 0:
            epsilons = np.concatenate(([0.0], epsilons))
            deltas = np.concatenate(([self.infinite + above[0] - discounted[0]], deltas))
        keep = epsilons <= max(LARGEST_LOSS, epsilons[0])
        return epsilons[keep], np.clip(deltas[keep] + ROUNDING, 0.0, 1.0)

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ(ε) for one ε >= 0."""
        losses = (self.first + np.arange(len(self.masses))) * self.step
        above = losses > epsilon
        gain = -np.expm1(epsilon - losses[above])
        return min(1.0, float(self.infinite + gain @ self.masses[above]) + ROUNDING)

    def epsilon(self, delta: float) -> float:
        """Smallest ε >= 0 for which the bound on δ(ε) is at most `delta`; infinite if there is none."""
        losses = (self.first + np.arange(len(self.masses))) * self.step
        above = self.infinite + ROUNDING + _tail_sums(self.masses)
        if above[-1] - self.masses[-1] > delta:
            return float("inf")
        # Between grid points δ(ε) = above - exp(ε) * discounted, with exp(-loss) scaled to stay finite.
        reference = max(0.0, float(losses[-1]))
        discounted = _tail_sums(self.masses * np.exp(np.minimum(reference - losses, 700.0)))
        with np.errstate(divide="ignore", invalid="ignore"):
            crossing = reference + np.log((above - delta) / discounted)
        lower = np.concatenate(([-np.inf], losses[:-1]))
        valid = (crossing >= lower) & (crossing <= losses)
        return max(0.0, float(crossing[valid].max())) if valid.any() else 0.0


def self_convolve(masses: Floats, count: int) -> tuple[int, Floats]:
    """The law of a sum of `count` indices drawn from `masses`: its first index, and its masses from there on.

    Guarantee: at most `_TAIL` of mass lies outside.
    Reference: `self_convolve` of dp_accounting, which spends ten times as long in finding the range.

    Raises:
        ValueError: the sum spreads over more cells than memory should be asked for.
    """
    low, high = _chernoff_range(masses, count)
    if high - low >= _MOST_SUMMED:
        raise ValueError(
            f"{count} releases in sequence spread over more than {_MOST_SUMMED} losses: use fewer rounds"
        )
    size = fft.next_fast_len(max(high - low + 1, len(masses)))
    wrapped = np.real(fft.ifft(fft.fft(masses, size) ** count))  # index i stands at i modulo size
    return low, np.roll(wrapped, -low)[: high - low + 1]


def _chernoff_range(masses: Floats, count: int) -> tuple[int, int]:
    """A range that the sum of `count` indices leaves with probability `_TAIL` at most (Chernoff's bound)."""
    indices = np.arange(len(masses))
    low, high = 0, (len(masses) - 1) * count
    for exponent in range(1, 21):  # larger ones lose digits
        order = exponent / len(masses)
        up, down = (math.log(np.exp(sign * order * indices) @ masses) for sign in (1, -1))
        high = min(high, math.ceil((count * up + math.log(2 / _TAIL)) / order))
        low = max(low, math.floor(-(count * down + math.log(2 / _TAIL)) / order))
    return low, high


def _tail_sums(values: Floats) -> Floats:
    """Sums of each element and all after it."""
    return np.cumsum(values[::-1])[::-1]
