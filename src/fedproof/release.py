"""The one model of a one-round mechanism: the released sum, and what it answers. Free of torch.

A release answers by itself: it holds all that its answers depend on. But for the sum, which noise hides, all
of it is public: the anchors, the encoder's name, the map, the range of public numbers, the names of classes.

Scores are counted in units: one unit that joins or leaves moves the lead of one class over another by at most
one, one that is replaced by at most two (`mechanisms.uploads`).
"""

import json
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproof import check, exact
from fedproof.arrays import Floats, Integers
from fedproof.digests import digest_of
from fedproof.files import read_npz, replacing
from fedproof.mechanisms import Local, Mechanism, OneRound, Smoothed, UploadedOnce
from fedproof.mechanisms.codec import describe, restore
from fedproof.mechanisms.uploads import Sent, on_grid
from fedproof.projection import View, range_of

ERROR = 2.0**-20
"""How far computed scores may be from exact ones, in units."""

SHARE_ERROR = 2.0**-30
"""How far what one unit adds to a score may be from the exact number, as it is computed."""

_INPUTS = 1024  # scored at once
_SHARES = 1 << 20  # shares in scores that are held at once
_UNITS = 256  # summed at once
_ROWS = 1 << 12  # of a total that are added to at once


Kind = TypeVar("Kind")


@dataclass(frozen=True, kw_only=True)
class Release:
    """What is published, and how inputs are seen by it."""

    mechanism: UploadedOnce  # what was executed
    total: Integers  # (width, classes), the sum and its noise in steps of `mechanism.grid`
    # (anchors, features), the public inputs that others are compared with; None for plain heads
    anchors: NDArray[np.float32] | None = None
    view: View = field(default_factory=View)

    def __post_init__(self) -> None:
        upload = self.mechanism.upload
        if self.total.dtype != np.int64 or self.total.shape != upload.shape:
            raise ValueError(f"total has shape {self.total.shape}, must be int64 {upload.shape}")
        if (self.anchors is not None) != upload.bumps:
            raise ValueError(f"upload = '{upload.kind}' {'needs' if upload.bumps else 'has no'} anchors")
        if self.anchors is not None and not _finite_rows(self.anchors):
            raise ValueError(
                f"anchors are {self.anchors.dtype} {self.anchors.shape}, must be finite numbers "
                "(anchors, features)"
            )
        self._check_view()

    def _check_view(self) -> None:
        """The view gives inputs of as many numbers, and names as many classes."""
        view, classes = self.view, self.mechanism.upload.classes
        wide = math.prod(view.shape or (self.features,)) if view.map is None else view.map.width
        if wide != self.features:
            raise ValueError(f"inputs become {wide} features, must become {self.features}")
        if view.class_names is not None and len(view.class_names) != classes:
            raise ValueError(f"class_names are {len(view.class_names)}, must be {classes}")

    @property
    def features(self) -> int:
        """Numbers of an input as it is compared with anchors, or multiplied by the head."""
        return self.mechanism.upload.shape[0] if self.anchors is None else self.anchors.shape[1]

    @property
    def range(self) -> tuple[float, float] | None:
        """The smallest and the largest number of public inputs there; None where none are known."""
        if self.anchors is not None:
            return range_of(self.anchors)
        return None if self.view.map is not None else self.view.range

    @cached_property
    def sha256(self) -> str:
        """The digest of all that an answer depends on."""
        return digest_of(*self._written)

    @property
    def _written(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        said, arrays = self.view.written
        arrays = {f"{_MAP}{name}": array for name, array in arrays.items()} | {"total": self.total}
        if self.anchors is not None:
            arrays["anchors"] = self.anchors
        return {"mechanism": describe(self.mechanism), "view": said}, arrays

    def scores(self, features: NDArray[np.generic]) -> Floats:
        """Scores `(inputs, classes)` in units.

        Guarantee: each is within `ERROR` of the exact one, for this total T and for any T' that certified
        numbers of units could have made of it instead. Proof: a lead is at most 2 L max|T|, L being the
        largest sum of an input's weights. So many units join at most, and half as many are replaced, each of
        which moves an entry by one, or two: max|T'| <= (1 + 2 L) max|T|. A product of `width` terms loses a
        part of `width` 2^-53 of L max|T'|.
        """
        total, parts = self.total * self.mechanism.grid.step, []
        largest = float(np.abs(total).max()) + 1
        for weights in self.weights(features):
            reach = float(np.abs(weights).sum(axis=1).max(initial=0.0))
            if _lost(len(total), reach, (1 + 2 * reach) * largest) > ERROR / 2:
                raise ValueError(f"a sum up to {largest:g} cannot be read to {ERROR:g} of a unit")
            parts.append(weights @ total)
        return np.concatenate(parts)

    def weights(self, features: NDArray[np.generic], together: int = _INPUTS) -> Iterator[Floats]:
        """Public weights `(inputs, width)` of inputs, some of them `together`."""
        upload, flat = self.mechanism.upload, features.reshape(len(features), -1)
        if flat.shape[1] != self.features:
            raise ValueError(f"inputs have {flat.shape[1]} features, must have {self.features}")
        anchors = None if self.anchors is None else self.anchors.astype(np.float64)
        return (
            upload.weights(flat[begin : begin + together].astype(np.float64), anchors)
            for begin in range(0, len(flat), together)
        )

    def shares(self, added: Integers, features: NDArray[np.generic]) -> Iterator[Floats]:
        """What each unit's vector adds to the scores: `(inputs, classes, units)`, some inputs at a time.

        `added` (units, width, classes) are the vectors of the sum, in steps of `mechanism.grid`.

        Guarantee: each share is within `SHARE_ERROR` of the exact one.
        """
        units, width, classes = added.shape
        if _lost(width, math.sqrt(width), 1.0) > SHARE_ERROR:  # weights of norm one add up to so much
            raise ValueError(f"vectors of {width} numbers cannot be read to {SHARE_ERROR:g} of a unit")
        vectors = np.ascontiguousarray(added.transpose(1, 2, 0), dtype=np.float64).reshape(width, -1)
        vectors *= self.mechanism.grid.step
        for weights in self.weights(features, max(1, _SHARES // (classes * units))):
            yield (weights @ vectors).reshape(-1, classes, units)

    def save(self, path: Path) -> None:
        """Write the release, whole or not at all."""
        _save(path, *self._written)


def _finite_rows(array: NDArray[np.generic]) -> bool:
    return array.ndim == 2 and array.dtype.kind == "f" and bool(np.isfinite(array).all())


@dataclass(frozen=True, kw_only=True)
class Centre:
    """What is published of a `Smoothed` mechanism: the noisy sum `(dim,)` that models are drawn around."""

    mechanism: Mechanism
    total: Floats

    def __post_init__(self) -> None:
        if self.total.dtype != np.float64 or self.total.ndim != 1 or not np.isfinite(self.total).all():
            raise ValueError(f"total of shape {self.total.shape} must be finite float64 (dim,)")

    def save(self, path: Path) -> None:
        """Write the release, whole or not at all."""
        _save(path, {"mechanism": describe(self.mechanism)}, {"total": self.total})


_MAP = "map_"  # begins the names of a map's arrays
_SAID = "said"  # what is not numbers, as JSON


def _save(path: Path, said: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
    text = np.frombuffer(json.dumps(said).encode(), dtype=np.uint8)
    with replacing(path) as file:
        np.savez(file, allow_pickle=False, **{_SAID: text}, **arrays)


def load_release(path: Path) -> Release:
    """The release of a `OneRound` or `Local` mechanism in a file, which can run no code."""

    def made(mechanism: UploadedOnce, said: Any, arrays: dict[str, NDArray[Any]]) -> Release:
        maps = {name: arrays.pop(name) for name in list(arrays) if name.startswith(_MAP)}
        view = View.read(said, {name.removeprefix(_MAP): array for name, array in maps.items()})
        return Release(mechanism=mechanism, view=view, **arrays)

    return _load(path, (OneRound.kind, Local.kind), {"mechanism", "view"}, made)


def load_centre(path: Path) -> Centre:
    """The release of a `Smoothed` mechanism in a file."""
    return _load(
        path, (Smoothed.kind,), {"mechanism"}, lambda one, _, arrays: Centre(mechanism=one, **arrays)
    )


def _load(
    path: Path, kinds: tuple[str, ...], names: set[str], made: Callable[[Any, Any, dict[str, Any]], Kind]
) -> Kind:
    file = read_npz(path)
    try:
        said = json.loads(file.pop(_SAID).tobytes())
        if not isinstance(said, dict) or set(said) != names:
            raise ValueError(f"{_SAID} must name {' and '.join(sorted(names))}")
        mechanism = restore(said["mechanism"], name="mechanism")
        if mechanism.kind not in kinds:
            raise ValueError(f"mechanism must be of kind {' or '.join(kinds)}")
        return made(mechanism, said.get("view"), file)
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is no release: {check.one_line(error)}") from error


def _lost(width: int, reach: float, largest: float) -> float:
    """Twice what a product of weights that add up to `reach` and numbers up to `largest` may lose."""
    return 2 * (width + 4) * reach * largest * 2.0**-53


def vectors_of(mechanism: UploadedOnce, sent: Sent) -> Iterator[Integers]:
    """The vectors that enter the sum, some units' at a time: what each sent, put inside the set first."""
    for begin in range(0, len(sent), _UNITS):
        yield mechanism.received(sent[begin : begin + _UNITS])


def summed(mechanism: UploadedOnce, sent: Sent, keep: list[Integers] | None = None) -> Integers:
    """The exact sum of what units sent; `keep` gets the vectors that it is made of.

    Guarantee: a unit changes it by its own vector alone, whatever it sends.
    """
    check_units(mechanism, len(sent))
    total = np.zeros(mechanism.upload.shape, dtype=np.int64)
    for vectors in vectors_of(mechanism, sent):
        total += vectors.sum(axis=0)
        if keep is not None:
            keep.append(vectors)
    return total


def check_units(mechanism: UploadedOnce, units: int) -> None:
    """Raise ValueError if so many units cannot be added up exactly."""
    if units > mechanism.most_units:
        raise ValueError(
            f"{units:,} units are more than {mechanism.most_units:,}, whose sum is exact beside "
            f"noise_multiplier = {mechanism.noise_multiplier:g}"
        )


def add_upload(mechanism: UploadedOnce, total: Integers, sent: Sent, room: Floats | None = None) -> None:
    """Add what one unit sent, put inside its set first, to `total` in place: `summed`, one unit at a time.

    Beside the total and what was sent, one vector in float64 is held, in `room` if that is given.
    """
    upload, step = mechanism.upload, mechanism.grid.step
    vector = upload.inside(sent[None], None if room is None else room[None])[0]
    for begin in range(0, len(total), _ROWS):
        total[begin : begin + _ROWS] += on_grid(upload, vector[begin : begin + _ROWS], step)


def add_noise(mechanism: UploadedOnce, total: Integers, numbers: exact.Source) -> None:
    """Add the noise of the release to `total` in place: the rounding of a Gaussian mechanism's output.

    Make a release once, and show nobody the sum without it. It is the same for the engine and for a server.
    """
    flat = total.reshape(-1)
    for begin in range(0, len(flat) if mechanism.noise_multiplier else 0, _ROWS):
        piece = flat[begin : begin + _ROWS]
        piece += exact.drawn(numbers, len(piece), mechanism.grid.scale).astype(np.int64)
