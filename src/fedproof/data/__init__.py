"""Data sets in their publishers' formats, and their partition into users: a name in, users with data out."""

import logging
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.data import cifar, digits, leaf, mnist, sent140, text
from fedproof.data import partition as ways
from fedproof.data.arrays import (
    Arrays,
    Scaling,
    Source,
    as_federation,
    choose_classes,
    chosen,
    encoded,
    limit_test,
    read_only,
    say_untested,
    users_aside,
)
from fedproof.data.fetch import fetch
from fedproof.data.files import data_folder
from fedproof.federation import EncodedBy, Federation, Summary, show, summarise
from fedproof.functions import called, load_function

__all__ = [
    "Arrays", "Summary", "comes_with_users", "data_folder", "default_users", "even_share", "fetch",
    "holds_text", "is_public", "load", "show", "summarise",
]  # fmt: skip


FOLDERS = ("mnist", *cifar.VERSIONS, "leaf", "sent140", "sent140-pseudo")  # in the folder of all data
NAMES = ("digits", *FOLDERS, "leaf/FOLDER", "idx/FOLDER", "module:function")
TESTS = ("users", "shares")  # what test inputs are where data come with users
MAX_CLASSES = 100_000  # labels beyond are account numbers or prices, and each class costs memory
USERS = {"digits": 96, "mnist": 200, "cifar10": 200, "sent140-pseudo": 805}  # the demo's and the paper's

PathLike = str | os.PathLike[str]
_LOG = logging.getLogger("fedproof")  # a line on standard error, unless the program arranges otherwise


class Encode(Protocol):
    """Gives the same instances with other features."""

    def __call__(self, source: Source, /) -> Source:
        """Features of a whole data set, or of a federation that somebody made herself."""
        ...


def load(
    name: str,
    *,
    classes: Sequence[int | str] | None = None,
    users: int | None = None,
    partition: str | None = None,
    dirichlet_alpha: float = 0.5,
    degree: float = 0.5,
    minimum: int = 1,
    most_instances: int | None = None,
    seed: int = 0,
    data_dir: PathLike | None = None,
    test: str = "users",
    test_limit: int | None = None,
    vectors: PathLike | None = None,
    length: int = text.LENGTH,
    public: int | str | None = None,
    encode: Encode | None = None,
) -> Federation:
    """Users with their training instances, and the test inputs nobody trains on; all arrays are read-only.

    `fedproof.load` does the same, knows encoders by their names, and says what the arguments are; `encode`
    makes features of inputs before anything is dealt out, in the order of the data.

    >>> federation = load("digits", classes=[0, 1], users=96)
    >>> federation.features.shape, federation.test_features.shape, int(federation.sizes.max())
    ((288, 64), (72, 64), 3)
    """
    check.not_negative_count(seed=seed)
    check.count(test_limit=1 if test_limit is None else test_limit)
    if test not in TESTS:
        raise ValueError(f"test = {test!r} must be {' or '.join(TESTS)}")
    read = partial(_read, data_dir=data_dir, vectors=vectors, length=length)
    source = read(name, shares=test == "shares")
    dealt = {"dirichlet_alpha": dirichlet_alpha, "degree": degree, "minimum": minimum}
    if isinstance(source, Federation):
        same = classes is None and users in (None, source.num_users) and partition in (None, "natural")
        _check_dealt(dealt, None, name)
        own = limit_test(_as_it_is(source, name, same, most_instances, public), test_limit)
        return own if encode is None else encode(own)
    elsewhere = None
    if isinstance(public, str):
        elsewhere, public = _elsewhere(public, name, read, encode), None
    arrays = choose_classes(source, classes)
    if partition is None:
        partition = "iid" if arrays.owners is None else "natural"
    _check_dealt(dealt, partition, name)
    aside, left = _set_aside(arrays, public, partition, seed)
    if users is None and partition != "natural":
        users = _default_users(name, arrays)
    if aside is not None and partition != "natural":
        _check_enough(len(aside), len(left), users, minimum if partition == "dirichlet" else 1)
    split = _partition(arrays, left, partition, users, dirichlet_alpha, degree, minimum, seed)
    if encode is not None:
        arrays = encode(arrays)
    if partition == "natural":
        arrays = _tests_of_users(arrays, split)
    federation = as_federation(
        limit_test(arrays, test_limit),
        split.order,
        split.offsets,
        natural=partition == "natural",
        most_instances=most_instances,
        public=aside,
    )
    if _is_own(name):
        drawn = users is not None or aside is not None
        known = ways.unsettled(partition, drawn=drawn, sifted=classes is not None, least=minimum)
        federation = replace(federation, unsettled=known)
    return federation if elsewhere is None else _with_public(federation, elsewhere)


def _is_own(name: str) -> bool:
    """Whether units may come, go and change: what is published stays as it is."""
    return ":" in name or name.partition("/")[0] in ("leaf", "idx")


def is_public(name: str) -> bool:
    """Whether anybody can have the data of this name: what comes out of them hides nobody."""
    return not _is_own(name)


def _read(
    name: str, data_dir: PathLike | None, vectors: PathLike | None, length: int, *, shares: bool = True
) -> Arrays | Federation:
    if ":" not in name:
        source: Arrays | Federation = _published(name, data_dir, vectors, length, shares)
    elif isinstance(source := _custom(name), Arrays) and not shares:
        source = users_aside(source)
    _check_classes(source)
    # In a folder of one's own an instance may come in anywhere, and move the places of those behind it.
    if _is_own(name) or isinstance(source, Federation):
        return source
    # What is published stays as it is: the place of an instance in its file is an identity.
    return replace(source, ids=np.arange(len(source.labels)))


def _check_classes(source: Arrays | Federation) -> None:
    """Raise ValueError unless there are two classes at least; say which stay empty."""
    found = np.union1d(source.labels[source.labels >= 0], source.test_labels)
    if len(found) == 1:
        raise ValueError(
            f"{source.name}: all labels of classes that are tested are {found[0]}: there must be two classes"
        )
    if len(found) and found[0] > 0:
        _LOG.warning(
            "%s: the smallest label is %s, and classes below it stay empty: number the classes from 0",
            source.name,
            found[0],
        )


def _published(
    name: str, data_dir: PathLike | None, vectors: PathLike | None, length: int, shares: bool
) -> Arrays:
    if name == "digits":
        return digits.read()
    first, _, rest = name.partition("/")
    if first == "idx" and rest:
        return mnist.read_folder(data_folder(data_dir) / rest, name=name)
    if first not in FOLDERS or (rest and first != "leaf"):
        raise ValueError(f"name = {name!r} is no data set; known: {', '.join(NAMES)}")
    folder = data_folder(data_dir)
    if name == "mnist":
        return mnist.read(folder)
    if name in cifar.VERSIONS:
        return cifar.read(folder, cifar.VERSIONS[name])
    find = partial(text.find_encoding, folder, vectors, length)
    if first == "leaf":
        return leaf.read(folder / name if rest else folder, name=name, find_encoding=find, shares=shares)
    if first == "sent140-pseudo":
        return sent140.read_pseudo(folder, encoding=find())
    return sent140.read(folder, encoding=find(), shares=shares)


def _as_it_is(
    federation: Federation, name: str, same: bool, most_instances: int | None, public: int | str | None
) -> Federation:
    """A Federation made by a user's function, unless the caller asks for something else."""
    if not same:
        raise ValueError(
            f"{name} returns a Federation of {federation.num_users} users, which is used as it is; "
            "leave out classes, users and partition"
        )
    if public is not None:
        raise ValueError(
            f"public = {public}: {name} returns a Federation, which is used as it is; leave out public, and "
            "give the Federation public_features"
        )
    return federation if most_instances is None else replace(federation, most_instances=most_instances)


def even_share(federation: Federation, name: str, partition: str | None) -> int | None:
    """The most that anybody got where instances were dealt out evenly; None where they were not.

    It follows from the size of what is published and from the number of users, and from nobody's data.
    """
    dealt = partition == "iid" or (partition is None and name in USERS)
    given = len(federation.labels) + federation.left_out
    return -(-given // federation.num_users) if dealt else None


def default_users(name: str, partition: str | None) -> int | None:
    """How many users a data set is dealt out to if nobody says; None if it comes with users of its own."""
    return USERS.get(name) if partition != "natural" else None


def comes_with_users(name: str) -> bool:
    """Whether data of this name have users of their own, or may have."""
    return ":" in name or name.partition("/")[0] in ("leaf", "sent140")


def holds_text(name: str) -> bool:
    """Whether data of this name are texts that words' vectors are looked up for, or may be."""
    return name.partition("/")[0] in ("leaf", "sent140", "sent140-pseudo")


def _default_users(name: str, arrays: Arrays) -> int:
    if arrays.owners is not None:
        return len(np.unique(arrays.owners))
    if name in USERS:
        return USERS[name]
    raise ValueError(f"{name} comes without users; say how many are to hold it (users = None)")


def _set_aside(
    arrays: Arrays, public: int | None, partition: str, seed: int
) -> tuple[NDArray[np.int64] | None, NDArray[np.int64]]:
    """Public instances, and those that are left for users; drawn by random numbers of their own."""
    if public is None:
        return None, np.arange(len(arrays.labels))
    generator = np.random.default_rng(np.random.SeedSequence(seed).spawn(1)[0])
    owners = arrays.owners if partition == "natural" else None
    return ways.set_aside(public, instances=len(arrays.labels), owners=owners, generator=generator)


_OF = {
    "dirichlet_alpha": ({"dirichlet"}, 0.5),
    "degree": ({"degree"}, 0.5),
    "minimum": ({"dirichlet", "natural"}, 1),
}
"""Options that decide something in some partitions alone, and what they are if nobody names them."""


def _check_dealt(options: Mapping[str, object], partition: str | None, name: str) -> None:
    """Refuse what decides nothing in this partition, or in a Federation, which has none."""
    for key, value in options.items():
        homes, default = _OF[key]
        if value == default or partition in homes:
            continue
        if partition is None:
            raise ValueError(f"{key} = {value}: {name} returns a Federation, which is used as it is")
        belongs = " or ".join(f"'{home}'" for home in sorted(homes))
        raise ValueError(f"{key} = {value} belongs to partition = {belongs}, not '{partition}'")


def _check_enough(public: int, left: int, users: int | None, minimum: int) -> None:
    if users is not None and users * minimum > left:
        raise ValueError(
            f"public = {public} leaves {left} instances, too few for users = {users} with at least {minimum} "
            "each; lower one of them"
        )


def _elsewhere(
    public: str, name: str, read: Callable[[str], Arrays | Federation], encode: Encode | None
) -> Arrays:
    """All training instances of another data set, as the users' become, but with nobody's data."""
    if public == name:
        raise ValueError(f"public = {public!r} is what users hold: name other data, or a number to set aside")
    other = read(public)
    if isinstance(other, Federation):
        raise ValueError(f"public = {public!r} returns a Federation; it must return fedproof.data.Arrays")
    if encode is None and isinstance(other.encoding, text.Encoding):
        raise ValueError(f"public = {public!r} holds texts: choose an encoder, which makes numbers of them")
    other = chosen(other, test_rows=slice(1))  # nobody asks for the others, and encoders are slow
    return read_only(encoded(other if encode is None else encode(other)))


def _with_public(federation: Federation, other: Arrays) -> Federation:
    shape, found = federation.features.shape[1:], other.features.shape[1:]
    if found != shape:
        raise ValueError(f"public = {other.name!r} has inputs of shape {found}, {federation.name} of {shape}")
    by = replace(federation.encoded_by or EncodedBy(), public=len(other.features), public_from=other.name)
    return replace(federation, public_features=other.features, encoded_by=by)


def _partition(
    arrays: Arrays,
    left: NDArray[np.int64],
    kind: str,
    users: int | None,
    alpha: float,
    degree: float,
    minimum: int,
    seed: int,
) -> ways.Partition:
    generator = np.random.default_rng(seed)
    if kind == "natural":
        if arrays.owners is None:
            raise ValueError(
                f"partition = 'natural': {arrays.name} comes without users; use iid or dirichlet"
            )
        split = ways.natural(arrays.owners[left], users=users, minimum=minimum, generator=generator)
        return ways.Partition(order=left[split.order], offsets=split.offsets)
    assert users is not None
    if kind == "iid":
        split = ways.iid(arrays.labels[left], users=users, generator=generator)
        return ways.Partition(order=left[split.order], offsets=split.offsets)
    left = left[arrays.labels[left] >= 0]  # who is dealt what follows from labels: there must be some
    labels = arrays.labels[left]
    if kind == "dirichlet":
        split = ways.dirichlet(labels, users=users, alpha=alpha, minimum=minimum, generator=generator)
    elif kind == "degree":
        split = ways.degree(labels, users=users, share=degree, generator=generator)
    else:
        raise ValueError(f"partition = {kind!r} must be one of {', '.join(ways.KINDS)}")
    return ways.Partition(order=left[split.order], offsets=split.offsets)


def _tests_of_users(arrays: Arrays, split: ways.Partition) -> Arrays:
    """Test inputs of the users who were kept, and those that belong to no training user."""
    assert arrays.owners is not None
    if arrays.test_owners is None:
        return arrays
    users = np.append(np.unique(arrays.owners[split.order]), -1)
    kept = np.isin(arrays.test_owners, users)
    return chosen(arrays, test_rows=kept)


# --- a user's own data --------------------------------------------------------------------------------------


def _custom(name: str) -> Arrays | Federation:
    """What the function of this name returns when it is called without arguments.

    It may return a Federation (used as it is), `Arrays`, or `(features, labels, test_features,
    test_labels)`, whose classes are the labels 0 to the largest one of the test inputs.
    """
    result = called(name, load_function("name", name))
    if isinstance(result, Federation | Arrays):
        return result
    if isinstance(result, tuple | list) and len(result) == 4:
        return _from_arrays(name, *result)
    raise ValueError(
        f"{name} returned {type(result).__name__}; it must return a fedproof.federation.Federation, "
        "fedproof.data.Arrays, or (features, labels, test_features, test_labels)"
    )


def _from_arrays(name: str, features: Any, labels: Any, test_features: Any, test_labels: Any) -> Arrays:
    numbers, test_numbers = _own_labels(name, labels), _own_labels(name, test_labels)
    largest = int(max(numbers.max(initial=0), test_numbers.max(initial=0)))
    if largest >= MAX_CLASSES:
        raise ValueError(f"{name}: label {largest} is no class; number the classes from 0")
    classes = 1 + int((test_numbers if len(test_numbers) else numbers).max(initial=0))
    inputs, test_inputs = _own_features(name, features), _own_features(name, test_features)
    if inputs.dtype != test_inputs.dtype:
        raise ValueError(
            f"{name}: training features are {inputs.dtype}, test features {test_inputs.dtype}: only uint8 is "
            "read as pixels, give both alike"
        )
    pixels = inputs.dtype == np.uint8
    if pixels:
        _LOG.warning("%s: uint8 features are read as pixels, and divided by 255", name)
    arrays = Arrays(
        features=inputs,
        labels=np.where(numbers < classes, numbers, -1),
        test_features=test_inputs,
        test_labels=test_numbers,
        class_names=tuple(str(label) for label in range(classes)),
        name=name,
        encoding=Scaling() if pixels else None,
    )
    return say_untested(arrays)


def _own_features(name: str, values: Any) -> NDArray[np.float32] | NDArray[np.uint8]:
    """Numbers as float32; bytes stay, they are pixels."""
    try:
        array = np.asarray(values)
        array = array if array.dtype == np.uint8 else array.astype(np.float32)
    except (ValueError, TypeError):
        raise ValueError(f"{name}: features must be an array of numbers, one row for each instance") from None
    if array.ndim < 2 or not np.isfinite(array).all():
        raise ValueError(f"{name}: features must be finite numbers, one row for each instance")
    return array


def _own_labels(name: str, values: Any) -> NDArray[np.int64]:
    array = np.asarray(values)
    whole = array.dtype.kind in "iub" or (array.dtype.kind == "f" and bool(np.all(array == np.trunc(array))))
    if array.ndim != 1 or not whole:
        raise ValueError(
            f"{name}: labels must be one row of integers from 0, found {array.dtype} {array.shape}"
        )
    if len(array) and array.min() < 0:
        raise ValueError(f"{name}: labels must be integers from 0, the smallest is {array.min()}")
    return array.astype(np.int64)
