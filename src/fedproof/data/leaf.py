"""LEAF folders: `train/*.json` and `test/*.json` with `users`, `num_samples` and `user_data`.

Features are texts, Sentiment140's lists whose fifth entry is the text, or numbers.
"""

import unicodedata
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays, say_untested, users_aside
from fedproof.data.files import reading
from fedproof.data.text import Encoding
from fedproof.federation import identities
from fedproof.files import DATA, parse_json, read_text

REMEDY = "make it again with LEAF's preprocess.sh"
TEXT_FIELD = 4  # of Sentiment140's instances in LEAF: id, date, query, account, text
SYNTHETIC = "(synthetic users)"


@dataclass(frozen=True, kw_only=True)
class Part:
    """One of the two halves, train or test: instances in the order of their users."""

    users: tuple[str, ...]
    sizes: tuple[int, ...]
    features: list[Any]
    labels: NDArray[np.int64]


def read(
    folder: Path,
    *,
    name: str,
    find_encoding: Callable[[], Encoding],
    shares: bool = False,
) -> Arrays:
    """Instances of a LEAF folder with the users they come with.

    Tests are on whole users, see `users_aside`, or on the `shares` that the folder sets apart. Classes are
    the labels of the test inputs, in increasing order. Users whose names begin with `pseudo` are nobody's
    accounts: the name of the data then says so. `find_encoding` is asked for texts alone: numbers need no
    word vectors.
    """
    train, test = read_part(folder / "train"), read_part(folder / "test")
    if empty := [user for user, size in zip(train.users, train.sizes, strict=True) if not size][:5]:
        raise ValueError(f"{folder / 'train'}: users {empty} hold no data; remove them, or {REMEDY} -k 1")
    position = {user: index for index, user in enumerate(train.users)}
    owners = [position.get(user, -1) for user in test.users]
    synthetic = all(user.startswith("pseudo") for user in train.users)
    features = _features(train, folder / "train")
    test_features = _features(test, folder / "test", like=features)
    known = np.unique(np.concatenate([train.labels, test.labels]))
    arrays = Arrays(
        features=features,
        labels=np.searchsorted(known, train.labels).astype(np.int64),
        test_features=test_features,
        test_labels=np.searchsorted(known, test.labels).astype(np.int64),
        class_names=tuple(str(value) for value in known),
        name=f"{name} {SYNTHETIC}" if synthetic else name,
        owners=np.repeat(np.arange(len(train.users)), train.sizes),
        test_owners=np.repeat(np.array(owners, dtype=np.int64), test.sizes),
        owner_ids=identities(train.users),
        encoding=find_encoding() if features.dtype == object else None,
    )
    return say_untested(_tested(arrays if shares else users_aside(arrays)))


def _tested(arrays: Arrays) -> Arrays:
    """The classes of the test inputs alone; instances of other classes get -1."""
    values = np.unique(arrays.test_labels)
    number = np.full(len(arrays.class_names), -1, dtype=np.int64)
    number[values] = np.arange(len(values))
    names = tuple(arrays.class_names[value] for value in values)
    labels, test_labels = number[arrays.labels], number[arrays.test_labels]
    return replace(arrays, labels=labels, test_labels=test_labels, class_names=names)


def read_part(folder: Path) -> Part:
    """All JSON files of `train` or `test`, joined."""
    files = sorted(folder.glob("*.json")) if folder.is_dir() else []
    if not files:
        raise ValueError(f"{folder} holds no JSON file; a LEAF data set needs train/*.json and test/*.json")
    users: dict[str, int] = {}
    features: list[Any] = []
    labels: list[Any] = []
    for path in files:
        for written, rows, row_labels in _users_of(path):
            user = unicodedata.normalize("NFC", written)  # one name has several forms, and is one user
            if user in users:
                raise ValueError(f"{path}: user {user!r} occurs twice; {REMEDY}")
            users[user] = len(rows)
            features += rows
            labels += row_labels
    if not features:
        raise ValueError(f"{folder} holds no instances; {REMEDY}")
    return Part(
        users=tuple(users), sizes=tuple(users.values()), features=features, labels=_labels(labels, folder)
    )


def _users_of(path: Path) -> list[tuple[str, list[Any], list[Any]]]:
    """Users of one file with their features and labels, once all counts agree."""
    names, counts, by_user = _fields(path)
    if not len(names) == len(counts) == len(by_user):
        raise ValueError(
            f"{path}: {len(names)} users, {len(counts)} counts and {len(by_user)} entries of data; {REMEDY}"
        )
    rows = []
    for user, count in zip(names, counts, strict=True):
        entry = by_user.get(user) if isinstance(user, str) else None
        features, labels = (entry.get("x"), entry.get("y")) if isinstance(entry, dict) else (None, None)
        if not isinstance(features, list) or not isinstance(labels, list):
            raise ValueError(f"{path}: user {user!r} has no lists x and y in user_data; {REMEDY}")
        if not len(features) == len(labels) == count:
            raise ValueError(
                f"{path}: user {user!r} has {len(features)} features and {len(labels)} labels, "
                f"num_samples says {count!r}; {REMEDY}"
            )
        rows.append((user, features, labels))
    return rows


def _fields(path: Path) -> tuple[list[Any], list[Any], dict[str, Any]]:
    with reading(path, REMEDY):
        content = read_text(path, DATA)
    try:
        data = parse_json(content)
    except ValueError as error:
        raise ValueError(f"{path} is no JSON file ({error}); {REMEDY}") from None
    kinds = {"users": list, "num_samples": list, "user_data": dict}
    if not isinstance(data, dict) or not all(isinstance(data.get(key), kind) for key, kind in kinds.items()):
        raise ValueError(f"{path} is no LEAF file: users, num_samples and user_data are expected; {REMEDY}")
    return data["users"], data["num_samples"], data["user_data"]


def _labels(labels: list[Any], folder: Path) -> NDArray[np.int64]:
    for label in labels:
        if type(label) is not int or not -(2**31) <= label < 2**31:
            raise ValueError(f"{folder}: label {label!r} is no integer; only classification data can be used")
    return np.array(labels, dtype=np.int64)


def _features(part: Part, folder: Path, like: NDArray[np.generic] | None = None) -> NDArray[np.generic]:
    """Texts as an array of objects, or numbers as float32; the test part must look like the training part."""
    first = part.features[0]
    if isinstance(first, str) or (isinstance(first, list) and any(isinstance(item, str) for item in first)):
        array = _texts(part.features, folder)
    else:
        array = _numbers(part.features, folder)
    if like is not None and (array.dtype, array.shape[1:]) != (like.dtype, like.shape[1:]):
        raise ValueError(f"{folder}: features differ in kind or shape from those in train; {REMEDY}")
    return array


def _texts(features: list[Any], folder: Path) -> NDArray[np.generic]:
    texts = np.empty(len(features), dtype=object)
    for index, item in enumerate(features):
        value = item[TEXT_FIELD] if isinstance(item, list) and len(item) > TEXT_FIELD else item
        if not isinstance(value, str):
            raise ValueError(
                f"{folder}: feature {str(item)[:60]!r} is no text, unlike the first one; {REMEDY}"
            )
        texts[index] = value
    return texts


def _numbers(features: list[Any], folder: Path) -> NDArray[np.generic]:
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold is infinite, and refused below
            array = np.array(features, dtype=np.float32)
    except (ValueError, TypeError, OverflowError):
        raise ValueError(
            f"{folder}: features must be texts, or lists of numbers of one shape; {REMEDY}"
        ) from None
    if array.ndim < 2 or not np.isfinite(array).all():
        raise ValueError(f"{folder}: features must be lists of finite numbers; {REMEDY}")
    return array
