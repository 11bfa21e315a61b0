"""Trade-off curves: how small, or large, a probability can become when k units are poisoned.

For clean and poisoned output distributions P and Q, and every [0,1]-valued statistic φ of the model,

    E_Q φ ∈ [L(E_P φ), U(E_P φ)],   L(p) = inf{Q(E) : P(E) >= p},   U(p) = 1 - L(1 - p).
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import ndtr, ndtri

Floats = NDArray[np.float64]


class Tradeoff(Protocol):
    """A convex, increasing L with L(0) = 0, and U(p) = 1 - L(1 - p)."""

    def lower(self, probability: ArrayLike) -> Floats:
        """Smallest probability under poisoning of what has `probability` on clean data."""
        ...

    def upper(self, probability: ArrayLike) -> Floats:
        """Largest probability under poisoning of what has `probability` on clean data."""
        ...


@dataclass(frozen=True, kw_only=True)
class GaussianTradeoff:
    """The curve of N(0, 1) against N(shift, 1), in closed form: L(p) = Φ(Φ⁻¹(p) - shift).

    Reference: Dong, Roth, Su 2022 (Gaussian differential privacy), arXiv:1905.02383v3, Definition 2.6.

    >>> float(GaussianTradeoff(shift=0.0).lower(0.3))
    0.3
    """

    shift: float

    def lower(self, probability: ArrayLike) -> Floats:
        """Smallest probability under poisoning, elementwise."""
        return np.asarray(ndtr(ndtri(np.asarray(probability, dtype=np.float64)) - self.shift))

    def upper(self, probability: ArrayLike) -> Floats:
        """Largest probability under poisoning, elementwise."""
        return np.asarray(ndtr(ndtri(np.asarray(probability, dtype=np.float64)) + self.shift))
