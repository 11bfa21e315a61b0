"""Features on disk, known by what they were made of: a second run starts at once.

A file's name holds the digest of what its features were made of, and that of the file itself. What was
damaged is computed again, never used. Files are `.npy`, written whole or not at all, and read without pickle.
"""

import hashlib
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from platformdirs import user_cache_path

from fedproof.data import data_folder
from fedproof.files import DAMAGE, read_header, replace_file

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
        features = compute()
        self._keep(key, features)
        return features

    def _keep(self, key: str, features: NDArray[np.float32]) -> None:
        stream = io.BytesIO()
        np.save(stream, features, allow_pickle=False)
        self.folder.mkdir(parents=True, exist_ok=True)
        digest = hashlib.sha256(stream.getbuffer()).hexdigest()
        replace_file(self.folder / f"{key}-{digest}.npy", stream.getvalue())


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
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != path.stem.rpartition("-")[2]:
            return None
        stream = io.BytesIO(content)
        shape, fortran, dtype = read_header(stream)
        if dtype != np.float32 or len(shape) != 2 or fortran:
            return None
        return np.frombuffer(content, dtype=np.float32, offset=stream.tell()).reshape(shape)
    except DAMAGE:
        return None
