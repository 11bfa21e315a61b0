"""Texts as sequences of word numbers, and the GloVe vectors of these words."""

import html
import io
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.data.files import lines, reading
from fedproof.files import opened

PADDING, UNKNOWN = 0, 1
LENGTH = 25  # words of a tweet that are kept, as in FedProx (arXiv:1812.06127) and LEAF
MAX_ENTRY = 1e6  # vectors are of order one; not a number is not below this either
REMEDY = "remove it and run `fedproof data fetch glove`"
NO_WORD = re.compile(r"https?://\S+|www\.\S+|@\w+", re.IGNORECASE)
TOKEN = re.compile(r"[^\W_]+|'[^\W_]+|[^\w\s]")


@dataclass(frozen=True, kw_only=True)
class Encoding:
    """How texts become numbers: sequences of `length` words, with vectors from a GloVe text file."""

    vectors: Path
    length: int = LENGTH

    def __post_init__(self) -> None:
        check.count(length=self.length)


@dataclass(frozen=True, kw_only=True)
class Vocabulary:
    """Words in the order of the vector file; word i has token id i + 2.

    Token 0 is padding and token 1 any word without a vector; both have the zero vector. A mean of the
    words' vectors would depend on every user's texts, and so would void a guarantee about one user.
    """

    words: tuple[str, ...]
    vectors: NDArray[np.float32]


def tokens(text: str) -> list[str]:
    """The words of a text, as GloVe writes them.

    Lower case; addresses of web pages and @names are dropped; a word is a run of letters and digits, a
    clitic keeps its apostrophe, each other sign stands alone.

    >>> tokens("@bob I can't wait!! 2 days &amp; http://t.co/x1")
    ['i', 'can', "'t", 'wait', '!', '!', '2', 'days', '&']
    """
    return TOKEN.findall(said(text).lower())


def said(text: str) -> str:
    """A text without addresses of web pages and @names.

    >>> said("@bob LOVE it &lt;3 http://t.co/x1").strip()
    'LOVE it <3'
    """
    return NO_WORD.sub(" ", html.unescape(text))


def encode(
    texts: Sequence[str], test_texts: Sequence[str], encoding: Encoding
) -> tuple[NDArray[np.int32], NDArray[np.int32], Vocabulary]:
    """Token ids of training and test texts, `(texts, length)`, and the vocabulary they refer to.

    A longer text keeps its first words. A shorter one is padded in front, so that the last step
    of a recurrent model is the last word of every text.
    """
    seen: dict[str, int] = {}
    rows = _numbers(texts, encoding.length, seen)
    test_rows = _numbers(test_texts, encoding.length, seen)
    vocabulary = read_vectors(encoding.vectors, seen)
    final = np.full(len(seen) + 1, UNKNOWN, dtype=np.int32)
    final[0] = PADDING
    for index, word in enumerate(vocabulary.words):
        final[seen[word]] = index + 2
    return final[rows], final[test_rows], vocabulary


def read_vectors(path: Path, words: Iterable[str]) -> Vocabulary:
    """Vectors of those `words` that the GloVe text file holds: lines `word number number ...` of one length.

    Lines of other words are passed over unread, which makes this fast.
    """
    wanted = set(words)
    found: list[str] = []
    rows: list[list[float]] = []
    with (
        reading(path, REMEDY),
        opened(path) as file,
        io.TextIOWrapper(file, encoding="utf-8", newline="\n") as stream,
    ):
        dimensions = 0
        for number, line in enumerate(lines(stream, path, max_characters=2**35), start=1):
            dimensions = dimensions or line.count(" ")
            word, _, rest = line.partition(" ")
            # Words of glove.840B hold spaces: their lines have too many fields, and no text has such a word.
            if word in wanted and rest.count(" ") < dimensions:
                rows.append(_vector(rest, dimensions, path, number))
                found.append(word)
                wanted.discard(word)  # the first of equal words counts, and is read once
    if not found:
        raise ValueError(f"{path} holds none of the {len(wanted)} words of the texts; name a GloVe text file")
    vectors = np.zeros((len(found) + 2, dimensions), dtype=np.float32)
    vectors[2:] = rows
    return Vocabulary(words=tuple(found), vectors=vectors)


def find_encoding(data_folder: Path, vectors: str | os.PathLike[str] | None, length: int) -> Encoding:
    """Sequences of `length` words with the vector file named, or with the largest GloVe 6B file there is."""
    folder = data_folder / "glove"
    names = [f"glove.6B.{dimensions}d.txt" for dimensions in (300, 200, 100, 50)]
    paths = [folder / name for name in names] if vectors is None else [Path(vectors), folder / vectors]
    for path in paths:
        if path.is_file():
            return Encoding(vectors=path, length=length)
    raise ValueError(
        f"{paths[-1]} is not there; run `fedproof data fetch glove`, or put a GloVe text file there yourself"
    )


def _vector(rest: str, dimensions: int, path: Path, number: int) -> list[float]:
    try:
        vector = [float(field) for field in rest.split()]
    except ValueError:
        vector = []
    if len(vector) != dimensions or not all(abs(entry) < MAX_ENTRY for entry in vector):
        raise ValueError(f"{path}, line {number}: {dimensions} finite numbers must follow the word; {REMEDY}")
    return vector


def _numbers(texts: Sequence[str], length: int, seen: dict[str, int]) -> NDArray[np.int32]:
    """Words as numbers from 1 in the order in which they are first seen; `seen` grows with them."""
    rows = np.zeros((len(texts), length), dtype=np.int32)
    for row, text in zip(rows, texts, strict=True):
        numbers = [seen.setdefault(word, len(seen) + 1) for word in tokens(text)[:length]]
        if numbers:
            row[-len(numbers) :] = numbers
    return rows
