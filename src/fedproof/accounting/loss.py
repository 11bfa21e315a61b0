"""Privacy-loss distributions on a grid, rounded against ourselves, and their composition.

A dominating pair (P, Q) is replaced by a discrete pair whose likelihood ratios lie on a geometric grid. Each
cell between two grid ratios is split onto its two ends so that both its P-mass and its Q-mass are kept. That
is a mean-preserving spread of the ratio, so the discrete pair dominates the true one at every α
("connect the dots": Doroshenko, Ghazi, Kamath, Kumar, Manurangsi 2022, arXiv:2207.04380v1).
"""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy import fft

from fedproof.arrays import Floats

# Beyond this loss the smaller of the two masses is below 1e-26 and is given away.
LARGEST_LOSS = 60.0
# Mass given away at the ends of a convolution, and added to every δ that is read.
_TAIL = 1e-15
ROUNDING = 1e-12
_UNIT = float(np.finfo(np.float64).eps)
_MOST_SUMMED = 1 << 23  # cells of a sum: a gigabyte while it is transformed


@dataclass(frozen=True, kw_only=True)
class DiscretePair:
    """Masses of P and Q on losses `(first + i) * step`, and what has infinite loss."""

    step: float
    first: int
    clean: Floats  # P-mass at each loss log(P/Q)
    poisoned: Floats  # Q-mass at each loss
    clean_only: float  # P-mass taken to have no Q-mass
    poisoned_only: float  # Q-mass taken to have no P-mass

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
        finite = float(self.masses.sum())
        if self.infinite >= 1 or finite <= 0 or count * math.log(finite) <= math.log(_TAIL):
            return LossDistribution(step=self.step, first=0, masses=np.zeros(1), infinite=1.0)
        # What is flushed to zero is far below the tail given away; denormal numbers would overflow inside.
        normal = np.where(self.masses < 1e-250, 0.0, self.masses)
        low, masses, rounding = self_convolve(normal, count)
        infinite = _TAIL + rounding - np.expm1(count * np.log1p(-self.infinite))
        return LossDistribution(
            step=self.step,
            first=self.first * count + low,
            masses=np.maximum(masses, 0.0),
            infinite=min(1.0, float(infinite)),
        )

    def then(self, other: "LossDistribution") -> "LossDistribution":
        """The loss of this release followed by another on the same grid."""
        length = len(self.masses) + len(other.masses) - 1
        _check_length(length, "these releases")
        size = fft.next_fast_len(length, real=True)
        spectrum = fft.rfft(self.masses, size) * fft.rfft(other.masses, size)
        rounding = _fft_rounding(np.abs(spectrum), count=2)
        infinite = self.infinite + other.infinite - self.infinite * other.infinite
        return LossDistribution(
            step=self.step,
            first=self.first + other.first,
            masses=np.maximum(fft.irfft(spectrum, size)[:length], 0.0),
            infinite=min(1.0, infinite + rounding),
        )

    @cached_property
    def _sums(self) -> tuple[Floats, Floats]:
        """E[(1 - exp(loss_i - loss))₊] at each grid loss, rounded up, and how fast it rises below it.

        With G_i = Σ_{l >= i} m_l exp(-(l - i) step) it is Δ_i + G_i (1 - exp(ε - loss_i)) from one grid loss
        down to the next. Both are sums of positive terms, from the top: G_i = m_i + exp(-step) G_{i+1} and
        Δ_i = Δ_{i+1} + (1 - exp(-step)) G_{i+1}. So Δ falls along the grid, also as computed, and keeps its
        digits where it is small. exp(-step) is rounded down, which makes losses larger.
        """
        from scipy.signal import lfilter  # here: half a second, for scipy.stats comes with it

        decay = math.nextafter(math.exp(-self.step), 0.0)
        up = 1 + 4 * _UNIT * (len(self.masses) + 1)  # more than the rounding of the sums
        slopes = lfilter([1.0], [1.0, -decay], self.masses[::-1])[::-1]
        climbs = np.cumsum(slopes[:0:-1])[::-1] * ((1 - decay) * up)
        return np.append(climbs, 0.0), slopes * up

    @cached_property
    def _cells(self) -> tuple[Floats, Floats, Floats]:
        """Grid losses, an upper bound on δ at each, and how fast δ rises below it."""
        climbs, slopes = self._sums
        losses = (self.first + np.arange(len(self.masses), dtype=np.float64)) * self.step
        return losses, self.infinite + ROUNDING + 2 * _UNIT * np.abs(losses).max() + climbs, slopes

    def divergences(self) -> Floats:
        """H_α at the grid losses from zero on, of one release; zero is on the grid."""
        climbs, _ = self._sums
        return np.asarray(self.infinite + climbs[-self.first :])

    def profile(self) -> tuple[Floats, Floats]:
        """Grid points ε >= 0, the first of them zero, and an upper bound on δ(ε) at each.

        Guarantee: at least E[(1 - exp(ε - loss))₊], for all that floating-point numbers round.
        """
        losses, deltas, _ = self._cells
        keep = (losses >= 0) & (losses <= LARGEST_LOSS)
        epsilons, deltas = losses[keep], deltas[keep]
        if self.first > 0 or not keep.any():  # zero is not on the grid
            epsilons, deltas = np.append(0.0, epsilons), np.append(self.delta(0.0), deltas)
        return epsilons, np.minimum(deltas, 1.0)

    def delta(self, epsilon: float) -> float:
        """Upper bound on δ(ε) for one ε >= 0, falling with ε."""
        losses, deltas, slopes = self._cells
        cell = int(np.searchsorted(losses, epsilon))  # the first loss that is not below ε
        if cell == len(losses):
            return min(1.0, float(deltas[-1]))
        inside = float(deltas[cell] - slopes[cell] * math.expm1(epsilon - losses[cell]))
        most = float(deltas[cell - 1]) if cell else 1.0
        return min(1.0, most, inside)

    def epsilon(self, delta: float) -> float:
        """Smallest ε >= 0 for which the bound on δ(ε) is at most `delta`; infinite if there is none.

        Guarantee: `self.delta(ε) <= delta`, to the last digit. The cell is found by the values of δ on the
        grid, which fall; the root inside it is kept in it and moved up until it passes.
        """
        if delta >= 1:
            return 0.0
        losses, deltas, slopes = self._cells
        if not deltas[-1] <= delta:
            return float("inf")
        cell = int(np.searchsorted(-deltas, -delta))  # the first grid point at which δ is small enough
        top = float(losses[cell])
        if top <= 0:
            return 0.0
        climb = float(delta - deltas[cell])
        inside = top + math.log1p(-climb / slopes[cell]) if climb < slopes[cell] else -math.inf
        epsilon = max(0.0, min(top, inside), float(losses[cell - 1]) if cell else 0.0)
        move = math.ulp(top)
        while epsilon < top and self.delta(epsilon) > delta:
            epsilon, move = min(top, epsilon + move), 2 * move
        return epsilon


def self_convolve(masses: Floats, count: int) -> tuple[int, Floats, float]:
    """The law of a sum of `count` indices drawn from `masses`: first index, masses from there on, rounding.

    Guarantee: at most `_TAIL` of mass lies outside, and the masses' errors add up to no more than `rounding`.
    Reference: `self_convolve` of dp_accounting, which spends ten times as long in finding the range.
    """
    low, high = _chernoff_range(masses, count)
    _check_length(high - low + 1, f"{count} releases")
    size = fft.next_fast_len(max(high - low + 1, len(masses)), real=True)
    spectrum = fft.rfft(masses, size)
    rounding = _fft_rounding(np.abs(spectrum) ** (count - 1), count)
    wrapped = fft.irfft(spectrum**count, size)  # index i stands at i modulo size
    return low, np.roll(wrapped, -low)[: high - low + 1], rounding


def _fft_rounding(spectrum: Floats, count: int) -> float:
    """Bound on the sum of all errors that transforming, multiplying and transforming back makes.

    Each element of a transform of masses is off by a few units in the last place, `count` times as many after
    the power, and so is their sum at every place of the result; hence `size` places times the mean over the
    spectrum. Errors of either sign mostly cancel: measured against extended precision, the sum of their
    absolute values was 5 to 80 times smaller, and any partial sum 10 to 300 times.

    `spectrum` are absolute values of the power below `count`, for one half of the frequencies.
    """
    return _UNIT * (count + math.log2(2 * len(spectrum))) * 2 * float(spectrum.sum())


def _check_length(length: int, releases: str) -> None:
    if length > _MOST_SUMMED:
        raise ValueError(
            f"{releases} in sequence spread over more than {_MOST_SUMMED} losses: use fewer rounds"
        )


def _chernoff_range(masses: Floats, count: int) -> tuple[int, int]:
    """A range that the sum of `count` indices leaves with probability `_TAIL` at most (Chernoff's bound)."""
    low, high = 0, (len(masses) - 1) * count
    tilt = np.exp(np.arange(len(masses)) / len(masses))
    heavier, lighter = masses, masses
    for exponent in range(1, 21):  # larger ones lose digits
        heavier, lighter = heavier * tilt, lighter / tilt
        up, down = math.log(heavier.sum()), math.log(lighter.sum())
        order = exponent / len(masses)
        high = min(high, math.ceil((count * up + math.log(2 / _TAIL)) / order))
        low = max(low, math.floor(-(count * down + math.log(2 / _TAIL)) / order))
    return low, high
