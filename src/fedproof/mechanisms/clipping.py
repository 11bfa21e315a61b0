"""How one contribution is bounded.

`num_layers` tells whether each layer is bounded by itself, `from_cohort` whether the bound is taken from what
the cohort hands in, `bit_noise` whether it follows from noisy bits, which are then a second query.
"""

import math
from dataclasses import dataclass
from typing import Any, ClassVar

from fedproof import check
from fedproof.mechanisms.caveats import Caveat


@dataclass(frozen=True, kw_only=True)
class Flat:
    """The whole update is scaled to an L2 norm of at most the clip norm."""

    sensitivity: ClassVar[float] = 1.0
    num_layers: ClassVar[int | None] = None
    kind: ClassVar[str] = "flat"
    words: ClassVar[str] = "each update is clipped to norm S as a whole"
    bit_noise: ClassVar[float | None] = None
    from_cohort: ClassVar[bool] = False
    caveats: ClassVar[tuple[Caveat, ...]] = ()


@dataclass(frozen=True, kw_only=True)
class PerLayer:
    """Each of `num_layers` layers is scaled to the clip norm; the joint norm may reach √layers times it."""

    num_layers: int
    kind: ClassVar[str] = "per-layer"
    bit_noise: ClassVar[float | None] = None
    from_cohort: ClassVar[bool] = False
    caveats: ClassVar[tuple[Caveat, ...]] = ()

    def __post_init__(self) -> None:
        check.count(num_layers=self.num_layers)

    @property
    def sensitivity(self) -> float:
        """Joint L2 bound of one contribution in units of the clip norm."""
        return math.sqrt(self.num_layers)

    @property
    def words(self) -> str:
        """How updates are clipped, for a reader."""
        return f"each of the {self.num_layers} layers of an update is clipped to norm S by itself"


_FROM_DATA = Caveat(
    code="clip-norm",
    sentence="the clip norm is the median of the cohort's norms: it depends on the data without noise",
    remedy=(
        'Set mechanism.clip = "quantile" (follows the median with noise, sound) or "flat" with a '
        "mechanism.clip_norm chosen without looking at the data."
    ),
)


@dataclass(frozen=True, kw_only=True)
class Median:
    """The clip norm of a round is the median of the cohort's update norms (heuristic)."""

    sensitivity: ClassVar[float] = 1.0
    num_layers: ClassVar[int | None] = None
    kind: ClassVar[str] = "median"
    words: ClassVar[str] = "each update is clipped as a whole to S, the median norm of its cohort"
    bit_noise: ClassVar[float | None] = None
    from_cohort: ClassVar[bool] = True
    caveats: ClassVar[tuple[Caveat, ...]] = (_FROM_DATA,)


@dataclass(frozen=True, kw_only=True)
class PerLayerMedian:
    """The clip norm of each layer is the median of the cohort's norms of that layer (heuristic)."""

    num_layers: int
    kind: ClassVar[str] = "per-layer-median"
    bit_noise: ClassVar[float | None] = None
    from_cohort: ClassVar[bool] = True
    caveats: ClassVar[tuple[Caveat, ...]] = (_FROM_DATA,)

    def __post_init__(self) -> None:
        check.count(num_layers=self.num_layers)

    @property
    def sensitivity(self) -> float:
        """Joint L2 bound of one contribution in units of the clip norm."""
        return math.sqrt(self.num_layers)

    @property
    def words(self) -> str:
        """How updates are clipped, for a reader."""
        return f"each of the {self.num_layers} layers of an update is clipped to its median norm in a cohort"


@dataclass(frozen=True, kw_only=True)
class Quantile:
    """The clip norm follows a quantile of the update norms, estimated with noise (sound).

    Each member adds a bit, "my norm was below the clip norm", centred to ±1/2; the bits are summed and get
    Gaussian noise of standard deviation `count_noise_std`. That is a second query of the round.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871v5, Algorithm 1 and Theorem 1.
    """

    target: float = 0.5
    learning_rate: float = 0.2
    count_noise_std: float = 5.0
    sensitivity: ClassVar[float] = 1.0
    num_layers: ClassVar[int | None] = None
    kind: ClassVar[str] = "quantile"
    words: ClassVar[str] = "each update is clipped as a whole to a norm S that follows a noisy quantile"
    from_cohort: ClassVar[bool] = False
    caveats: ClassVar[tuple[Caveat, ...]] = ()

    def __post_init__(self) -> None:
        check.open_probability(target=self.target)
        check.positive(learning_rate=self.learning_rate, count_noise_std=self.count_noise_std)

    @property
    def bit_noise(self) -> float:
        """Standard deviation of the noise on the sum of bits, which is a second query of each round."""
        return self.count_noise_std

    def step(self, bits: Any, noise: Any, divisor: float) -> Any:
        """Logarithm of the factor that takes the clip norm towards its target: one noisy geometric step.

        `bits` are the sums of the members' centred bits, `noise` is standard normal; arrays or tensors.
        """
        share = (bits + self.count_noise_std * noise) / divisor + 0.5
        return -self.learning_rate * (share - self.target)


Clipping = Flat | PerLayer | Median | PerLayerMedian | Quantile
