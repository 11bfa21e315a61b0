"""The one arithmetic of everything that is released: bound, sum, noise, divide, quantile step.

Engine, Flower's server, one release, local noise and sites call it, with NumPy arrays or torch tensors. Torch
is never imported here: whoever hands in a tensor has done so. On a CPU everybody hands in arrays, so the same
updates and words give the same bits, whoever executes a round. A GPU sums norms in another order and draws
other words.

**Grid.** Sums and noise are whole multiples of a public power of two, the step
`2^(floor(log2 noise) - 22)`, which follows from the noise's standard deviation alone. Without noise the step
is 2^-30 of a public bound; without a bound, updates are cut into two parts whose sums are exact (`parts`).

**Sum.** Each unit's vector is bounded, divided by the step and rounded towards zero. Whole numbers below 2^53
add up exactly, in any order, and rounding towards zero makes no vector longer: a unit moves the sum by at
most the clip norm. Rounding loses at most `noise multiplier * √numbers * 2^-22` of the clip norm: 0.24 %
where the product is 10,000. Where only a float64 sum of many units is at hand, as in DP-SGD, that sum is
rounded to the grid, and units are bounded by `room_for_rounding` less.

**Noise.** `normals` draws whole numbers with the exact law of a rounded Gaussian. Then `sum + noise` is the
rounding of what the Gaussian mechanism releases: post-processing, at no cost in ε, δ or a curve, however many
numbers are released. No bit of a released number tells more than the Gaussian mechanism does.

**Afterwards** everything is post-processing: division by a declared divisor, the model's step, float32.

Reference: Mironov 2012, CCS, for what floating-point noise tells; Karney 2016, arXiv:1303.6257, for exact
sampling.
"""

import math
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np

from fedproof.arrays import Floats, Integers

BITS = 22
"""The noise's standard deviation has at least so many bits above the step of the grid."""

SUMMED = 2.0**-20
"""Of a clip norm: room for what float64 loses, on both sides, when up to 10^5 vectors are added up in some
order."""

LARGEST = 2.0**52
"""Whole numbers up to twice this are exact in float64, hence sums of them."""

Array = Any
"""A NumPy array or a torch tensor; all arrays of a call are of one library, on one device."""

Further = Callable[[int, int], int]
"""`further(word, place)` gives 64 more random bits behind a word, for places 0, 1, ..."""


class Source(Protocol):
    """Random bits on a host: `fedproof.seeds` has those of a seed and those of the operating system."""

    def words(self, count: int) -> Integers:
        """Uniform words of 64 bits, as signed numbers."""

    def further(self, word: int, place: int) -> int:
        """The bits behind a word, see `Further`."""


_SURE = 2.0**-46  # of a standard deviation: how far `ndtri` may be off below `_FAR`, 10 times what was seen
_CLEAR = 2.0**-10  # of a step: how near the middle between two numbers is looked at with more digits
_FAR = 4.5  # beyond so many standard deviations the words of 64 bits are too coarse to decide by themselves
_BLOCK = 1 << 14  # numbers at a time: what lies between words and noise stays in the cache
_PIECE = 8192  # too short for BLAS to share among threads, which would decide the last bits
_HUGE = 1e100  # beyond, squares may overflow
_TINY = 1e-300  # what a norm is divided by at least

_QUIET = 2.0**-8  # less noise than this does not make the grid finer: 2^-30 of the norm is fine enough
_FREE = 2.0**20  # an update that nothing bounds holds no larger number
_COARSE, _FINE = 2.0**-16, 2.0**-52  # steps of the two parts of such an update


# --- the grid -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class Grid:
    """A public grid: the `step`, and the noise's standard deviation in steps, `scale`; numbers or arrays.

    >>> grid = grid_of(0.5, 2.0)
    >>> float(grid.step) == 2.0**-22, round(grid.scale) == 2**22
    (True, True)
    """

    step: Any
    scale: Any


def grid_of(noise_multiplier: float, norm: Any, widest: float = 0.0) -> Grid:
    """The grid of sums of vectors up to `norm`, a number or an array, and noise of a multiple of that.

    Guarantee: all who know both get the same. The noise is never less than it says, for the scale is rounded
    up. Where the same sum gets other noise later, `widest` is the larger multiplier, whose step serves both:
    the law of `normals` is exact at every scale.
    """
    decisive = max(noise_multiplier, widest, _QUIET) * norm
    step = np.ldexp(1.0, np.frexp(decisive)[1] - 1 - BITS)
    scale = np.nextafter(noise_multiplier * norm / step, np.inf) if noise_multiplier else 0.0 * norm
    return Grid(step=step, scale=scale)


def room_for_rounding(grid: Grid, numbers: int) -> float:
    """How much two sums may move apart when both are rounded to the nearest multiples of the step.

    Guarantee: neighbouring sums at distance `S - room` or less are at distance S or less afterwards. Proof:
    each of two roundings moves each number by half a step at most.
    """
    return float(grid.step) * math.sqrt(numbers)


def check_room(grid: Grid, norm: float, numbers: int, *, noise_multiplier: float) -> None:
    """Raise ValueError where rounding to the grid may take more than a sixteenth of a vector of that norm.

    Beyond, noise is so large, or vectors are so long, that hardly any number of one reaches a step.
    """
    lost = room_for_rounding(grid, numbers)
    if not lost <= norm / 16:
        most = 2.0 ** (BITS - 4) / math.sqrt(numbers)
        raise ValueError(
            f"noise_multiplier = {noise_multiplier:g} must be at most {most:.3g} for vectors of {numbers:,} "
            "numbers: on the grid of more noise little is left of them"
        )


def most_units(grid: Grid, longest: float) -> int:
    """How many vectors, no number of which is above `longest`, add up exactly together with their noise."""
    return int((LARGEST - 64 * float(grid.scale)) * float(grid.step) / longest)


# --- the bound ----------------------------------------------------------------------------------------------


def lengths(rows: Array, sizes: Sequence[int]) -> Array:
    """L2 norms `(rows, layers)` of float64 `rows` cut into layers of the given `sizes`.

    A norm is finite if all numbers are, and their squares add up to one: a huge update is clipped, not lost.
    """
    library, begin, found = _library(rows), 0, []
    for size in sizes:
        found.append(_norms(rows[:, begin : begin + size]))
        begin += size
    return library.stack(found, 1)


def factors(norms: Array, clip_norm: Array, step: Array, numbers: int) -> Array:
    """What rows of the given float64 `norms` are multiplied by before they are rounded towards zero.

    Guarantee: `whole(rows, factors)` times the step has at most the norm `clip_norm`, rounding included.
    Proof: a computed norm of n numbers is off by at most a part of (n/2 + 2) 2^-53, quotient and product by
    2^-53 each. So (n + 8) 2^-52 of the clip norm is left as room, which grows with the number of `numbers`.
    """
    room = 1 - (8 + numbers) * 2.0**-52
    longest = clip_norm / step * room  # a quotient of this is no subnormal number, which would be inexact
    return longest / _library(norms).maximum(norms, clip_norm + _TINY + 0 * norms)


def whole(rows: Array, factor: Array) -> Array:
    """Bounded `rows` in steps of the grid, each number rounded towards zero; float64 rows are overwritten."""
    library = _library(rows)
    rows *= factor
    return library.trunc(rows, out=rows)


def parts(rows: Array) -> tuple[Array, Array]:
    """Float64 `rows`, which nothing bounds and which are overwritten, as two parts whose sums are exact.

    Guarantee: the sum of up to 2^16 of each part is exact in any order. Proof: the coarse one holds multiples
    of 2^-16 up to 2^20, the fine one multiples of 2^-52 below 2^-16.
    """
    library = _library(rows)
    coarse = library.trunc(rows / _COARSE) * _COARSE
    rows -= coarse
    rows /= _FINE
    library.trunc(rows, out=rows)
    rows *= _FINE
    return coarse, rows


def holds(rows: Array) -> Array:
    """Which float64 `rows` can be added up by `parts`: those of numbers up to 2^20."""
    return (abs(rows) <= _FREE).all(1)


def _norms(rows: Array) -> Array:
    """Norms `(rows,)`: that of a row follows from the row alone, bit for bit, whatever the others hold."""
    library = _library(rows)
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        norms = library.sqrt(_squares(rows))
        odd = ~(norms < _HUGE)
        if bool(odd.any()):
            norms[odd] = _norms_of_huge(rows[odd])
    return norms


def _norms_of_huge(rows: Array) -> Array:
    # Scaled by the largest number: the square of a huge one overflows, and its row would be lost.
    library = _library(rows)
    largest = library.amax(abs(rows), 1)
    safe = library.where(largest > 0, largest, 1.0 + 0 * largest)
    found = largest * library.sqrt(_squares(rows / safe[:, None]))
    return library.where(library.isfinite(largest), found, math.nan + 0 * found)


def _squares(rows: Array) -> Array:
    """Sums of squares `(rows,)`, each in an order that the length of a row alone decides.

    What a GPU's own sums do depends on how many rows there are, hence on who takes part: so halves are added.
    """
    if _library(rows) is np:
        squares = np.zeros(len(rows))
        for begin in range(0, rows.shape[1], _PIECE):
            piece = rows[:, begin : begin + _PIECE]
            squares += np.vecdot(piece, piece)
        return squares
    halves = rows * rows
    while halves.shape[1] > 1:
        half = (halves.shape[1] + 1) // 2
        halves[:, : halves.shape[1] - half] += halves[:, half:]
        halves = halves[:, :half]
    return halves[:, 0]


def _library(array: Array) -> Any:
    return np if isinstance(array, np.ndarray | np.generic) else sys.modules["torch"]


# --- the noise ----------------------------------------------------------------------------------------------


def normals(words: Array, scale: Array, further: Sequence[Further]) -> Array:
    """Whole numbers `(rows, numbers)` in float64 with the law of `rint(scale * N)`, N standard normal.

    Guarantee: exactly that law for uniform, independent `words`: no number is impossible, or more or less
    likely, because of how it is computed. Proof: a word and the bits behind it are the binary digits of a
    uniform number; its quantile is N. A word decides `rint` alone where the quantile is further from the
    middle between two whole numbers than 64 bits and the computed quantile leave open. Else, seven times in a
    million, as many further bits are looked at as it takes (`_decided`).
    Assumes: the computed quantile below 4.5 standard deviations is within 2^-47 of the exact one; a
    word of 64 bits leaves 2^-49 open there.

    Args:
        words: `(rows, numbers)` of int64, uniform over all its values.
        scale: at most 2^23; a number, or `(rows, 1 or numbers)`.
        further: for each row, the bits behind its words.
    """
    if _library(words) is not np:
        return _normals(words, scale, further)
    found = np.empty(words.shape)
    rows, columns = max(1, _BLOCK // max(1, words.shape[1])), min(_BLOCK, words.shape[1])
    for top in range(0, len(words), rows):
        for left in range(0, words.shape[1], columns):
            some = slice(top, top + rows), slice(left, left + columns)
            found[some] = _normals(words[some], _piece(scale, some), further[some[0]])
    return found


def _piece(scale: Array, some: tuple[slice, slice]) -> Array:
    """What of the scale belongs to some rows and columns: a number to all, one column to every column."""
    if isinstance(scale, float):
        return scale
    return scale[some[0], some[1] if scale.shape[1] > 1 else slice(None)]


def _normals(words: Array, scale: Array, further: Sequence[Further]) -> Array:
    library = _library(words)
    if not words.shape[1]:
        return words * 0.0
    if library is np:
        from scipy.special import ndtri as quantile  # here: who only describes a mechanism needs NumPy alone

        signed = words.astype(np.float64)
    else:
        signed, quantile = words.to(library.float64), library.special.ndtri
    signed += 0.5
    signed *= 2.0**-64  # its size is uniform in (0, 1/2), and its sign a bit of its own
    found = library.abs(signed)
    quantile(found, out=found)
    far = bool(found.min() < -_FAR)
    outside = found < -_FAR if far else False
    found *= scale
    drawn = library.round(found)
    found -= drawn
    library.abs(found, out=found)
    library.copysign(drawn, signed, out=drawn)
    largest = scale if isinstance(scale, float) else scale.max()
    if not far and bool(found.max() <= 0.5 - _SURE * largest):
        return drawn
    places = library.argwhere((found > 0.5 - _SURE * scale) | outside)
    if len(places):
        rows, columns = places[:, 0], places[:, 1]
        scales = scale if isinstance(scale, float) else scale[rows, columns if scale.shape[1] > 1 else 0]
        wide = np.broadcast_to(_on_host(scales), len(places)).tolist()
        asked = zip(_on_host(rows).tolist(), _on_host(words[rows, columns]).tolist(), wide, strict=True)
        sizes = []
        for row, word, one in asked:
            size = _decided(word if word >= 0 else ~word, one, partial(further[row], word))
            sizes.append(float(size if word >= 0 else -size))
        drawn[rows, columns] = found.new_tensor(sizes) if library is not np else np.array(sizes)
    return drawn


def _on_host(array: Array) -> Any:
    return array.cpu().numpy() if hasattr(array, "cpu") else array


def _decided(digits: int, scale: float, more: Callable[[int], int]) -> int:
    """`rint(scale * x)` for the x whose upper tail, a number below one half, begins with these binary digits.

    Guarantee: the whole number in whose cell every continuation of the digits lies. The quantile of the first
    64 digits leaves two numbers at most, and one where it is not near the middle between them. Else the tail
    at the middle is computed with 96 more bits than there are digits, and compared with a margin of 30.
    """
    from scipy.special import ndtri

    bits, place = 64, 0
    while True:
        if digits >> 40:  # else too few for a first guess
            guess = -float(ndtri(math.ldexp(digits, -bits))) * scale
            below = math.floor(guess)
            if abs(guess - below - 0.5) > _CLEAR:
                return round(guess)
            side = _compared(digits, bits, below + 0.5, scale)
            if side:
                return below + (side > 0)
        digits, bits, place = digits << 64 | more(place), bits + 64, place + 1


def _compared(digits: int, bits: int, middle: float, scale: float) -> int:
    """1 if all numbers with these digits are tails beyond `middle / scale`, -1 if none is, 0 if some are."""
    import mpmath

    with mpmath.workprec(bits + 96):
        tail = mpmath.ldexp(mpmath.erfc(mpmath.mpf(middle) / mpmath.mpf(scale) / mpmath.sqrt(2)) / 2, bits)
        margin = tail * mpmath.mpf(2) ** -(bits + 60)
        if digits + 1 <= tail - margin:
            return 1
        return -1 if tail + margin <= digits else 0


def drawn(numbers: Source, count: int, scale: float) -> Floats:
    """So many whole numbers, see `normals`, from the bits of one source on a host."""
    return np.asarray(normals(numbers.words(count)[None], float(scale), (numbers.further,))[0])


# --- what follows -------------------------------------------------------------------------------------------


def moved(params: Array, total: Array, step: Any, divisor: Any) -> Array:
    """Models `(replicas, dim)` in their own type after a sum in steps of the grid: post-processing."""
    noisy = total * step / divisor
    if _library(total) is np:
        return (noisy + params.astype(np.float64)).astype(params.dtype)
    return (noisy + params.to(noisy.dtype)).to(params.dtype)


def averaged(params: Array, total: Array, divisor: Any) -> Array:
    """Models after a sum without noise; one whose members sent too much stays."""
    with np.errstate(over="ignore", invalid="ignore"):
        found = moved(params, total, 1.0, divisor)
    library = _library(total)
    return library.where(library.isfinite(found).all(1)[:, None], found, params)


def noisy_bits(bits: Floats, noise_std: float, words: Any, further: Sequence[Further]) -> Floats:
    """Sums of centred bits `(replicas,)` with noise of standard deviation `noise_std`.

    Guarantee: the rounding of a Gaussian mechanism's output. Proof: multiples of one half are on the grid,
    whose step is a smaller power of two.
    """
    grid = grid_of(2 * noise_std, 0.5)
    if grid.step > 0.5:
        raise ValueError(f"count_noise_std = {noise_std:g} must be below {2.0**BITS:g}")
    drawn = normals(words[:, None], float(grid.scale), further)[:, 0]
    return np.asarray((np.rint(bits / grid.step) + drawn) * grid.step)
