"""Federations with other units: users who join or leave, and users who hold another number of instances.

Units are known by identity where the federation gives them one, else by position. Whoever joins comes last,
under an identity that nobody had; whoever stays keeps all it has.
"""

from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.attacks.attack import generator
from fedproof.federation import Federation

Ids = NDArray[np.int64]


def user_ids(federation: Federation) -> Ids:
    """Identity `(users,)` of each user; its position where the federation has no others."""
    given = getattr(federation, "user_ids", None)
    return np.asarray(np.arange(federation.num_users) if given is None else given, dtype=np.int64)


def instance_ids(federation: Federation) -> Ids:
    """Identity `(instances,)` of each instance; its row where the federation has no others."""
    given = getattr(federation, "instance_ids", None)
    return np.asarray(np.arange(len(federation.labels)) if given is None else given, dtype=np.int64)


def has_identities(federation: Federation) -> bool:
    """Whether units keep an identity when their position changes."""
    return hasattr(federation, "user_ids") and hasattr(federation, "instance_ids")


def most_instances(federation: Federation) -> int:
    """The public limit of instances that one user may hold; where there is none, what the largest holds."""
    declared = getattr(federation, "most_instances", None)
    return int(federation.sizes.max() if declared is None else declared)


def rows_of_users(federation: Federation) -> list[NDArray[np.int64]]:
    """The rows of each user, in order."""
    return np.split(np.arange(len(federation.labels)), federation.offsets[1:-1])


def fresh(taken: Ids, count: int) -> Ids:
    """`count` identities that nobody of `taken` has; those of a smaller count come first.

    >>> fresh(np.array([0, 2, 9]), 3).tolist()
    [1, 3, 4]
    """
    return np.setdiff1d(np.arange(len(taken) + count), taken)[:count]


def rearranged(
    federation: Federation, rows: Sequence[NDArray[np.int64]], users: Ids, instances: Ids | None = None
) -> Federation:
    """The federation in which user i holds copies of `rows[i]` and is called `users[i]`.

    The first copy of an instance keeps its identity, any further one is an instance of its own; `instances`
    gives all identities instead.
    """
    order = np.concatenate(rows)
    offsets = np.concatenate(([0], np.cumsum([len(own) for own in rows]))).astype(np.int64)
    changed: dict[str, Any] = {
        "features": federation.features[order],
        "labels": federation.labels[order],
        "offsets": offsets,
    }
    if has_identities(federation):
        if instances is None:
            again = np.ones(len(order), dtype=np.bool_)
            again[np.unique(order, return_index=True)[1]] = False
            instances = instance_ids(federation)[order]
            instances[again] = fresh(instance_ids(federation), int(again.sum()))
        changed |= {"user_ids": users, "instance_ids": instances}
    return frozen(federation, **changed)


def frozen(federation: Federation, **arrays: NDArray[Any]) -> Federation:
    """The federation with other arrays, read-only like those it came with."""
    known = {field.name for field in fields(federation)}
    for array in arrays.values():
        array.setflags(write=False)
    given: dict[str, Any] = {name: array for name, array in arrays.items() if name in known}
    return replace(federation, **given)


def with_newcomers(federation: Federation, count: int, seed: int) -> Federation:
    """The federation that `count` users have joined, each with a copy of somebody's instances."""
    models = generator(seed, 3).integers(federation.num_users, size=count)
    rows = rows_of_users(federation)
    taken = user_ids(federation)
    return rearranged(
        federation, rows + [rows[user] for user in models], np.concatenate((taken, fresh(taken, count)))
    )


def without_users(federation: Federation, users: Sequence[int]) -> Federation:
    """The federation that `users` have left."""
    stays = [user for user in range(federation.num_users) if user not in set(users)]
    if not stays:
        raise ValueError(f"adversaries = {len(users)} must leave somebody behind: nobody would train")
    rows = rows_of_users(federation)
    return rearranged(federation, [rows[user] for user in stays], user_ids(federation)[stays])


def resized(federation: Federation, users: Sequence[int], counts: Sequence[int]) -> Federation:
    """The federation in which each of `users` holds so many instances: its own, over again if need be."""
    rows = rows_of_users(federation)
    for user, count in zip(users, counts, strict=True):
        rows[user] = np.resize(rows[user], count)
    return rearranged(federation, rows, user_ids(federation))


def with_copies(federation: Federation, copied: NDArray[np.int64]) -> tuple[Federation, NDArray[np.int64]]:
    """The federation whose users hold the rows `copied` twice, the second time last; where those now are."""
    owner = np.searchsorted(federation.offsets, copied, side="right") - 1
    rows = [
        np.concatenate((own, copied[owner == user])) for user, own in enumerate(rows_of_users(federation))
    ]
    after = rearranged(federation, rows, user_ids(federation))
    new = [
        np.arange(stop - np.sum(owner == user), stop) for user, stop in enumerate(after.offsets[1:].tolist())
    ]
    place = np.concatenate(new)
    order = np.concatenate([copied[owner == user] for user in range(federation.num_users)])
    found = dict(zip(order.tolist(), place.tolist(), strict=True))
    return after, np.array([found[row] for row in copied.tolist()], dtype=np.int64)


def without_rows(federation: Federation, rows: NDArray[np.int64]) -> Federation:
    """The federation without these instances; every user must keep one."""
    kept = [np.setdiff1d(own, rows) for own in rows_of_users(federation)]
    empty = [user for user, own in enumerate(kept) if not len(own)]
    if empty:
        raise ValueError(f"user {empty[0]} must keep an instance, all of them would leave")
    return rearranged(federation, kept, user_ids(federation))
