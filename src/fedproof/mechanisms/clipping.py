"""How one contribution is bounded."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from fedproof import check, exact
from fedproof.arrays import Floats, Integers
from fedproof.statements import Statement


class Bounding:
    """What is asked of a way to bound updates by a clip norm S; kinds answer what differs from this."""

    kind: ClassVar[str]  # its name in files
    from_cohort: ClassVar[bool] = False  # whether the clip norm is taken from what the cohort hands in
    unmet: ClassVar[tuple[Statement, ...]] = ()  # conditions that it does not meet
    words: str  # how updates are clipped, for a reader
    num_layers: int | None = None  # each bounded by itself; None: an update is bounded as a whole
    # Standard deviation of the noise on the sum of bits that the clip norm follows, which is a second query
    # of each round; None: it follows none.
    bit_noise: float | None = None

    def __post_init__(self) -> None:
        if self.num_layers is not None:
            check.count(num_layers=self.num_layers)
            check.plain(self)

    @property
    def sensitivity(self) -> float:
        """Joint L2 bound of one contribution in units of the clip norm."""
        return math.sqrt(self.num_layers or 1)


@dataclass(frozen=True, kw_only=True)
class Flat(Bounding):
    """The whole update is scaled to an L2 norm of at most the clip norm."""

    kind: ClassVar[str] = "flat"
    words = "each update is clipped to norm S as a whole"


@dataclass(frozen=True, kw_only=True)
class PerLayer(Bounding):
    """Each of `num_layers` layers is scaled to the clip norm; the joint norm may reach √layers times it."""

    num_layers: int = field()  # no default, other than above
    kind: ClassVar[str] = "per-layer"

    @property
    def words(self) -> str:  # type: ignore[override]
        """How updates are clipped, for a reader."""
        return f"each of the {self.num_layers} layers of an update is clipped to norm S by itself"


_FROM_DATA = (Statement.of("clip-norm"),)


@dataclass(frozen=True, kw_only=True)
class Median(Bounding):
    """The clip norm of a round is the median of the cohort's update norms (heuristic)."""

    kind: ClassVar[str] = "median"
    from_cohort: ClassVar[bool] = True
    unmet: ClassVar[tuple[Statement, ...]] = _FROM_DATA
    words = "each update is clipped as a whole to S, the median norm of its cohort"


@dataclass(frozen=True, kw_only=True)
class PerLayerMedian(Bounding):
    """The clip norm of each layer is the median of the cohort's norms of that layer (heuristic)."""

    num_layers: int = field()  # no default, other than above
    kind: ClassVar[str] = "per-layer-median"
    from_cohort: ClassVar[bool] = True
    unmet: ClassVar[tuple[Statement, ...]] = _FROM_DATA

    @property
    def words(self) -> str:  # type: ignore[override]
        """How updates are clipped, for a reader."""
        return f"each of the {self.num_layers} layers of an update is clipped to its median norm in a cohort"


@dataclass(frozen=True, kw_only=True)
class Quantile(Bounding):
    """The clip norm follows a quantile of the update norms, estimated with noise (sound).

    Each member adds a bit, "my norm was below the clip norm", centred to ±1/2; the bits are summed and get
    Gaussian noise of standard deviation `count_noise_std`. That is a second query of the round.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871v5, Algorithm 1 and Theorem 1.
    """

    target: float = 0.5
    learning_rate: float = 0.2
    count_noise_std: float = 5.0
    kind: ClassVar[str] = "quantile"
    words = "each update is clipped as a whole to a norm S that follows a noisy quantile"

    def __post_init__(self) -> None:
        check.open_probability(target=self.target)
        check.positive(learning_rate=self.learning_rate, count_noise_std=self.count_noise_std)
        check.plain(self)

    @property
    def bit_noise(self) -> float:  # type: ignore[override]
        """Standard deviation of the noise on the sum of bits."""
        return self.count_noise_std

    def followed(
        self,
        clip_norms: Floats,
        bits: Floats,
        words: Integers,
        further: Sequence[exact.Further],
        divisor: float,
    ) -> Floats:
        """The clip norms `(replicas,)` after one noisy geometric step towards the target.

        `bits` are the sums of the members' centred bits; `words` and `further` are what their noise is made
        of.
        """
        share = exact.noisy_bits(bits, self.count_noise_std, words, further) / divisor + 0.5
        return np.asarray(clip_norms * np.exp(-self.learning_rate * (share - self.target)))


Clipping = Flat | PerLayer | Median | PerLayerMedian | Quantile
