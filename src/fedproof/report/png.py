"""A PNG encoder in a page: images for the gallery without an imaging library."""

import base64
import struct
import zlib

import numpy as np
from numpy.typing import NDArray

_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOUR = 0, 2


def encode_png(pixels: NDArray[np.uint8]) -> bytes:
    """A PNG file of `pixels` (height, width) in grey or (height, width, 3) in colour.

    Reference: W3C, Portable Network Graphics (third edition), sections 5, 9 and 11.
    """
    if pixels.dtype != np.uint8 or pixels.ndim not in (2, 3) or (pixels.ndim == 3 and pixels.shape[2] != 3):
        raise ValueError(
            f"pixels of type {pixels.dtype} and shape {pixels.shape} must be bytes (height, width[, 3])"
        )
    height, width = pixels.shape[:2]
    header = struct.pack(">IIBBBBB", width, height, 8, _GREY if pixels.ndim == 2 else _COLOUR, 0, 0, 0)
    lines = pixels.reshape(height, -1)
    unfiltered = np.zeros((height, 1), dtype=np.uint8)  # each line begins with its filter: none
    body = zlib.compress(np.hstack((unfiltered, lines)).tobytes(), 9)
    return _SIGNATURE + _chunk(b"IHDR", header) + _chunk(b"IDAT", body) + _chunk(b"IEND", b"")


def data_uri(pixels: NDArray[np.uint8]) -> str:
    """The image as an address that holds it.

    >>> data_uri(np.zeros((8, 8), dtype=np.uint8))[:26]
    'data:image/png;base64,iVBO'
    """
    return "data:image/png;base64," + base64.b64encode(encode_png(pixels)).decode("ascii")


def _chunk(kind: bytes, content: bytes) -> bytes:
    checksum = zlib.crc32(kind + content)
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", checksum)
