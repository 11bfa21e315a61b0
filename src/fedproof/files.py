"""Files written whole or not at all, and files read that are not trusted.

A crash, a full disk or Ctrl-C leaves the old file or the new one, never half. All files are opened here: a
pipe, a device, a folder or far too much is refused before one byte is read. A `.npz` file is read without
pickle, and without more memory than the file can fill.
"""

import csv
import errno
import fcntl
import io
import json
import lzma
import math
import os
import re
import stat
import struct
import time
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any, NoReturn

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproof import check

MAX_BYTES = 2**33  # of one array; models and scores of a part are far smaller
SETTINGS = 2**24  # bytes of what people write, and of records, ledgers and summaries
RESULTS = 2**29  # of certificates, which have a few numbers for each input
DATA = 2**31  # of instances that are read at once
_DIGITS = 300  # of a whole number: float64 holds what has fewer
_POLL = 0.05  # seconds between two looks at a lock
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
def _named(path: Path) -> Iterator[None]:
    """Errors of the disk say which file could not be written."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"cannot be written ({error.strerror or error})", str(path)) from error


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when all has reached the disk, and only then.

    It never has more permissions than `mode`.

    Raises:
        OSError: it could not be written; the message names `path`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    with _named(path):
        try:
            with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            _rename(partial, path)
        except BaseException:
            with suppress(OSError):  # where nothing can be written nothing can be taken away
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


def move(path: Path, to: Path) -> None:
    """Rename a file, so that the new name is on the disk when this returns."""
    with _named(to):
        _rename(path, to)


def _rename(path: Path, to: Path) -> None:
    os.replace(path, to)
    for folder in {to.parent, path.parent}:
        _sync_folder(folder)


def make_folder(path: Path, *, mode: int = 0o777) -> None:
    """Make a folder, which has `mode`, and those above it, so that their names are on the disk."""
    if path.is_dir():
        return
    make_folder(path.parent)
    with _named(path):
        path.mkdir(mode=mode, exist_ok=True)
        _sync_folder(path.parent)


@contextmanager
def locked(path: Path, what: str, *, patience: float = 0.0) -> Iterator[None]:
    """Hold the lock file `path` for as long as the block runs; a process that dies lets go of it.

    The file stays, for good: who waits for one that is removed would not be alone.

    Raises:
        ValueError: another process holds it, for `patience` seconds; the message begins with `what`.
    """
    lock, end = os.open(path, os.O_RDWR | os.O_CREAT, 0o666), time.monotonic() + patience
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError as error:
                if time.monotonic() >= end:
                    raise ValueError(f"{what}: another process is working in it") from error
                time.sleep(_POLL)
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


# --- reading ------------------------------------------------------------------------------------------------


class UnfitError(OSError, ValueError):
    """Something else than a file of the expected size lies at a path."""

    def __str__(self) -> str:
        return f"{self.filename}: {self.strerror}"


@contextmanager
def opened(path: str | Path, most: int | None = None) -> Iterator[io.BufferedReader]:
    """A regular file of at most `most` bytes, open for reading. Opening it never waits for anybody.

    Raises:
        UnfitError: it is no regular file, or holds more; one line that names the file.
        OSError: it is not there, or nobody may read it.
    """
    handle = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)  # a pipe would wait
    try:
        state = os.fstat(handle)
        if not stat.S_ISREG(state.st_mode):
            kind = "a folder" if stat.S_ISDIR(state.st_mode) else "a pipe, a device or a socket"
            raise UnfitError(errno.EINVAL, f"is {kind}, must be a file", str(path))
        if most is not None and state.st_size > most:
            raise UnfitError(
                errno.EFBIG, f"holds {state.st_size:,} bytes, must be at most {most:,}", str(path)
            )
    except BaseException:
        os.close(handle)
        raise
    with os.fdopen(handle, "rb") as file:
        yield file


def read_whole(path: str | Path, most: int = SETTINGS) -> bytes:
    """All that the regular file `path` holds, at most `most` bytes; errors are those of `opened`."""
    with opened(path, most) as file:
        return file.read()


def read_text(path: str | Path, most: int = SETTINGS) -> str:
    """The UTF-8 text of a file; errors are those of `opened`, or UnicodeDecodeError."""
    return read_whole(path, most).decode("utf-8")


def parse_json(content: str | bytes) -> Any:
    """What a JSON text says, if all readers read the same in it.

    Raises:
        ValueError: one line. It is no JSON, names a member of an object twice, holds half a character (a lone
            surrogate), NaN, or a whole number that float64 does not hold.
    """
    try:
        text = content if isinstance(content, str) else content.decode("utf-8")
        document = json.loads(text, object_pairs_hook=_unique, parse_int=_whole, parse_constant=_constant)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    if _ESCAPED.search(text):  # nothing else makes them: UTF-8 has none
        _check_characters(document)
    return document


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; two of the same name would let two readers see different files."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"it has the field {twice!a} twice")
    return members


_ESCAPED = re.compile(r"\\u[dD][89a-fA-F]")


def _constant(name: str) -> NoReturn:
    raise ValueError(f"it holds {name}, must hold finite numbers")


def _whole(digits: str) -> int:
    if len(digits) > _DIGITS:
        raise ValueError(f"it holds a whole number of {len(digits)} digits, must be at most {_DIGITS}")
    return int(digits)


def _check_characters(value: Any) -> None:
    if isinstance(value, str):
        try:
            value.encode("utf-8")
        except UnicodeEncodeError:
            raise ValueError(f"it holds half a character in {value[:40]!a}") from None
    elif isinstance(value, dict):
        for key, part in value.items():
            _check_characters(key)
            _check_characters(part)
    elif isinstance(value, list):
        for part in value:
            _check_characters(part)


def read_npz(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of a `.npz` file by name.

    Raises:
        ValueError: of one line that names the file: it is missing, damaged, or holds Python objects.
    """
    try:
        with opened(path, MAX_BYTES) as file, zipfile.ZipFile(file) as archive:
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
