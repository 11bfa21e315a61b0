"""One entry point: the name of a data set in, users with their instances out."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from fedproof import check
from fedproof.data import digits
from fedproof.data import partition as ways
from fedproof.data.arrays import Arrays, as_federation, choose_classes, limit_test, read_only, scaled
from fedproof.federation import Federation

USERS = {"digits": 96, "mnist": 200, "cifar10": 200}  # the demo's and the paper's numbers


def load(
    name: str,
    *,
    classes: Sequence[int | str] | None = None,
    users: int | None = None,
    partition: str | None = None,
    dirichlet_alpha: float = 0.5,
    degree: float = 0.5,
    minimum: int = 1,
    seed: int = 0,
    test_limit: int | None = None,
) -> Federation:
    """Users with their training instances, and the test inputs nobody trains on.

    Args:
        name: `digits`.
        classes: numbers or names of classes, which become 0, 1, ... in this order; None: all.
        users: number of users; None: the paper's number, or everybody the data come with.
        partition: `iid`, `dirichlet`, `degree` or `natural`; None: natural where the data come with
            users, iid elsewhere.
        dirichlet_alpha: of `dirichlet`; smaller is more unequal.
        degree: of `degree`; share of each class that goes to the class's own group of users.
        minimum: of `dirichlet` and `natural`; instances that each user has at least.
        seed: of the partition. The same seed gives the same users anywhere.
        test_limit: at most so many test inputs, drawn once for all.

    >>> federation = load("digits", classes=[0, 1], users=96)
    >>> federation.features.shape, federation.test_features.shape, int(federation.sizes.max())
    ((288, 64), (72, 64), 3)
    """
    check.not_negative_count(seed=seed)
    if test_limit is not None:
        check.count(test_limit=test_limit)
    arrays = choose_classes(_read(name), classes)
    generator = np.random.default_rng(seed)
    if partition is None:
        partition = "iid" if arrays.owners is None else "natural"
    if users is None and partition != "natural":
        users = _default_users(name, arrays)
    split = _partition(arrays, partition, users, dirichlet_alpha, degree, minimum, generator)
    if partition == "natural":
        arrays = _tests_of_users(arrays, split)
    return as_federation(limit_test(arrays, test_limit), split.order, split.offsets)


def load_arrays(name: str, *, classes: Sequence[int | str] | None = None) -> Arrays:
    """Training and test arrays without users, for ordinary training on public data.

    >>> load_arrays("digits", classes=[2, 3]).class_names
    ('2', '3')
    """
    return read_only(scaled(choose_classes(_read(name), classes)))


def _read(name: str) -> Arrays:
    if name == "digits":
        return digits.read()
    raise ValueError(f"name = {name!r} is no data set; known: digits")


def _default_users(name: str, arrays: Arrays) -> int:
    if arrays.owners is not None:
        return len(np.unique(arrays.owners))
    if name in USERS:
        return USERS[name]
    raise ValueError(f"users = None: say how many users hold {name}; it comes without users")


def _partition(
    arrays: Arrays,
    kind: str,
    users: int | None,
    alpha: float,
    degree: float,
    minimum: int,
    generator: np.random.Generator,
) -> ways.Partition:
    if kind == "natural":
        if arrays.owners is None:
            raise ValueError(
                f"partition = 'natural': {arrays.name} comes without users; use iid or dirichlet"
            )
        return ways.natural(arrays.owners, users=users, minimum=minimum, generator=generator)
    assert users is not None
    if kind == "iid":
        return ways.iid(arrays.labels, users=users, generator=generator)
    if kind == "dirichlet":
        return ways.dirichlet(arrays.labels, users=users, alpha=alpha, minimum=minimum, generator=generator)
    if kind == "degree":
        return ways.degree(arrays.labels, users=users, share=degree, generator=generator)
    raise ValueError(f"partition = {kind!r} must be one of {', '.join(ways.KINDS)}")


def _tests_of_users(arrays: Arrays, split: ways.Partition) -> Arrays:
    """Test inputs of the users who were kept, and those that belong to no training user."""
    assert arrays.owners is not None
    if arrays.test_owners is None:
        return arrays
    users = np.append(np.unique(arrays.owners[split.order]), -1)
    kept = np.isin(arrays.test_owners, users)
    return replace(
        arrays,
        test_features=arrays.test_features[kept],
        test_labels=arrays.test_labels[kept],
        test_owners=arrays.test_owners[kept],
    )
