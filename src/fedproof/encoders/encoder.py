"""What an encoder is: a fixed, public function of one input, and how it is run over many.

Every batch has one shape, and is filled up with its own last input: what an encoder makes of an input depends
on nobody else's, and neither do its last digits.

Features are kept on disk, known by what they were made of: a second run starts at once. A file's name holds
the digest of what its features were made of, and that of the file itself. What was damaged is computed again,
never used. Files are `.npy`, written whole or not at all, and read without pickle.
"""

import hashlib
import io
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from fedproof.data import data_folder
from fedproof.files import DAMAGE, MAX_BYTES, read_header, read_whole, replace_file
from fedproof.progress import Progress, silent

FOLDER = "encoded"
_FORMAT = "1"  # of what digests are made of


@dataclass(frozen=True, kw_only=True)
class Cache:
    """Features in one folder."""

    folder: Path

    def get(
        self, key: str, num_inputs: int, compute: Callable[[], NDArray[np.float32]]
    ) -> NDArray[np.float32]:
        """Features `(inputs, features)` that `key` stands for, computed and kept if they are not there."""
        for path in sorted(self.folder.glob(f"{key}-*.npy")):
            found = _read(path)
            if found is not None and found.shape[:1] == (num_inputs,):
                return found
            path.unlink(missing_ok=True)
        features, stream = compute(), io.BytesIO()
        np.save(stream, features, allow_pickle=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(stream.getbuffer()).hexdigest()
        replace_file(self.folder / f"{key}-{digest}.npy", stream.getvalue())
        return features


def cache_beside(data_dir: str | os.PathLike[str] | None) -> Cache:
    """The cache in the folder of all data sets, or in the platform's own where nobody may write to that."""
    folder = data_folder(data_dir)
    locked = folder.exists() and not os.access(folder, os.W_OK)
    return Cache(folder=(user_cache_path("fedproof") if locked else folder) / FOLDER)


def digest_of(*parts: str | NDArray[np.generic]) -> str:
    """SHA-256 of texts and arrays, each with its type, shape and length, so that none runs into the next.

    >>> digest_of("a", "b") == digest_of("ab"), digest_of(np.ones(2)) == digest_of(np.ones((2, 1)))
    (False, False)
    """
    digest = hashlib.sha256(_FORMAT.encode())
    for part in parts:
        if isinstance(part, str):
            content = part.encode("utf-8", "surrogatepass")
            digest.update(f"text {len(content)}:".encode() + content)
        elif part.dtype == object:
            digest.update(f"texts {part.shape}: {digest_of(*map(str, part.tolist()))}".encode())
        else:
            digest.update(f"{part.dtype.str} {part.shape}:".encode())
            digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _read(path: Path) -> NDArray[np.float32] | None:
    """The features in a file whose name holds its digest; None if the file is not what was written."""
    try:
        content = read_whole(path, MAX_BYTES)
        if hashlib.sha256(content).hexdigest() != path.stem.rpartition("-")[2]:
            return None
        stream = io.BytesIO(content)
        shape, fortran, dtype = read_header(stream)
        if dtype != np.float32 or len(shape) != 2 or fortran:
            return None
        return np.frombuffer(content, dtype=np.float32, offset=stream.tell()).reshape(shape)
    except DAMAGE:
        return None


Function = Callable[[NDArray[np.generic]], NDArray[np.generic]]
"""Features `(inputs, features)` of a batch `(inputs, ...)`."""

CHUNK = 2000  # inputs whose features are kept in one file: what is lost if the computer stops
PROBE = 4
TOLERANCE = 1e-3  # of the largest feature: batches of other shapes round otherwise


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What is to be encoded, as it is stored.

    Attributes:
        name: of the data, for errors.
        parts: arrays `(inputs, ...)`: for training, for testing, and others.
        top: what stored pixels are divided by to lie between 0 and 1; None if numbers are as they are.
    """

    name: str
    parts: tuple[NDArray[np.generic], ...]
    top: float | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one input."""
        return self.parts[0].shape[1:]

    @property
    def texts(self) -> bool:
        """Whether inputs are texts."""
        return self.parts[0].dtype == object

    @property
    def described(self) -> str:
        """What inputs are, for errors."""
        return "texts" if self.texts else f"inputs of shape {self.shape}"

    def final(self, rows: NDArray[np.generic]) -> NDArray[np.generic]:
        """A copy of some rows of a part as encoders see them: pixels between 0 and 1, or as stored."""
        if self.top is None:
            return rows.copy()  # whoever writes to it changes nobody's data
        return np.asarray(np.multiply(rows, np.float32(1 / self.top), dtype=np.float32))


@dataclass(frozen=True, kw_only=True)
class Encoder:
    """A fixed function of one input, and what its features are known by.

    Attributes:
        name: what the configuration calls it.
        prepare: gives the function, when something has to be computed.
        batch: inputs at once.
        version: of the code: features of another one are not used.
        weights_sha256: of what was learned, by others and elsewhere; None if nothing was.
        check: raises ValueError for inputs that it is not made for.
        own: whether it is a user's own: it is then tried out before it is relied on.
    """

    name: str
    prepare: Callable[[], Function]
    batch: int
    version: str
    weights_sha256: str | None = None
    check: Callable[[Inputs], None] = lambda inputs: None
    own: bool = False


def encode(
    encoder: Encoder, inputs: Inputs, cache: Cache, *, progress: Progress = silent
) -> tuple[NDArray[np.float32], ...]:
    """Features `(inputs, features)` of every part, from the cache as far as they are there.

    Raises:
        ValueError: the encoder cannot be relied on, or is not made for such inputs.
    """
    encoder.check(inputs)
    running = _Running(encoder, inputs)
    known = [encoder.name, encoder.version, encoder.weights_sha256 or "", str(inputs.top), *running.tried()]
    total, done = sum(map(len, inputs.parts)), 0
    found = []
    for part in inputs.parts:
        kept = []
        for rows in _cut(part, CHUNK):
            tell = partial(_tell, progress, done, total)
            tell(0)
            kept.append(cache.get(digest_of(*known, rows), len(rows), partial(running.features, rows, tell)))
            done += len(rows)
        found.append(kept)
    progress("encode", done, total)
    widths = {features.shape[1] for kept in found for features in kept}
    if len(widths) != 1:
        raise ValueError(
            f"encoder = {encoder.name!r} gives {sorted(widths)} features for different inputs of "
            f"{inputs.name}"
        )
    nothing = np.empty((0, *widths), dtype=np.float32)  # as there may be no test inputs
    return tuple(np.concatenate([nothing, *kept]) for kept in found)


def _tell(progress: Progress, before: int, total: int, more: int) -> None:
    progress("encode", before + more, total)


class _Running:
    """An encoder at work: its function is made when it is first needed, and what it gives is checked."""

    def __init__(self, encoder: Encoder, inputs: Inputs) -> None:
        self.encoder, self.inputs = encoder, inputs
        self._function: Function | None = None

    def features(self, rows: NDArray[np.generic], tell: Callable[[int], None]) -> NDArray[np.float32]:
        """Features of some rows of a part, batch by batch."""
        size, found = self.encoder.batch, []
        for batch in _cut(rows, size):
            full = np.concatenate([batch, np.repeat(batch[-1:], size - len(batch), axis=0)])
            found.append(self._checked(full)[: len(batch)])
            tell(min(len(found) * size, len(rows)))
        return np.concatenate(found)

    def tried(self) -> tuple[str, ...]:
        """What a user's own encoder makes of a few inputs, as part of what its features are known by.

        Raises:
            ValueError: it gives other features when asked again, or when other inputs stand beside one.
        """
        rows = self.inputs.parts[0][:PROBE]
        if not self.encoder.own or not len(rows):
            return ()
        first, again = self._checked(rows), self._checked(rows)
        if not np.array_equal(first, again):
            raise ValueError(
                f"encoder = {self.encoder.name!r} gives other features when asked again: it must be frozen, "
                "without dropout or any other random number"
            )
        alone = self._checked(np.repeat(rows[:1], len(rows), axis=0))[0]
        if np.abs(alone - first[0]).max() > TOLERANCE * max(np.abs(first).max(), np.abs(alone).max()):
            raise ValueError(
                f"encoder = {self.encoder.name!r} gives an input other features when others stand beside it: "
                "one user's data would enter another's"
            )
        return (hashlib.sha256(first.tobytes()).hexdigest(),)

    def _checked(self, rows: NDArray[np.generic]) -> NDArray[np.float32]:
        if self._function is None:
            self._function = self.encoder.prepare()
        found = np.asarray(self._function(self.inputs.final(rows)))
        named = f"encoder = {self.encoder.name!r} gives features"
        if found.ndim != 2 or len(found) != len(rows) or not found.shape[1]:
            raise ValueError(
                f"{named} of shape {found.shape} for {len(rows)} inputs, must be ({len(rows)}, features): "
                "one row for each input"
            )
        if found.dtype.kind not in "fiu":
            raise ValueError(f"{named} of type {found.dtype}, must be numbers")
        with np.errstate(over="ignore"):
            features = found.astype(np.float32)
        if not np.isfinite(features).all():
            raise ValueError(f"{named} that are not finite for some inputs of {self.inputs.name}")
        return features


def _cut(rows: NDArray[np.generic], size: int) -> Iterator[NDArray[np.generic]]:
    """The rows, so many at once."""
    for begin in range(0, len(rows), size):
        yield rows[begin : begin + size]
