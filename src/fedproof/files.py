"""Files written whole or not at all, and arrays read from files that are not trusted.

A crash, a full disk or Ctrl-C leaves the old file or the new one, never half. A `.npz` file is read without
pickle, and without more memory than the file can fill.
"""

import csv
import fcntl
import io
import lzma
import math
import os
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproof import check

MAX_BYTES = 2**33  # of one array; models and scores of a part are far smaller
DAMAGE = (
    OSError,
    EOFError,
    ValueError,
    zipfile.BadZipFile,
    zlib.error,
    lzma.LZMAError,
    struct.error,
    # What a header that was tampered with makes of NumPy's and zipfile's parsers.
    tokenize.TokenError,
    SyntaxError,
    TypeError,
    LookupError,
    OverflowError,
    MemoryError,
    RuntimeError,
)
"""All that the bytes of a `.npy` or `.npz` file can cause while they are read."""


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when all has reached the disk, and only then.

    It never has more permissions than `mode`.

    Raises:
        OSError: it could not be written; the message names `path`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        with suppress(OSError):  # where nothing can be written nothing can be taken away
            partial.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot be written ({error.strerror or error})", str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write `content` as the whole of `path`, with no more permissions than `mode`."""
    with replacing(path, mode=mode) as file:
        file.write(content)


def replace_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the same keys as the whole of a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file or folder `path` for as long as the block runs; a process that dies lets go of it.

    Raises:
        ValueError: another process holds it; the message begins with `what`.
    """
    lock = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"{what}: another process is working in it") from error
        yield
    finally:
        os.close(lock)


def _sync_folder(folder: Path) -> None:
    """The name of a file is on disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file by name.

    Raises:
        ValueError: of one line that names the file: it is missing, damaged, or holds Python objects.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            entries = archive.infolist()
            return {entry.filename.removesuffix(".npy"): _member(archive, entry) for entry in entries}
    except DAMAGE as error:
        raise ValueError(f"{path} is damaged or no .npz file: {check.one_line(error)}") from error


@contextmanager
def quiet() -> Iterator[None]:
    """NumPy's advice on headers from Python 2 is not for whoever was handed the file."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        yield


def _member(archive: zipfile.ZipFile, entry: zipfile.ZipInfo) -> NDArray[Any]:
    with archive.open(entry) as stream:
        shape, fortran, dtype = read_header(stream)
        promised, held = math.prod(shape) * dtype.itemsize, entry.file_size - stream.tell()
        if promised != held or promised > MAX_BYTES:
            raise ValueError(f"{entry.filename} promises {promised} bytes, but holds {held}")
        content = bytearray(stream.read())
    return np.frombuffer(content, dtype=dtype).reshape(shape, order="F" if fortran else "C")


def read_header(stream: IO[bytes]) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and type that the `.npy` file at the start of `stream` promises."""
    readers = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
    with quiet():
        version = npy.read_magic(stream)
        if version not in readers:
            raise ValueError(f"version {version} of the format is not supported")
        shape, fortran, dtype = readers[version](stream)
    if dtype.hasobject:
        raise ValueError("Python objects are not allowed: they could run code")
    if any(length < 0 for length in shape):
        raise ValueError(f"shape {shape} has a negative length")
    return shape, fortran, dtype
