"""Arrays from `.npz` files that are not trusted: no pickle, and no more memory than the file can fill."""

import lzma
import math
import struct
import tokenize
import warnings
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
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
