"""Ways to give instances to users. Each instance goes to exactly one user; randomness is an argument."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof import check
from fedproof.threat import Relation, Unit

KINDS = ("iid", "dirichlet", "degree", "natural")


@dataclass(frozen=True, kw_only=True)
class Partition:
    """User u owns instances `order[offsets[u]:offsets[u + 1]]`."""

    order: NDArray[np.int64]
    offsets: NDArray[np.int64]


def iid(labels: NDArray[np.int64], *, users: int, generator: np.random.Generator) -> Partition:
    """Shuffled instances in equal shares; sizes differ by at most one.

    >>> iid(np.array([0, 1, 0, 1, 1]), users=2, generator=np.random.default_rng(0)).offsets
    array([0, 3, 5])
    """
    _check_users(users, len(labels), minimum=1)
    return _partition(np.array_split(generator.permutation(len(labels)), users))


def dirichlet(
    labels: NDArray[np.int64], *, users: int, alpha: float, generator: np.random.Generator, minimum: int = 1
) -> Partition:
    """Unequal shares of each class: users' shares of a class are drawn from Dir(alpha, ..., alpha).

    First every user gets `minimum` instances, as evenly from the classes as these last; then the
    rest of each class is shared out by the draw. `minimum = 2 * classes` is what the paper's code does.
    The smaller alpha, the more unequal sizes and classes of the users are.

    Reference: Hsu, Qi, Brown 2019, arXiv:1909.06335v1, section 2; sizes differ as in Xie et al., CCS 2023.

    >>> labels = np.arange(30) % 3
    >>> split = dirichlet(labels, users=3, alpha=0.5, minimum=6, generator=np.random.default_rng(0))
    >>> int(np.diff(split.offsets).min()) >= 6, len(np.unique(split.order))
    (True, 30)
    """
    check.positive(dirichlet_alpha=alpha)
    check.count(minimum=minimum)
    _check_users(users, len(labels), minimum=minimum)
    order = _classes_in_turn(labels, generator)
    reserved, rest = order[: users * minimum], order[users * minimum :]
    shares = [[chunk] for chunk in np.array_split(reserved, users)]
    for label in np.unique(labels):
        rows = rest[labels[rest] == label]
        weights = _dirichlet_weights(alpha, users, generator)
        cuts = np.rint(np.cumsum(weights)[:-1] * len(rows)).astype(np.int64)
        for share, chunk in zip(shares, np.split(rows, cuts), strict=True):
            share.append(chunk)
    return _partition([generator.permutation(np.concatenate(share)) for share in shares])


def degree(
    labels: NDArray[np.int64], *, users: int, share: float, generator: np.random.Generator
) -> Partition:
    """A group of users for each class gets this share of it; the other groups get the rest evenly.

    Where classes are equally frequent, `share` of each user's instances have its group's class:
    `1 / classes` is iid, 1 leaves each user a single class. User u belongs to the group of class
    `u % classes`; within a group, sizes differ by at most one.

    Reference: Cao, Jia, Gong 2021 (Ensemble-FL), arXiv:2102.01854, degree of non-IID.

    >>> labels = np.arange(30) % 3
    >>> split = degree(labels, users=3, share=1.0, generator=np.random.default_rng(0))
    >>> labels[split.order].reshape(3, 10).std(axis=1)
    array([0., 0., 0.])
    """
    check.probability(degree=share)
    classes = np.unique(labels)
    if users < len(classes):
        raise ValueError(f"users = {users} must be at least {len(classes)}, one for the group of each class")
    groups: list[list[NDArray[np.int64]]] = [[] for _ in classes]
    for own, label in enumerate(classes):
        rows = generator.permutation(np.flatnonzero(labels == label))
        weights = np.full(len(classes), (1 - share) / max(1, len(classes) - 1))
        weights[own] = share if len(classes) > 1 else 1.0
        cuts = np.rint(np.cumsum(weights)[:-1] * len(rows)).astype(np.int64)
        for group, chunk in zip(groups, np.split(rows, cuts), strict=True):
            group.append(chunk)
    shares: list[NDArray[np.int64]] = [np.empty(0, dtype=np.int64)] * users
    for number, group in enumerate(groups):
        members = range(number, users, len(classes))
        pool = generator.permutation(np.concatenate(group))
        _check_users(len(members), len(pool), minimum=1)
        for user, chunk in zip(members, np.array_split(pool, len(members)), strict=True):
            shares[user] = chunk
    return _partition(shares)


def natural(
    owners: NDArray[np.int64], *, users: int | None, generator: np.random.Generator, minimum: int = 1
) -> Partition:
    """The users the data come with who own at least `minimum` instances; `users` of them, drawn at random.

    Who is kept stays in the data's order; None keeps all. `owners` is the user of each instance.

    >>> owners = np.array([7, 7, 3, 7, 9, 9])
    >>> natural(owners, users=None, minimum=2, generator=np.random.default_rng(0)).order
    array([0, 1, 3, 4, 5])
    """
    check.count(minimum=minimum)
    by_owner = np.argsort(owners, kind="stable")
    _, sizes = np.unique(owners, return_counts=True)
    kept = np.flatnonzero(sizes >= minimum)
    wanted = len(kept) if users is None else users
    if not 1 <= wanted <= len(kept):
        raise ValueError(
            f"users = {users}: {len(kept)} users own at least {minimum} instances; lower users or minimum"
        )
    if users is not None:
        kept = np.sort(generator.permutation(kept)[:users])
    chunks = np.split(by_owner, np.cumsum(sizes)[:-1])
    return _partition([chunks[user] for user in kept])


def set_aside(
    count: int, *, instances: int, owners: NDArray[np.int64] | None, generator: np.random.Generator
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """`count` public instances that belong to no user, and those that are left, each in the data's order.

    A larger `count` adds to those of a smaller one. Where users are those the data come with, `owners` is the
    user of each instance, and whole users are set aside: what else they hold is left out, as it is theirs.

    >>> owners = np.array([7, 7, 3, 7, 9, 9])
    >>> set_aside(2, instances=6, owners=owners, generator=np.random.default_rng(1))
    (array([0, 2]), array([4, 5]))
    """
    check.count(public=count)
    if count >= instances:
        raise ValueError(f"public = {count} must be below {instances}, the number of training instances")
    if owners is None:
        shuffled = generator.permutation(instances)
        return np.sort(shuffled[:count]), np.sort(shuffled[count:])
    known, which = np.unique(owners, return_inverse=True)
    turn = generator.permutation(len(known))[which]
    first = np.argsort(turn, kind="stable")[:count]
    left = np.flatnonzero(turn > turn[first[-1]])
    if not len(left):
        raise ValueError(f"public = {count} leaves no user with data: whole users are set aside; lower it")
    return np.sort(first), left


def _partition(shares: Sequence[NDArray[np.int64]]) -> Partition:
    offsets = np.cumsum([0, *(len(share) for share in shares)], dtype=np.int64)
    return Partition(order=np.concatenate(shares), offsets=offsets)


def _check_users(users: int, instances: int, *, minimum: int) -> None:
    check.count(users=users)
    if users * minimum > instances:
        raise ValueError(
            f"users = {users} with at least {minimum} instances each need {users * minimum} instances, "
            f"there are {instances}"
        )


def _classes_in_turn(labels: NDArray[np.int64], generator: np.random.Generator) -> NDArray[np.int64]:
    """Shuffled instances, ordered so that the classes take turns as long as they last."""
    shuffled = generator.permutation(len(labels))
    turn = np.empty(len(labels), dtype=np.int64)
    for label in np.unique(labels):
        rows = np.flatnonzero(labels[shuffled] == label)
        turn[rows] = np.arange(len(rows))
    return shuffled[np.lexsort((labels[shuffled], turn))]


def _dirichlet_weights(alpha: float, users: int, generator: np.random.Generator) -> NDArray[np.float64]:
    """One draw from Dir(alpha, ..., alpha), taken through logarithms.

    A tiny alpha makes every gamma variable underflow to zero, and zeros over their sum are no shares.
    Gamma(alpha) equals Gamma(alpha + 1) times a uniform variable to the power 1 / alpha.
    """
    logs = np.log(generator.standard_gamma(alpha + 1, size=users)) - generator.exponential(size=users) / alpha
    weights = np.exp(logs - logs.max())
    return np.asarray(weights / weights.sum())


def unsettled(partition: str, drawn: bool, sifted: bool, least: int) -> frozenset[tuple[Unit, Relation]]:
    """Of which units, under which relation, one may change who else is there, or who holds what.

    Users whom the data come with may fall out because of what they hold, if classes are `sifted` or there is
    a `least` number of instances; users that are `drawn` are drawn from all. Instances that are dealt out are
    dealt otherwise if there is one more, or, but for `iid`, if one has another label.
    """
    if partition == "natural":
        falls_out = sifted or least > 1
        found = {
            (Unit.USER, Relation.JOIN): drawn,
            (Unit.USER, Relation.REPLACE): falls_out,
            (Unit.INSTANCE, Relation.JOIN): drawn or falls_out,
            (Unit.INSTANCE, Relation.REPLACE): sifted,
        }
    else:
        by_label = sifted or partition != "iid"
        found = {(Unit.INSTANCE, Relation.JOIN): True, (Unit.INSTANCE, Relation.REPLACE): by_label}
    return frozenset(pair for pair, true in found.items() if true)
