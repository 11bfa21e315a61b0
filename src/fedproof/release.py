"""The one model of a one-round mechanism: the released sum, and what it answers. Free of torch.

Scores are counted in units: one unit that joins or leaves moves the lead of one class over another by at most
one, one that is replaced by at most two (`mechanisms.uploads`).
"""

import io
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.arrays import Floats, Integers
from fedproof.files import read_npz, replace_file
from fedproof.mechanisms import OneRound
from fedproof.mechanisms.codec import describe, restore
from fedproof.mechanisms.uploads import GRID, MOST_UNITS, Sent, on_grid

ERROR = 2.0**-20
"""How far computed scores may be from exact ones, in units."""

_INPUTS = 1024  # scored at once
_UNITS = 256  # summed at once


@dataclass(frozen=True, kw_only=True)
class Release:
    """What is published.

    Attributes:
        mechanism: what was executed.
        total: `(width, classes)`, the sum and its noise in multiples of `GRID`.
        anchors: `(anchors, features)`, the public inputs that others are compared with; None for plain heads.
    """

    mechanism: OneRound
    total: Integers
    anchors: NDArray[np.float32] | None = None

    def __post_init__(self) -> None:
        upload = self.mechanism.upload
        if self.total.dtype != np.int64 or self.total.shape != upload.shape:
            raise ValueError(f"total has shape {self.total.shape}, must be int64 {upload.shape}")
        if (self.anchors is not None) != upload.bumps:
            raise ValueError(f"upload = '{upload.kind}' {'needs' if upload.bumps else 'has no'} anchors")

    def scores(self, features: NDArray[np.generic]) -> Floats:
        """Scores `(inputs, classes)` in units.

        Guarantee: each is within `ERROR` of the exact one, for this total and for any that units could have
        made of it instead.

        Raises:
            ValueError: features of another shape, or a sum too large to be read that exactly.
        """
        upload, flat = self.mechanism.upload, features.reshape(len(features), -1)
        known = upload.shape[0] if self.anchors is None else self.anchors.shape[1]
        if flat.shape[1] != known:
            raise ValueError(f"inputs have {flat.shape[1]} features, must have {known}")
        total = self.total * GRID
        # Twice what a product of `width` terms may lose, of twice as much as there is: others may add to it.
        if 4 * (len(total) + 4) * np.sqrt(len(total)) * (np.abs(total).max() + 1) * 2.0**-53 > ERROR / 2:
            raise ValueError(f"a sum up to {np.abs(total).max():g} cannot be read to {ERROR:g} of a unit")
        anchors = None if self.anchors is None else self.anchors.astype(np.float64)
        parts = [
            upload.weights(flat[begin : begin + _INPUTS].astype(np.float64), anchors) @ total
            for begin in range(0, len(flat), _INPUTS)
        ]
        return np.concatenate(parts)

    def save(self, path: Path) -> None:
        """Write the release, whole or not at all."""
        stream = io.BytesIO()
        text = np.frombuffer(json.dumps(describe(self.mechanism)).encode(), dtype=np.uint8)
        arrays: dict[str, Any] = {"mechanism": text, "total": self.total}
        np.savez(stream, **(arrays if self.anchors is None else arrays | {"anchors": self.anchors}))
        replace_file(path, stream.getvalue())


def load_release(path: Path) -> Release:
    """The release in a file; it can run no code.

    Raises:
        ValueError: it is not there, or is none; the message names the file.
    """
    file = read_npz(path)
    try:
        mechanism = restore(json.loads(file["mechanism"].tobytes()), name="mechanism")
        if not isinstance(mechanism, OneRound):
            raise ValueError("mechanism must be of kind one-round")
        return Release(mechanism=mechanism, total=file["total"], anchors=file.get("anchors"))
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        raise ValueError(f"{path}: is no release: {check.one_line(error)}") from error


def summed(mechanism: OneRound, sent: Sent) -> Integers:
    """The exact sum of what units sent, each put inside the set first.

    Guarantee: a unit changes it by its own vector alone, whatever it sends.
    """
    if len(sent) > MOST_UNITS:
        raise ValueError(f"{len(sent)} units are more than {MOST_UNITS}, whose exact sum fits into 64 bits")
    total = np.zeros(mechanism.upload.shape, dtype=np.int64)
    for begin in range(0, len(sent), _UNITS):
        total += on_grid(mechanism.upload.inside(sent[begin : begin + _UNITS])).sum(axis=0)
    return total


def noised(mechanism: OneRound, total: Integers, normal: Floats) -> Integers:
    """The sum with its noise; `normal` are standard normal numbers of its shape, drawn for this sum alone.

    Rounding the noise is rounding the noisy sum, as the sum is on the grid: nothing more is learned from it.
    """
    noise = normal * (mechanism.noise_multiplier * mechanism.upload.norm / GRID)
    if not np.abs(noise).max() < 2.0**61:
        raise ValueError(f"noise_multiplier = {mechanism.noise_multiplier} is too large for a sum of 64 bits")
    return np.asarray(total + np.rint(noise).astype(np.int64))
