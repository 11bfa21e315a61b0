"""A federation: which user holds which instances, what everybody is judged by, and both in a few numbers."""

import hashlib
import unicodedata
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.projection import PublicMap, View, range_of
from fedproof.seeds import scattered
from fedproof.statements import Statement
from fedproof.threat import Relation, Unit

_PLACE_BITS = 24  # of an identity made from a user's and a place: more instances than one user holds
_LARGE = 2 ** (63 - _PLACE_BITS)  # identities of users that leave no room for a place


@dataclass(frozen=True, kw_only=True)
class EncodedBy:
    """What inputs went through before anybody trained on them, all of it public."""

    name: str | None = None  # of the encoder; None: inputs are as published
    weights_sha256: str | None = None  # of what the encoder learned elsewhere; None if it holds no weights
    public: int = 0  # public instances, which belong to no user
    project: int | None = None  # coordinates that features were projected onto; None: no projection
    projection: str = "principal"  # where these come from, see `fedproof.encoders`
    public_from: str | None = None  # the other data set that these come from; None: they were set aside
    version: str = ""  # of the encoder's code
    # What projects, and of what enters it: the shape of one, and the range of the public ones.
    map: PublicMap | None = field(default=None, repr=False, compare=False)
    shape: tuple[int, ...] | None = None
    range: tuple[float, float] | None = None

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        """What a certificate takes for granted about it: nothing, if nothing was learned from anybody.

        >>> EncodedBy(name="hog").assumptions
        ()
        >>> [one.code for one in EncodedBy(public=100, project=8).assumptions]
        ['public-map']
        """
        found = []
        if self.name is not None and self.weights_sha256 is not None:
            found.append(Statement.of("encoder-weights", name=self.name, sha256=self.weights_sha256))
        elif self.name is not None and ":" in self.name:
            # Whatever code of somebody's own does, it may have learned from data that somebody poisoned.
            found.append(Statement.of("encoder", name=self.name))
        if self.public:
            told: dict[str, str | int] = {"count": self.public, "source": self.public_from or "no user"}
            told |= {"project": self.project, "projection": self.projection} if self.project else {}
            found.append(Statement.of("public-map" if self.project else "public", **told))
        return tuple(found)


@dataclass(frozen=True, kw_only=True)
class Federation:
    """Users' instances in one flat array, user after user.

    User u owns rows `offsets[u]:offsets[u + 1]`, so users of unequal size cost exactly their instances.

    Attributes:
        features: `(instances, ...)`; float32, or integer token ids for text.
        labels: `(instances,)`, integers in `[0, num_classes)`.
        offsets: `(users + 1,)`, increasing, first 0 and last the number of instances.
        test_features: `(inputs, ...)`, shaped like `features`.
        test_labels: `(inputs,)`.
        class_names: one name for each class.
        name: what the data are called in reports.
        vectors: `(words, dimensions)` frozen embedding of token ids; None unless the data are text.
        test_texts: the test inputs as people read them; None unless the data are text.
        user_ids: `(users,)`, who each user is, whoever else takes part; None where the data do not tell, and
            users are known by their position alone.
        instance_ids: `(instances,)`, likewise for single instances.
        left_out: how many instances were of no class, and are not there; `instance_ids` then are places that
            count them, see `by_place`, and no identities.
        tested_only: whether an instance would be left out for a label that no test input has, so that what it
            holds decides how many instances its user has.
        most_instances: how many instances one user may hold, a limit that is public and no property of the
            data at hand; None if there is no limit.
        public_features: `(instances, ...)`, shaped like `features`: of public instances that belong to no
            user, without labels; None if there are none.
        encoded_by: what all features went through; None if they are as published, and nothing is public.
        tests_of_users: whether test inputs are shares of users who take part, and so as private as what these
            train on.
        unsettled: of which units, under which relation, one may change who else is there or who holds what.
    """

    features: NDArray[np.generic]
    labels: NDArray[np.int64]
    offsets: NDArray[np.int64]
    test_features: NDArray[np.generic]
    test_labels: NDArray[np.int64]
    class_names: tuple[str, ...]
    name: str
    vectors: NDArray[np.float32] | None = None
    test_texts: tuple[str, ...] | None = None
    user_ids: NDArray[np.int64] | None = None
    instance_ids: NDArray[np.int64] | None = None
    left_out: int = 0
    tested_only: bool = False
    most_instances: int | None = None
    public_features: NDArray[np.generic] | None = None
    encoded_by: EncodedBy | None = None
    tests_of_users: bool = False
    unsettled: frozenset[tuple[Unit, Relation]] = frozenset()

    def __post_init__(self) -> None:
        self._check_kinds()
        sizes = np.diff(self.offsets)
        if self.offsets.ndim != 1 or len(self.offsets) < 2 or self.offsets[0] != 0 or sizes.min() < 1:
            empty = np.flatnonzero(sizes < 1)[:5].tolist()
            raise ValueError(
                f"{self.name}: every user must own at least one instance; users {empty} own none"
            )
        if not (len(self.features) == len(self.labels) == self.offsets[-1]):
            raise ValueError(
                f"{self.name}: {len(self.features)} features, {len(self.labels)} labels and offsets up to "
                f"{self.offsets[-1]} must agree"
            )
        if len(self.test_features) != len(self.test_labels):
            raise ValueError(
                f"{self.name}: {len(self.test_features)} test inputs but {len(self.test_labels)} test labels"
            )
        if self.test_features.shape[1:] != self.features.shape[1:]:
            raise ValueError(
                f"{self.name}: test inputs have shape {self.test_features.shape[1:]}, but training instances "
                f"{self.features.shape[1:]}: they must agree"
            )
        for labels in (self.labels, self.test_labels):
            if len(labels) and not (labels.min() >= 0 and labels.max() < self.num_classes):
                raise ValueError(
                    f"{self.name}: labels must be integers from 0 to {self.num_classes - 1}, "
                    f"found {labels.min()} to {labels.max()}"
                )
        _check_ids(self.name, "users", self.user_ids, self.num_users)
        _check_ids(self.name, "instances", self.instance_ids, len(self.labels))
        self._check_limit()
        self._check_features()

    def _check_kinds(self) -> None:
        for key in ("labels", "offsets", "test_labels"):
            array = np.asarray(given := getattr(self, key))
            if not isinstance(given, np.ndarray) or array.ndim != 1 or array.dtype.kind not in "iu":
                raise ValueError(
                    f"{self.name}: {key} must be a NumPy array of integers, one row of them, not "
                    f"{type(given).__name__} of {array.dtype} with shape {array.shape}"
                )
        if isinstance(self.class_names, str):
            raise ValueError(f"{self.name}: class_names = {self.class_names!r} must be a tuple of names")

    def _check_features(self) -> None:
        """Bytes are refused: pixels are float32, token ids have more bits. Public features are alike."""
        if np.uint8 in (self.features.dtype, self.test_features.dtype):
            raise ValueError(
                f"{self.name}: features are uint8, must be float32 or token ids; of pixels make "
                "features.astype(np.float32) / 255"
            )
        public, shape = self.public_features, self.features.shape[1:]
        if public is not None and (public.shape[1:] != shape or not len(public)):
            raise ValueError(
                f"{self.name}: public features have shape {public.shape}, must be (instances, "
                f"{', '.join(map(str, shape))})"
            )

    def _check_limit(self) -> None:
        if self.most_instances is None:
            return
        check.count(most_instances=self.most_instances)
        largest = int(self.sizes.argmax())
        if self.sizes[largest] > self.most_instances:
            raise ValueError(
                f"{self.name}: user {largest} holds {self.sizes[largest]} instances, more than "
                f"most_instances = {self.most_instances}, which is the most that anybody may hold"
            )

    def by_instance(self) -> "Federation":
        """The same data as if every instance had a user of its own: what is drawn, or split, at that level.

        An instance keeps the identity it has, whatever it holds and whoever holds it.
        """
        return replace(self, offsets=np.arange(len(self.labels) + 1), user_ids=self.which, most_instances=1)

    @property
    def who(self) -> NDArray[np.int64]:
        """The identity `(users,)` of each user; its position where the data tell no other."""
        return np.arange(self.num_users) if self.user_ids is None else self.user_ids

    @property
    def which(self) -> NDArray[np.int64]:
        """The identity `(instances,)` of each instance; its user and its place there if the data tell none.

        What other users hold does not change the latter, but what the same user holds before it does.
        """
        if self.instance_ids is not None:
            return self.instance_ids
        place = np.arange(len(self.labels)) - self.offsets[:-1].repeat(self.sizes)
        return by_place(self.who.repeat(self.sizes), place)

    @property
    def encoded(self) -> bool:
        """Whether features are what an encoder or a projection made of those that were published."""
        by = self.encoded_by
        return by is not None and (by.name is not None or by.project is not None)

    @property
    def view(self) -> View:
        """What inputs go through before models see them, for whoever has the models and not the data."""
        by, public = self.encoded_by or EncodedBy(), self.public_features
        shown = all(map(check.shows_all, self.class_names))
        return View(
            encoder=by.name,
            version=by.version,
            weights_sha256=by.weights_sha256,
            map=by.map,
            shape=by.shape or self.features.shape[1:],
            range=by.range if by.map is not None or public is None else range_of(public),
            class_names=self.class_names if shown else None,
        )

    @property
    def num_users(self) -> int:
        """Number of users."""
        return len(self.offsets) - 1

    @property
    def num_classes(self) -> int:
        """Number of classes."""
        return len(self.class_names)

    @property
    def sizes(self) -> NDArray[np.int64]:
        """Number of instances of each user."""
        return np.diff(self.offsets)


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A federation in a few numbers."""

    name: str  # what the data are called; says so where users are synthetic
    class_names: tuple[str, ...]
    num_users: int
    num_instances: int  # training instances of all users
    num_inputs: int  # of the test
    smallest: int  # instances of the user with fewest; in the middle, and with most
    median: float
    largest: int
    class_counts: tuple[int, ...]  # training instances of each class
    test_class_counts: tuple[int, ...]  # test inputs of each class
    # mean over users of the total variation distance between their classes and the classes of all: 0 if
    # all are alike, near 1 if everybody has classes of her own
    heterogeneity: float


def class_counts(federation: Federation) -> NDArray[np.int64]:
    """Instances of each class that each user holds, `(users, classes)`.

    >>> from fedproof.data import load
    >>> class_counts(load("digits", classes=[0, 1], users=96)).sum(axis=0)
    array([142, 146])
    """
    owners = np.repeat(np.arange(federation.num_users), federation.sizes)
    flat = owners * federation.num_classes + federation.labels
    counts = np.bincount(flat, minlength=federation.num_users * federation.num_classes)
    return counts.reshape(federation.num_users, federation.num_classes).astype(np.int64)


def summarise(federation: Federation) -> Summary:
    """The federation in a few numbers.

    >>> from fedproof.data import load
    >>> summary = summarise(load("digits", classes=[0, 1], users=96))
    >>> summary.num_users, summary.num_instances, summary.num_inputs, summary.class_counts
    (96, 288, 72, (142, 146))
    """
    counts = class_counts(federation)
    sizes, totals = counts.sum(axis=1), counts.sum(axis=0)
    distances = np.abs(counts / sizes[:, None] - totals / totals.sum()).sum(axis=1) / 2
    tests = np.bincount(federation.test_labels, minlength=federation.num_classes)
    return Summary(
        name=federation.name,
        class_names=federation.class_names,
        num_users=federation.num_users,
        num_instances=int(sizes.sum()),
        num_inputs=len(federation.test_labels),
        smallest=int(sizes.min()),
        median=float(np.median(sizes)),
        largest=int(sizes.max()),
        class_counts=tuple(totals.tolist()),
        test_class_counts=tuple(tests.tolist()),
        heterogeneity=float(distances.mean()),
    )


def show(federation: Federation) -> list[dict[str, int]]:
    """Rows of a table of users: `user`, `instances`, and one column for each class.

    >>> from fedproof.data import load
    >>> show(load("digits", classes=[0, 1], users=96))[0]
    {'user': 0, 'instances': 3, 'class 0': 1, 'class 1': 2}
    """
    columns = [f"class {name}" for name in federation.class_names]
    return [
        {"user": user, "instances": sum(counts), **dict(zip(columns, counts, strict=True))}
        for user, counts in enumerate(class_counts(federation).tolist())
    ]


def by_place(users: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """What instances without an identity are known by: their user's, and the place they have there.

    Guarantee: it follows from these two alone; no other user changes it, whoever joins under whatever number.

    Raises:
        ValueError: two users, or two instances, would be known by the same number, and be drawn together.
    """
    user = np.where(users < _LARGE, users, scattered(users) >> _PLACE_BITS)
    if len(np.unique(user)) < len(np.unique(users)):
        raise ValueError(
            "two users would be known by the same number: give instances identities of their own"
        )
    if places.max() >= 2**_PLACE_BITS:
        raise ValueError(
            f"a user holds more than {2**_PLACE_BITS:,} instances: give them identities of their own"
        )
    return np.asarray((user << _PLACE_BITS) + places)


def identities(names: Iterable[str]) -> NDArray[np.int64]:
    """A number for each name that depends on the name alone, so that nobody's changes when somebody joins.

    63 bits of SHA-256: two names of a million share one with probability 1e-7, which `Federation` refuses. A
    name is the same in all its Unicode forms.

    >>> bool(identities(["ann", "bob"])[1] == identities(["bob"])[0])
    True
    """
    forms = (unicodedata.normalize("NFC", name) for name in names)
    digests = [hashlib.sha256(name.encode()).digest()[:8] for name in forms]
    return np.array([int.from_bytes(digest, "big") >> 1 for digest in digests], dtype=np.int64)


def _check_ids(name: str, what: str, ids: NDArray[np.int64] | None, count: int) -> None:
    if ids is None:
        return
    if ids.dtype != np.int64 or ids.shape != (count,):
        raise ValueError(
            f"{name}: identities of {what} have shape {ids.shape} and type {ids.dtype}, must be "
            f"({count},) and int64: one for each"
        )
    known, counts = np.unique(ids, return_counts=True)
    if len(known) < count:
        both = np.flatnonzero(ids == known[counts.argmax()])[:2].tolist()
        raise ValueError(f"{name}: {what} {both[0]} and {both[1]} have the same identity {ids[both[0]]}")
    if known[0] < 0:
        raise ValueError(f"{name}: identities of {what} must be 0 or above, found {known[0]}")
