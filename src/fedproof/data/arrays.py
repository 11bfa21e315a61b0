"""The instances of one data set before users hold them: choose classes, scale, give to users."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from fedproof.data import text
from fedproof.federation import EncodedBy, Federation, by_place
from fedproof.seeds import scattered

Kind = TypeVar("Kind", bound=np.generic)
_LOG = logging.getLogger("fedproof")
ROWS_AT_ONCE = 256  # scaled block by block: a block stays in the cache, and no second copy is made


@dataclass(frozen=True, kw_only=True)
class Scaling:
    """Pixels `x` of an image become `(x / top - mean) / std`, channel by channel."""

    top: float = 255.0
    mean: tuple[float, ...] = (0.0,)
    std: tuple[float, ...] = (1.0,)


@dataclass(frozen=True, kw_only=True)
class Arrays:
    """Training and test instances of one data set; what is not said here is as in `Federation`.

    Attributes:
        features: `(instances, ...)`, as stored (bytes, texts); `encoding` makes them float32 or token ids.
        labels: `(instances,)`; -1 for an instance of no class, which is left out, see `as_federation`.
        owners: `(instances,)`, the user of each instance where the data come with users; else None.
        test_owners: `(inputs,)`, likewise; -1 for an input that belongs to no training user.
        ids: `(instances,)`, the identity of each instance, which stays whoever joins or leaves; None where
            the data do not tell.
        owner_ids: identity of owner 0, 1, ...; None if the numbers in `owners` are the identities.
        encoding: what makes stored features final, late, when classes and users are chosen; None: they are.
    """

    features: NDArray[np.generic]
    labels: NDArray[np.int64]
    test_features: NDArray[np.generic]
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    name: str
    owners: NDArray[np.int64] | None = None
    test_owners: NDArray[np.int64] | None = None
    ids: NDArray[np.int64] | None = None
    owner_ids: NDArray[np.int64] | None = None
    encoding: Scaling | text.Encoding | None = None
    vectors: NDArray[np.float32] | None = None
    test_texts: NDArray[np.generic] | None = None
    encoded_by: EncodedBy | None = None
    tested_only: bool = False  # whether test inputs say which classes there are, see `say_untested`

    def __post_init__(self) -> None:
        for features, labels in ((self.features, self.labels), (self.test_features, self.test_labels)):
            if len(features) != len(labels):
                raise ValueError(f"{self.name}: {len(features)} features but {len(labels)} labels")


Rows = NDArray[np.int64] | NDArray[np.bool_] | slice
ALL = slice(None)


def chosen(arrays: Arrays, *, rows: Rows = ALL, test_rows: Rows = ALL) -> Arrays:
    """These training instances and these test inputs alone."""

    def at(values: NDArray[Kind] | None, where: Rows) -> NDArray[Kind] | None:
        return None if values is None else values[where]

    return replace(
        arrays,
        features=arrays.features[rows],
        labels=arrays.labels[rows],
        test_features=arrays.test_features[test_rows],
        test_labels=arrays.test_labels[test_rows],
        owners=at(arrays.owners, rows),
        test_owners=at(arrays.test_owners, test_rows),
        ids=at(arrays.ids, rows),
        test_texts=at(arrays.test_texts, test_rows),
    )


def choose_classes(arrays: Arrays, classes: Sequence[int | str] | None) -> Arrays:
    """The instances of `classes` (numbers or names; None: all), numbered 0, 1, ... in the order asked for.

    Users (where the data come with users) keep what is left of their instances; one who is left with nothing
    is no user of this task.
    """
    if classes is None:
        return arrays
    wanted = [_class_index(arrays, value) for value in classes]
    if len(wanted) < 2 or len(set(wanted)) < len(wanted):
        raise ValueError(f"classes = {list(classes)!r} must be at least two different classes")
    numbers = np.full(len(arrays.class_names), -1, dtype=np.int64)
    numbers[wanted] = np.arange(len(wanted))
    labels, test_labels = numbers[arrays.labels], numbers[arrays.test_labels]
    kept, test_kept = (labels >= 0) & (arrays.labels >= 0), test_labels >= 0
    names = tuple(arrays.class_names[index] for index in wanted)
    renamed = replace(arrays, labels=labels, test_labels=test_labels, class_names=names)
    return chosen(renamed, rows=kept, test_rows=test_kept)


def say_untested(arrays: Arrays) -> Arrays:
    """The same data, marked; a line says how many training instances are of no class, hence left out.

    Where data come without a list of classes, those of the test inputs are the classes: users must not decide
    how many there are. One poisoned label that nobody else has would change the shape of every model.
    """
    if untested := int((arrays.labels < 0).sum()):
        _LOG.warning(
            "%s: %d training instances are left out, no test input has a label like theirs; classes are "
            "those of the test inputs",
            arrays.name,
            untested,
        )
    return replace(arrays, tested_only=True)


ASIDE = 5  # one of so many users is set aside for testing


def is_aside(ids: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which users of these identities are set aside for testing.

    Guarantee: it follows from a user's identity alone, so nobody changes it for others.
    """
    return np.asarray(scattered(ids) % ASIDE == 0)


def check_aside(name: str, users: int, aside: NDArray[np.bool_]) -> None:
    """Raise ValueError where nobody is left to test on, or to train on."""
    if aside.all() or not aside.any():
        raise ValueError(
            f"{name}: of {users} users {'all' if aside.all() else 'none'} would be set aside for testing: "
            "bring more, or set test = 'shares', which tests on shares of users who train, and keep the "
            "results private"
        )


def users_aside(arrays: Arrays) -> Arrays:
    """The same data with whole users for testing: about a fifth of them, who take part in nothing.

    All that they hold is for testing. Test inputs of users who train are left out; inputs of nobody who
    trains stay, and data without any other are as they were.
    """

    def tested(owners: NDArray[np.int64]) -> NDArray[np.bool_]:
        return is_aside(owners if arrays.owner_ids is None else arrays.owner_ids[owners])

    if arrays.owners is None or arrays.test_owners is None or not (arrays.test_owners >= 0).any():
        return arrays
    aside = tested(arrays.owners)
    check_aside(arrays.name, len(np.unique(arrays.owners)), aside)
    tests = chosen(arrays, test_rows=(arrays.test_owners < 0) | tested(arrays.test_owners))
    moved = chosen(arrays, rows=aside & (arrays.labels >= 0))
    return replace(
        chosen(arrays, rows=~aside),
        test_features=np.concatenate([tests.test_features, moved.features]),
        test_labels=np.concatenate([tests.test_labels, moved.labels]),
        test_owners=None,
        test_texts=None,
    )


Source = TypeVar("Source", "Arrays", Federation)


def limit_test(source: Source, limit: int | None) -> Source:
    """At most `limit` test inputs, drawn once for all: the same for every seed, in their old order."""
    if limit is None or limit >= len(source.test_labels):
        return source
    drawn = np.sort(np.random.default_rng(0).permutation(len(source.test_labels))[:limit])
    if isinstance(source, Arrays):
        return chosen(source, test_rows=drawn)
    texts = None if source.test_texts is None else tuple(source.test_texts[row] for row in drawn)
    features, labels = source.test_features[drawn], source.test_labels[drawn]
    return replace(source, test_features=features, test_labels=labels, test_texts=texts)


def encoded(arrays: Arrays, order: NDArray[np.int64] | None = None) -> Arrays:
    """Instances in their final form: float32 pixels, or token ids with their vectors.

    Of the training instances those in `order` are kept, in this order; None: all, as they are.
    """
    rows = np.arange(len(arrays.labels)) if order is None else order
    test_rows = np.arange(len(arrays.test_labels))
    features, test_features, vectors = arrays.features, arrays.test_features, arrays.vectors
    if isinstance(arrays.encoding, Scaling):
        features = _scaled_rows(features, rows, arrays.encoding)
        test_features = _scaled_rows(test_features, test_rows, arrays.encoding)
    elif isinstance(arrays.encoding, text.Encoding):
        features, test_features, vocabulary = text.encode(
            features[rows].tolist(), test_features.tolist(), arrays.encoding
        )
        vectors = vocabulary.vectors
    elif order is not None:
        features = features[rows]
    return replace(
        arrays,
        features=features,
        labels=arrays.labels[rows],
        test_features=test_features,
        owners=None if arrays.owners is None else arrays.owners[rows],
        ids=None if arrays.ids is None else arrays.ids[rows],
        vectors=vectors,
        encoding=None,
    )


def as_federation(
    arrays: Arrays,
    order: NDArray[np.int64],
    offsets: NDArray[np.int64],
    *,
    natural: bool = False,
    most_instances: int | None = None,
    public: NDArray[np.int64] | None = None,
) -> Federation:
    """Users that hold the training instances in this order, cut at `offsets`; `public` ones belong to nobody.

    Every array is made read-only: who poisons a federation must make a new one. Users to whom instances were
    dealt out are known by their number; those whom the data come with (`natural`) by the data's identities.

    Guarantee: instances of no class are left out when everybody has got hers, and leave an empty place. Were
    they left out before, one poisoned label would make one instance less to deal out, other users of it all,
    and other places, which random numbers are drawn by, of all that stand behind.
    """
    there = arrays.labels[order] >= 0
    order, offsets, places = order[there], _shortened(arrays.name, there, offsets), _places(offsets)[there]
    rows, kept = order if public is None else np.concatenate([order, public]), len(order)
    is_text = isinstance(arrays.encoding, text.Encoding)
    texts = arrays.test_features if is_text else arrays.test_texts
    final = read_only(encoded(arrays, rows))
    by = arrays.encoded_by
    users = _owner_ids(final, offsets) if natural else np.arange(len(offsets) - 1)
    ids = None if final.ids is None else final.ids[:kept]
    if ids is None and not there.all():
        ids = by_place(users.repeat(np.diff(offsets)), places)
    return Federation(
        features=final.features[:kept],
        labels=final.labels[:kept],
        offsets=frozen(offsets),
        test_features=final.test_features,
        test_labels=final.test_labels,
        class_names=final.class_names,
        name=final.name,
        vectors=final.vectors,
        test_texts=None if texts is None else tuple(map(str, texts.tolist())),
        user_ids=users,
        instance_ids=ids,
        left_out=len(there) - kept,
        tested_only=arrays.tested_only,
        tests_of_users=arrays.test_owners is not None and bool((arrays.test_owners >= 0).any()),
        most_instances=most_instances,
        public_features=None if public is None else final.features[kept:],
        encoded_by=by if public is None else replace(by or EncodedBy(), public=len(public)),
    )


def _places(offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place of each instance among its user's."""
    return np.asarray(np.arange(offsets[-1]) - offsets[:-1].repeat(np.diff(offsets)))


def _shortened(name: str, there: NDArray[np.bool_], offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    """Offsets without instances that are not `there`; whoever holds nothing else is refused."""
    found = np.concatenate([[0], np.cumsum(there)])[offsets]
    if (empty := np.flatnonzero(np.diff(found) == 0)[:5].tolist()) and not there.all():
        raise ValueError(f"{name}: users {empty} hold no instance of a class that is tested; remove them")
    return np.asarray(found)


def _owner_ids(arrays: Arrays, offsets: NDArray[np.int64]) -> NDArray[np.int64]:
    assert arrays.owners is not None
    owners = arrays.owners[offsets[:-1]]
    return owners if arrays.owner_ids is None else arrays.owner_ids[owners]


def read_only(arrays: Arrays) -> Arrays:
    """The same data in arrays that refuse to be written to."""
    return replace(
        arrays,
        features=frozen(arrays.features),
        labels=frozen(arrays.labels),
        test_features=frozen(arrays.test_features),
        test_labels=frozen(arrays.test_labels),
        vectors=None if arrays.vectors is None else frozen(arrays.vectors),
    )


def _class_index(arrays: Arrays, value: int | str) -> int:
    names = arrays.class_names
    if not isinstance(value, bool):
        if str(value) in names:  # a number is a label where labels are the names, as in LEAF
            return names.index(str(value))
        if isinstance(value, int | np.integer) and 0 <= value < len(names):
            return int(value)
    raise ValueError(
        f"classes: {value!r} is no class of {arrays.name}; it has 0 to {len(names) - 1}: {names}"
    )


def _scaled_rows(
    stored: NDArray[np.generic], rows: NDArray[np.int64], scaling: Scaling
) -> NDArray[np.float32]:
    channels = (-1,) + (1,) * (stored.ndim - 2) if len(scaling.mean) > 1 else (1,)
    std = np.asarray(scaling.std, dtype=np.float64)
    factor = (1 / (scaling.top * std)).astype(np.float32).reshape(channels)
    shift = (-np.asarray(scaling.mean) / std).astype(np.float32).reshape(channels)
    result = np.empty((len(rows), *stored.shape[1:]), dtype=np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        block = result[start : start + ROWS_AT_ONCE]
        np.multiply(stored[rows[start : start + ROWS_AT_ONCE]], factor, out=block, dtype=np.float32)
        block += shift
    return result


def frozen(array: NDArray[Kind]) -> NDArray[Kind]:
    """The array as one that refuses to be written to."""
    view = array.view()  # a user's own function may go on writing to her array, we do not take that away
    view.flags.writeable = False
    return view
