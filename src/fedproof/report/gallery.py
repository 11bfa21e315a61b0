"""Inputs to look at: those with the largest and the smallest certified size, and those abstained on."""

import base64
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof.certificates import Certificate
from fedproof.federation import Federation
from fedproof.report.page import Markup, join, tag, void
from fedproof.report.run_data import RunData

_EACH = 8
_SAMPLED = 512  # inputs from which the range of the pixel values is read
_LONGEST = 280  # characters of a text, as of a tweet
_SIGNATURE = b"\x89PNG\r\n\x1a\n"
_GREY, _COLOUR = 0, 2

Show = Callable[[int], Markup]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """Some inputs and what they have in common."""

    title: str
    inputs: tuple[int, ...]


def choices(certificate: Certificate, each: int = _EACH) -> tuple[Choice, ...]:
    """Inputs with the largest and with the smallest size, if sizes differ, and those without a decision."""
    decided = [index for index, size in enumerate(certificate.certified_size) if size is not None]
    order = sorted(decided, key=lambda index: certificate.certified_size[index] or 0)
    differ = len({size for size in certificate.certified_size if size is not None}) > 1
    few = min(each, len(order) // 2) if differ else 0
    open_ones = [index for index, size in enumerate(certificate.certified_size) if size is None]
    found = (
        Choice(title="Hardest to change", inputs=tuple(order[::-1][:few])),
        Choice(title="Easiest to change", inputs=tuple(order[:few])),
        Choice(title="Abstained on", inputs=tuple(open_ones[:each])),
    )
    return tuple(choice for choice in found if choice.inputs)


def gallery(run: RunData) -> Markup | None:
    """The chosen inputs as pictures or texts; None where the data are not here or cannot be shown."""
    if run.certificate is None or run.federation is None:
        return None
    show = _shower(run.federation)
    certificate, names = run.certificate, run.class_names
    shown = choices(certificate)
    if show is None or not shown:
        return None
    return join(
        tag(
            "div",
            tag("h3", choice.title),
            tag("ul", *(_item(index, certificate, names, show) for index in choice.inputs), class_="gallery"),
        )
        for choice in shown
    )


def _item(index: int, certificate: Certificate, names: tuple[str, ...], show: Show) -> Markup:
    prediction, size = certificate.prediction[index], certificate.certified_size[index]
    label = None if certificate.labels is None else certificate.labels[index]
    says = "abstains" if prediction is None else names[prediction]
    wrong = prediction is not None and label is not None and prediction != label
    truth = (
        tag("span", f"is {names[label]}", class_="truth") if label is not None and label != prediction else ""
    )
    return tag(
        "li",
        show(index),
        tag("span", says, class_="wrong" if wrong else "says"),
        tag("span", f"size {size}", class_="size") if size is not None else "",
        truth,
    )


# --- how one input is shown ---------------------------------------------------------------------------------


def _shower(federation: Federation) -> Show | None:
    texts = getattr(federation, "test_texts", None)
    if texts is not None or federation.test_features.dtype.kind in "UO":
        return _text_shower(texts if texts is not None else federation.test_features)
    images = None if federation.encoded else as_images(federation.test_features, federation.name)
    return None if images is None else _image_shower(images, federation)


def _text_shower(texts: object) -> Show:
    def show(index: int) -> Markup:
        text = str(texts[index])  # type: ignore[index]
        return tag("blockquote", text if len(text) <= _LONGEST else text[:_LONGEST] + "…")

    return show


def _image_shower(images: NDArray[np.floating], federation: Federation) -> Show:
    names = federation.class_names
    colour = images.ndim == 4
    # Pixels were scaled channel by channel; over many images the extremes are black and white again.
    low, high = (
        (images[:_SAMPLED].min(axis=(0, 1, 2)), images[:_SAMPLED].max(axis=(0, 1, 2)))
        if colour
        else (None, None)
    )

    def show(index: int) -> Markup:
        pixels = to_bytes(images[index], low, high)
        name = names[int(federation.test_labels[index])]
        return void("img", src=data_uri(pixels), alt=f"test input {index}, {name}", width=64, height=64)

    return show


def as_images(features: NDArray[np.generic], name: str) -> NDArray[np.floating] | None:
    """Features as `(inputs, height, width)` or `(inputs, height, width, 3)`; None if they are no images.

    >>> as_images(np.zeros((5, 3, 32, 32), dtype=np.float32), "cifar10").shape
    (5, 32, 32, 3)
    """
    if not np.issubdtype(features.dtype, np.floating):
        return None
    values: NDArray[np.floating] = features  # type: ignore[assignment]
    if name.startswith("digits") and values.shape[1:] == (64,):
        return values.reshape(-1, 8, 8)
    if values.shape[1:] == (784,):
        return values.reshape(-1, 28, 28)
    if values.ndim == 4 and values.shape[1] == 1:
        return values[:, 0]
    if values.ndim == 4 and values.shape[1] == 3:
        return values.transpose(0, 2, 3, 1)
    is_grey, is_colour = (
        values.ndim == 3 and min(values.shape[1:]) >= 8,
        values.ndim == 4 and values.shape[3] == 3,
    )
    return values if is_grey or is_colour else None


def to_bytes(
    image: NDArray[np.floating],
    low: NDArray[np.floating] | None = None,
    high: NDArray[np.floating] | None = None,
) -> NDArray[np.uint8]:
    """Pixel values from 0 to 255 for those from `low` to `high`, by default of the image itself."""
    bottom = image.min() if low is None else low
    span = np.maximum((image.max() if high is None else high) - bottom, 1e-12)
    return np.asarray(np.clip(np.rint(255 * (image - bottom) / span), 0, 255), dtype=np.uint8)


# --- images without an imaging library ----------------------------------------------------------------------


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
