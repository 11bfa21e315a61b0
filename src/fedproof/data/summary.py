"""What each user holds, as rows for tables, and the same in a few numbers."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof.federation import Federation


@dataclass(frozen=True, kw_only=True)
class UserRow:
    """One user: number of instances, in all and of each class."""

    user: int
    num_instances: int
    class_counts: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Summary:
    """A federation in a few numbers.

    Attributes:
        name: what the data are called; says so where users are synthetic.
        class_names: one name for each class.
        num_users: number of users.
        num_instances: training instances of all users.
        num_inputs: test inputs.
        smallest: instances of the user with fewest.
        median: instances of the user in the middle.
        largest: instances of the user with most.
        class_counts: training instances of each class.
        test_class_counts: test inputs of each class.
        heterogeneity: mean over users of the total variation distance between their classes and the
            classes of all; 0: all alike, near 1: everybody has classes of her own.
    """

    name: str
    class_names: tuple[str, ...]
    num_users: int
    num_instances: int
    num_inputs: int
    smallest: int
    median: float
    largest: int
    class_counts: tuple[int, ...]
    test_class_counts: tuple[int, ...]
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


def user_rows(federation: Federation) -> tuple[UserRow, ...]:
    """One row for each user, in order.

    >>> from fedproof.data import load
    >>> user_rows(load("digits", classes=[0, 1], users=96))[0]
    UserRow(user=0, num_instances=3, class_counts=(1, 2))
    """
    return tuple(
        UserRow(user=user, num_instances=sum(counts), class_counts=tuple(counts))
        for user, counts in enumerate(class_counts(federation).tolist())
    )


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
        {
            "user": row.user,
            "instances": row.num_instances,
            **dict(zip(columns, row.class_counts, strict=True)),
        }
        for row in user_rows(federation)
    ]
