"""Sentiment140 as published: a CSV file of tweets in latin-1, whose account is the user.

`read_pseudo` deals the tweets to pseudo users where a copy has no accounts. Such users are synthetic:
results on them are no results on Sentiment140 by account, and the name of the data says so everywhere.
"""

import csv
import gzip
import io
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays, check_aside, is_aside
from fedproof.data.files import existing, lines, reading
from fedproof.data.leaf import SYNTHETIC
from fedproof.data.text import Encoding
from fedproof.federation import identities
from fedproof.files import opened

FOLDER = "sent140"
OFFICIAL = "training.1600000.processed.noemoticon.csv"
WITHOUT_ACCOUNTS = "tweets.csv.gz"  # UTF-8, header `label,text`; label 0 is negative, 1 or 4 positive
REMEDY = "remove it and run `fedproof data fetch sent140`"
CLASSES = ("negative", "positive")
LABELS = {"0": 0, "1": 1, "4": 1}
NEUTRAL = "2"
MAX_CHARACTERS = 2**29  # the published file has 239 million
MAX_TWEETS = 4_000_000  # there are 1.6 million; a packed copy may pretend to any number
SPLIT_SEED = 0  # a constant, not the caller's seed: no test tweet ever trains a model of another seed


@dataclass(frozen=True, kw_only=True)
class Tweets:
    """Tweets in the order of the file; `owners` counts accounts by first appearance."""

    texts: NDArray[np.object_]
    labels: NDArray[np.int64]
    owners: NDArray[np.int64]
    accounts: tuple[str, ...]


def read(data_folder: Path, *, encoding: Encoding, shares: bool = False) -> Arrays:
    """Negative and positive tweets with the accounts that wrote them.

    About a fifth of the accounts are set apart for testing, or, as `shares`, a fifth of each account's
    tweets, at least one if it has two: the manual test set of the publishers is too small to certify with.
    """
    path = existing(data_folder / FOLDER / OFFICIAL, name="sent140")
    tweets = read_tweets(path)
    if len(tweets.accounts) < 2:
        raise ValueError(f"{path} has no accounts; use name = 'sent140-pseudo', whose users are synthetic")
    accounts = len(tweets.accounts)
    aside = np.zeros(accounts, dtype=bool) if shares else is_aside(identities(tweets.accounts))
    if not shares:
        check_aside("sent140", accounts, aside)
    test = held_out(tweets.owners) if shares else aside[tweets.owners]
    return _arrays(tweets, test, name="sent140", encoding=encoding, trains=~aside)


def read_pseudo(data_folder: Path, *, encoding: Encoding) -> Arrays:
    """Tweets without users, a fifth of them for testing; whoever partitions them makes synthetic users."""
    folder = data_folder / FOLDER
    found = [folder / name for name in (OFFICIAL, WITHOUT_ACCOUNTS) if (folder / name).is_file()]
    tweets = read_tweets(existing((found or [folder / OFFICIAL])[0], name="sent140"))
    test = held_out(np.zeros(len(tweets.labels), dtype=np.int64))
    return _arrays(tweets, test, name=f"sent140-pseudo {SYNTHETIC}", encoding=encoding)


def read_tweets(path: Path) -> Tweets:
    """Tweets of a CSV file of either kind; neutral ones are left out."""
    texts: list[str] = []
    labels: list[int] = []
    owners: list[int] = []
    accounts: dict[str, int] = {}
    with reading(path, REMEDY), opened(path) as file, _text(file, path) as stream:
        for polarity, account, text in _rows(stream, path):
            if polarity != NEUTRAL:
                texts.append(text)
                labels.append(LABELS[polarity])
                owners.append(accounts.setdefault(account, len(accounts)))
            if len(texts) > MAX_TWEETS:
                raise ValueError(f"{path} holds more than {MAX_TWEETS} tweets; {REMEDY}")
    if not texts:
        raise ValueError(f"{path} holds no tweets; {REMEDY}")
    return Tweets(
        texts=np.array(texts, dtype=object),
        labels=np.array(labels, dtype=np.int64),
        owners=np.array(owners, dtype=np.int64),
        accounts=tuple(accounts),
    )


def held_out(owners: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which instances are for testing: a fifth of each owner's, at least one of two, drawn once for all."""
    shuffled = np.random.default_rng(SPLIT_SEED).permutation(len(owners))
    by_owner = shuffled[np.argsort(owners[shuffled], kind="stable")]
    sizes = np.bincount(owners)
    starts = np.cumsum(sizes) - sizes
    rank = np.arange(len(owners)) - starts[owners[by_owner]]
    shares = np.where(sizes >= 2, np.maximum(1, sizes // 5), 0)
    test = np.empty(len(owners), dtype=bool)
    test[by_owner] = rank < shares[owners[by_owner]]
    return test


def _rows(stream: IO[str], path: Path) -> Iterator[tuple[str, str, str]]:
    """Polarity, account and text of each line."""
    table = csv.reader(lines(stream, path, max_characters=MAX_CHARACTERS))
    try:
        for number, row in enumerate(table, start=1):
            if number == 1 and row == ["label", "text"]:
                continue
            if len(row) not in (2, 6) or (row[0] not in LABELS and row[0] != NEUTRAL):
                raise ValueError(
                    f"{path}, line {table.line_num}: a label 0, 2 or 4 and six columns are expected, "
                    f"found {str(row)[:60]}; {REMEDY}"
                )
            yield row[0], row[4] if len(row) == 6 else "", row[-1]
    except csv.Error as error:
        raise ValueError(f"{path}, line {table.line_num}: no CSV ({error}); {REMEDY}") from None


def _text(file: IO[bytes], path: Path) -> IO[str]:
    if path.suffix == ".gz":
        return gzip.open(file, "rt", encoding="utf-8", newline="")
    return io.TextIOWrapper(file, encoding="latin-1", newline="")


def _arrays(
    tweets: Tweets,
    test: NDArray[np.bool_],
    *,
    name: str,
    encoding: Encoding,
    trains: NDArray[np.bool_] | None = None,
) -> Arrays:
    """`trains`: which accounts take part; None: they are no users."""
    owners = tweets.owners
    return Arrays(
        features=tweets.texts[~test],
        labels=tweets.labels[~test],
        test_features=tweets.texts[test],
        test_labels=tweets.labels[test],
        class_names=CLASSES,
        name=name,
        owners=None if trains is None else owners[~test],
        test_owners=None if trains is None else np.where(trains[owners], owners, -1)[test],
        owner_ids=None if trains is None else identities(tweets.accounts),
        encoding=encoding,
    )
