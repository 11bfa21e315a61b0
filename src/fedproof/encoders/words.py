"""Mean of the words' public vectors: what a text is about, without their order."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof.data.text import PADDING, UNKNOWN, Encoding, read_vectors, tokens
from fedproof.encoders.encoder import Function, Inputs


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


def of_ids(vectors: NDArray[np.float32]) -> Function:
    """The mean as a function of token ids."""
    return lambda rows: mean_of_vectors(rows, vectors)


def of_texts(inputs: Inputs, encoding: Encoding) -> Function:
    """The mean as a function of texts; the file is read once, for all words of all parts."""
    texts = (text for part in inputs.parts for text in part.tolist())
    seen = {word for text in texts for word in tokens(text)[: encoding.length]}
    vocabulary = read_vectors(encoding.vectors, seen)
    place = {word: index + 2 for index, word in enumerate(vocabulary.words)}
    return _Texts(place=place, vectors=vocabulary.vectors, length=encoding.length)


@dataclass(frozen=True, kw_only=True)
class _Texts:
    place: Mapping[str, int]
    vectors: NDArray[np.float32]
    length: int

    def __call__(self, rows: NDArray[np.generic]) -> NDArray[np.float32]:
        ids = np.full((len(rows), self.length), PADDING, dtype=np.int64)
        for row, text in zip(ids, rows.tolist(), strict=True):
            found = [self.place.get(word, UNKNOWN) for word in tokens(text)[: self.length]]
            row[: len(found)] = found
        return mean_of_vectors(ids, self.vectors)
