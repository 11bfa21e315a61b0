"""What one unit sends, once: a vector of a public set, and how far a vector of the set can move a prediction.

All sets answer the same four questions. Their vectors are matrices `(width, classes)`; a set is closed under
nothing but what its own proof says, and every vector that a unit sends is put `inside` it, whoever sends it.

Two scores differ by `(e_A - e_B)` applied to `weights(x) @ total`. Weights are divided by the influence of
one vector, so that the answer is counted in units, as votes are.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.arrays import Floats, Integers

Sent = NDArray[np.generic]


class Upload(Protocol):
    """A public convex set K of vectors that holds 0, and the public weights that an input has.

    Attributes:
        shape: `(width, classes)` of a vector.
        norm: largest Euclidean norm of a vector: the sensitivity of a sum if a unit is added or removed.
        distance: largest distance of two vectors: the sensitivity if a unit is replaced.
        labels: whether units send the classes of public inputs instead of numbers.
        bumps: whether inputs are seen through their nearness to public inputs.
        bytes: of one upload.
    """

    kind: ClassVar[str]
    labels: ClassVar[bool]
    bumps: ClassVar[bool]

    @property
    def classes(self) -> int: ...
    @property
    def shape(self) -> tuple[int, int]: ...
    @property
    def norm(self) -> float: ...
    @property
    def distance(self) -> float: ...
    @property
    def bytes(self) -> int: ...

    def inside(self, sent: Sent, out: Floats | None = None) -> Floats:
        """Vectors `(units, width, classes)` of K, whatever was sent; what is not finite becomes 0.

        They may take the place of `out`, which has their shape: fresh memory costs more than the numbers do.
        """

    def weights(self, features: Floats, anchors: Floats | None) -> Floats:
        """Public weights `(inputs, width)` of inputs `(inputs, features)`.

        Guarantee: for u, u' in K, all inputs and classes A, B, `w·(u_A - u_B)` lies in [-1, 1], so a unit
        that joins or leaves moves a lead by at most one, and one that is replaced by at most two.
        """

    def slack(self, step: float) -> float:
        """How far above its bound a vector may get when its numbers are rounded towards zero to a grid."""

    def in_words(self) -> str:
        """What one unit sends, for a reader."""


@dataclass(frozen=True, kw_only=True)
class _Head(ABC):
    """A linear head: one row of weights for each class."""

    features: int
    classes: int
    labels: ClassVar[bool] = False
    bumps: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check.count(features=self.features, classes=self.classes)
        check.plain(self)

    @property
    def shape(self) -> tuple[int, int]:
        """One weight for each feature and class."""
        return self.features, self.classes

    @property
    def bytes(self) -> int:
        """Numbers of four bytes."""
        return 4 * self.features * self.classes  # four for each number

    @property
    def distance(self) -> float:
        """Between opposite vectors, as the set is symmetric."""
        return 2 * self.norm

    @property
    @abstractmethod
    def norm(self) -> float:
        """Of the set at hand."""

    def slack(self, step: float) -> float:
        """None: rounding towards zero shortens every row."""
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Ball(_Head):
    """Heads whose norm, all numbers together, is at most one.

    Guarantee: `(e_A - e_B) ⊗ φ` has norm √2 ‖φ‖, so no u moves the lead by more.
    """

    kind: ClassVar[str] = "ball"
    axes: ClassVar[tuple[int, ...]] = (1, 2)
    norm: ClassVar[float] = 1.0

    def inside(self, sent: Sent, out: Floats | None = None) -> Floats:
        """Scaled to norm one."""
        return _scaled(_finite(sent, self.shape), self.axes, out)

    def weights(self, features: Floats, anchors: Floats | None) -> Floats:
        """φ / (√2 ‖φ‖)."""
        return _unit(features) / math.sqrt(2)

    def in_words(self) -> str:
        """What one unit sends."""
        return "one head, its norm scaled to S"


@dataclass(frozen=True, kw_only=True)
class Rows(_Head):
    """Heads whose every class has a row of norm one or less.

    Guarantee: |(u_A - u_B)·φ| ≤ (‖u_A‖ + ‖u_B‖) ‖φ‖ ≤ 2 ‖φ‖. All C rows together have norm √C at most, so at
    the same ε this is √(C/2) times the influence-free part of a ball.
    """

    kind: ClassVar[str] = "rows"
    axes: ClassVar[tuple[int, ...]] = (1,)

    @property
    def norm(self) -> float:
        """√C: every row has norm one."""
        return math.sqrt(self.classes)

    def inside(self, sent: Sent, out: Floats | None = None) -> Floats:
        """Every class's row scaled to norm one."""
        return _scaled(_finite(sent, self.shape), self.axes, out)

    def weights(self, features: Floats, anchors: Floats | None) -> Floats:
        """φ / (2 ‖φ‖)."""
        return _unit(features) / 2

    def in_words(self) -> str:
        """What one unit sends."""
        return f"one head, the row of each class scaled to S/√{self.classes}"


@dataclass(frozen=True, kw_only=True)
class Pairs(_Head):
    """Heads any two rows of which differ by norm one or less; rows add up to zero.

    Guarantee: |(u_A - u_B)·φ| ≤ ‖φ‖, and no larger set has this. With rows that add up to zero
    Σ ‖u_c‖² = (1/C) Σ_{A<B} ‖u_A - u_B‖² ≤ (C - 1)/2.
    """

    kind: ClassVar[str] = "pairs"

    @property
    def norm(self) -> float:
        """√((C - 1)/2)."""
        return math.sqrt((self.classes - 1) / 2)

    def inside(self, sent: Sent, out: Floats | None = None) -> Floats:
        """Centred over classes, and scaled until the two rows that differ most differ by norm one.

        The first row is taken from all others before anything else. Equal numbers leave 0, where a mean would
        leave what it rounded, which may be all that is seen of rows that hardly differ. The largest number is
        then one, so two rows differ by at least that, and what rounding does is small beside it.
        """
        rows = _finite(sent, self.shape)
        rows = _over(rows, _largest(rows, (1, 2)), out)
        rows -= rows[:, :, :1].copy()
        rows = _over(rows, _largest(rows, (1, 2)), out=rows)
        rows -= rows.mean(axis=2, keepdims=True)  # no row is longer than the two that differ most
        gram = np.einsum("uwa,uwb->uab", rows, rows)
        squares = np.einsum("uaa->ua", gram)
        apart = np.sqrt(np.maximum(squares[:, :, None] + squares[:, None] - 2 * gram, 0).max(axis=(1, 2)))
        return _over(rows, apart[:, None, None], out=rows)

    def slack(self, step: float) -> float:
        """Two rows of w numbers each move by up to a step times √w."""
        return 2 * step * math.sqrt(self.features)

    def weights(self, features: Floats, anchors: Floats | None) -> Floats:
        """φ / ‖φ‖."""
        return _unit(features)

    def in_words(self) -> str:
        """What one unit sends."""
        return "one head, scaled until any two of its rows differ by at most one norm"


@dataclass(frozen=True, kw_only=True)
class _Near:
    """Inputs are seen through their nearness `exp(sharpness (cos - 1))` to public inputs."""

    anchors: int
    classes: int
    sharpness: float = 16.0
    bumps: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check.count(anchors=self.anchors, classes=self.classes)
        if self.classes < 2:
            raise ValueError(f"classes = {self.classes} must be at least 2: one leaves nothing to decide")
        check.positive(sharpness=self.sharpness)
        check.plain(self)

    @property
    def shape(self) -> tuple[int, int]:
        """One number for each public input and class."""
        return self.anchors, self.classes

    def slack(self, step: float) -> float:
        """None: rounding towards zero keeps signs, and makes no number larger."""
        return 0.0

    def near(self, features: Floats, anchors: Floats | None) -> Floats:
        """Nearness `(inputs, anchors)`; 0 to all where an input has no direction."""
        if anchors is None or len(anchors) != self.anchors:
            raise ValueError(f"anchors = {self.anchors} public inputs are needed")
        rows = _unit(features)
        known = rows.any(axis=1, keepdims=True)
        return np.asarray(np.exp(self.sharpness * (rows @ _unit(anchors).T - 1)) * known)


@dataclass(frozen=True, kw_only=True)
class NonNegative(_Near):
    """Heads on non-negative features a(x), whose rows are non-negative and have norm one or less.

    Guarantee: u_A·a lies in [0, ‖a‖], so the difference of two such lies in [-‖a‖, ‖a‖]: half of what rows of
    any sign do. Rows of two vectors are at most √2 apart.
    """

    labels: ClassVar[bool] = False
    kind: ClassVar[str] = "non-negative"

    @property
    def norm(self) -> float:
        """√C: every row has norm one."""
        return math.sqrt(self.classes)

    @property
    def distance(self) -> float:
        """√(2C)."""
        return math.sqrt(2 * self.classes)

    @property
    def bytes(self) -> int:
        """Numbers of four bytes."""
        return 4 * self.anchors * self.classes  # four for each number

    def inside(self, sent: Sent, out: Floats | None = None) -> Floats:
        """Negative numbers become 0, and every class's row is scaled to norm one."""
        return _scaled(np.maximum(_finite(sent, self.shape), 0), axes=(1,), out=out)

    def weights(self, features: Floats, anchors: Floats | None) -> Floats:
        """Nearness over its norm."""
        return _unit(self.near(features, anchors))

    def in_words(self) -> str:
        """What one unit sends."""
        return f"one head without negative numbers, the row of each class scaled to S/√{self.classes}"


@dataclass(frozen=True, kw_only=True)
class Anchors(_Near):
    """Votes on public inputs: for each the unit vector of a class, less 1/C; or 0, which abstains.

    Guarantee: weights add up to one, and an entry for A less that for B lies in [-1, 1], so the weighted mean
    of such does. An entry has norm √(1 - 1/C), two differ by √2.
    Reference: a relative of PATE (Papernot et al. 2017, arXiv:1610.05755), whose teachers vote on public
    inputs; here all votes are one release, and public weights carry them to every other input.
    """

    labels: ClassVar[bool] = True
    kind: ClassVar[str] = "anchors"

    @property
    def norm(self) -> float:
        """√(M (1 - 1/C))."""
        return math.sqrt(self.anchors * (1 - 1 / self.classes))

    @property
    def distance(self) -> float:
        """√(2M)."""
        return math.sqrt(2 * self.anchors)

    @property
    def bytes(self) -> int:
        """One byte for a label, two where there are many classes."""
        return self.anchors * (1 if self.classes <= 255 else 2)

    def inside(self, sent: Sent, out: Floats | None = None) -> Floats:
        """Labels `(units, anchors)` as vectors; what is no class abstains."""
        labels = np.asarray(sent)
        if labels.ndim != 2 or labels.shape[1] != self.anchors or labels.dtype.kind not in "iu":
            raise ValueError(f"labels have shape {labels.shape}, must be integers (units, {self.anchors})")
        chosen = np.asarray(labels[:, :, None] == np.arange(self.classes))
        return np.asarray(np.where(chosen.any(axis=2, keepdims=True), chosen - 1 / self.classes, 0.0))

    def weights(self, features: Floats, anchors: Floats | None) -> Floats:
        """Nearness over its sum."""
        near = self.near(features, anchors)
        return _over(near, near.sum(axis=1, keepdims=True))

    def in_words(self) -> str:
        """What one unit sends."""
        return f"the labels that a model of its own gives to {self.anchors} public inputs"


AnyUpload = Anchors | Rows | Pairs | Ball | NonNegative
UPLOADS: dict[str, type[AnyUpload]] = {kind.kind: kind for kind in (Anchors, Rows, Pairs, Ball, NonNegative)}

# --- exact sums ---------------------------------------------------------------------------------------------

_INSIDE = 1 - 2.0**-20  # leaves room for what float64 loses at the boundary of a set
_FOLD = 128  # rows that are looked at as one


def on_grid(upload: AnyUpload, vectors: Floats, step: float) -> Integers:
    """Vectors of a set in steps of the grid, each number rounded towards zero.

    Guarantee: they lie in the set still. Proof: float64 computes norms of up to 2^20 numbers to within 2^-30,
    and all is shrunk by 2^-20. Rounding towards zero makes no number larger, and keeps its sign: balls, rows,
    non-negative heads and votes hold every such vector. Where a set does not, all is shrunk by its `slack` as
    well.
    """
    return np.trunc(vectors * ((_INSIDE - upload.slack(step)) / step)).astype(np.int64)


def shortened(upload: Ball | Rows, sent: Sent, step: float) -> Integers:
    """What was sent, on the grid: as it is where it lies in the set, and put `inside` where it does not.

    Guarantee: vectors of the set, whatever was sent. Those that lie on the grid, and in the set with 2^-20 to
    spare, stay bit for bit; norms are computed to within 2^-30.
    """
    vectors = np.asarray(_finite(sent, upload.shape), dtype=np.float64)
    with np.errstate(over="ignore"):  # what is huge is not kept
        lengths = np.sqrt(np.square(vectors).sum(axis=upload.axes, keepdims=True))
        kept = np.where(lengths <= _INSIDE, vectors, _INSIDE * upload.inside(vectors))
    return np.trunc(kept / step).astype(np.int64)


def _finite(sent: Sent, shape: tuple[int, int]) -> NDArray[np.floating]:
    """Vectors as they were sent, 0 where one is not finite."""
    vectors: NDArray[Any] = np.asarray(sent)
    if vectors.dtype.kind != "f":
        vectors = vectors.astype(np.float64)
    if vectors.shape[1:] != shape:
        raise ValueError(f"vectors have shape {vectors.shape}, must be (units, {shape[0]}, {shape[1]})")
    known = np.isfinite(_largest(vectors, (1, 2)))  # which what is not finite anywhere makes so
    return vectors if known.all() else np.where(known, vectors, vectors.dtype.type(0))


def _scaled(vectors: NDArray[np.floating], axes: tuple[int, ...], out: Floats | None = None) -> Floats:
    """Vectors whose norm over some axes is one; those that are 0 stay.

    The largest entry becomes one first: squares of huge numbers are not finite, those of tiny ones zero. Of
    all numbers one copy in float64 is held, for a server that has room for a few models only.
    """
    largest = _largest(vectors, axes)
    level = _over(vectors, largest, out)
    norms = np.sqrt(np.square(level, out=level).sum(axis=axes, keepdims=True))
    return _over(_over(vectors, largest, level), norms, level)


def _largest(vectors: NDArray[np.floating], axes: tuple[int, ...]) -> Floats:
    """The largest absolute value over some axes."""
    above, below = (_extreme(extreme, vectors, axes) for extreme in (np.max, np.min))
    return np.asarray(np.maximum(above, -below), dtype=np.float64)


def _extreme(extreme: Callable[..., Any], vectors: NDArray[np.floating], axes: tuple[int, ...]) -> Any:
    """The largest, or the smallest, entry over some axes; of one long vector by many rows at once."""
    whole = vectors.shape[1] // _FOLD * _FOLD
    if len(vectors) > 1 or axes != (1,) or vectors.ndim == 2 or not whole:
        return extreme(vectors, axis=axes, keepdims=True)
    folded = extreme(vectors[:, :whole].reshape(1, -1, _FOLD * vectors.shape[2]), axis=1)
    rest = folded.reshape(1, _FOLD, -1), vectors[:, whole:]
    return extreme(np.concatenate(rest, axis=1), axis=1, keepdims=True)


def _unit(rows: Floats) -> Floats:
    return _scaled(np.where(np.isfinite(rows), rows, 0.0), axes=(1,))


def _over(vectors: NDArray[np.floating], divisor: Floats, out: Floats | None = None) -> Floats:
    """The quotient in float64, 0 where the divisor is; `out` may be `vectors`."""
    return np.asarray(np.divide(vectors, np.where(divisor > 0, divisor, np.inf), out=out))
