"""An adversary's units in a federation: which are poisoned, and federations in which there are others.

Units are known by identity where the federation gives them one, else by position. Whoever joins comes last,
under an identity that nobody had; whoever stays keeps all it has.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.attacks.attack import generator
from fedproof.federation import Federation

Ids = NDArray[np.int64]


def most_instances(federation: Federation) -> int:
    """The public limit of instances that one user may hold; where there is none, what the largest holds."""
    return federation.most_instances or int(federation.sizes.max())


def rows_of_users(federation: Federation) -> list[NDArray[np.int64]]:
    """The rows of each user, in order."""
    return np.split(np.arange(len(federation.labels)), federation.offsets[1:-1])


def fresh(taken: Ids, count: int) -> Ids:
    """`count` identities that nobody of `taken` has; those of a smaller count come first.

    >>> fresh(np.array([0, 2, 9]), 3).tolist()
    [1, 3, 4]
    """
    return np.setdiff1d(np.arange(len(taken) + count), taken)[:count]


def rearranged(federation: Federation, rows: Sequence[NDArray[np.int64]], users: Ids) -> Federation:
    """The federation in which user i holds copies of `rows[i]` and is called `users[i]`.

    The first copy of an instance keeps its identity, any further one is an instance of its own.
    """
    order = np.concatenate(rows)
    offsets = np.concatenate(([0], np.cumsum([len(own) for own in rows]))).astype(np.int64)
    again = np.ones(len(order), dtype=np.bool_)
    again[np.unique(order, return_index=True)[1]] = False
    instances = federation.which[order]
    instances[again] = fresh(federation.which, int(again.sum()))
    return frozen(
        federation,
        features=federation.features[order],
        labels=federation.labels[order],
        offsets=offsets,
        user_ids=users,
        instance_ids=instances,
    )


def frozen(federation: Federation, **arrays: NDArray[Any]) -> Federation:
    """The federation with other arrays, read-only like those it came with."""
    for array in arrays.values():
        array.setflags(write=False)
    return replace(federation, **arrays)  # type: ignore[arg-type]


# --- which units --------------------------------------------------------------------------------------------


def check_users(federation: Federation, adversaries: tuple[int, ...]) -> None:
    """Raise ValueError unless all adversaries are users of the federation."""
    if adversaries and max(adversaries) >= federation.num_users:
        raise ValueError(
            f"adversaries = {max(adversaries)} must be below the number of users = {federation.num_users}"
        )


def check_class(federation: Federation, **classes: int) -> None:
    """Raise ValueError unless all classes exist."""
    for name, value in classes.items():
        if not 0 <= value < federation.num_classes:
            raise ValueError(
                f"{name} = {value} must be a class of {federation.name}, 0 to {federation.num_classes - 1}"
            )


def rows_of(federation: Federation, users: tuple[int, ...]) -> NDArray[np.bool_]:
    """Which instances `(instances,)` belong to `users`."""
    owner = np.repeat(np.arange(federation.num_users), federation.sizes)
    return np.isin(owner, users)


def chosen_rows(
    federation: Federation,
    adversaries: tuple[int, ...],
    *,
    fraction: float,
    seed: int,
    eligible: NDArray[np.bool_] | None = None,
) -> NDArray[np.int64]:
    """Rows of the federation that are poisoned: of each adversary's eligible ones the given `fraction`.

    At least one of each adversary that has any. The rows of a larger fraction contain those of a smaller one.
    """
    mine = rows_of(federation, adversaries)
    mine = mine if eligible is None else mine & eligible
    found = [np.empty(0, dtype=np.int64)]
    for user in adversaries:
        start, stop = federation.offsets[user : user + 2]
        rows = start + np.flatnonzero(mine[start:stop])
        count = min(len(rows), max(1, round(fraction * len(rows))))
        found.append(generator(seed, 1, user).permutation(rows)[:count])
    return np.sort(np.concatenate(found))


# --- other units --------------------------------------------------------------------------------------------


def with_newcomers(federation: Federation, count: int, seed: int) -> Federation:
    """The federation that `count` users have joined, each with a copy of somebody's instances."""
    models = generator(seed, 3).integers(federation.num_users, size=count)
    rows = rows_of_users(federation)
    taken = federation.who
    return rearranged(
        federation, rows + [rows[user] for user in models], np.concatenate((taken, fresh(taken, count)))
    )


def without_users(federation: Federation, users: Sequence[int]) -> Federation:
    """The federation that `users` have left."""
    stays = [user for user in range(federation.num_users) if user not in set(users)]
    if not stays:
        raise ValueError(f"adversaries = {len(users)} must leave somebody behind: nobody would train")
    rows = rows_of_users(federation)
    return rearranged(federation, [rows[user] for user in stays], federation.who[stays])


def resized(federation: Federation, users: Sequence[int], counts: Sequence[int]) -> Federation:
    """The federation in which each of `users` holds so many instances: its own, over again if need be."""
    rows = rows_of_users(federation)
    for user, count in zip(users, counts, strict=True):
        rows[user] = np.resize(rows[user], count)
    return rearranged(federation, rows, federation.who)


def with_copies(federation: Federation, copied: NDArray[np.int64]) -> tuple[Federation, NDArray[np.int64]]:
    """The federation whose users hold the rows `copied` twice, the second time last; where those now are."""
    owner = np.searchsorted(federation.offsets, copied, side="right") - 1
    rows = [
        np.concatenate((own, copied[owner == user])) for user, own in enumerate(rows_of_users(federation))
    ]
    after = rearranged(federation, rows, federation.who)
    counts, place = np.bincount(owner, minlength=federation.num_users), np.empty_like(copied)
    new = [np.arange(stop - count, stop) for stop, count in zip(after.offsets[1:], counts, strict=True)]
    place[np.argsort(owner, kind="stable")] = np.concatenate(new)
    return after, place


def without_rows(federation: Federation, rows: NDArray[np.int64]) -> Federation:
    """The federation without these instances; every user must keep one."""
    kept = [np.setdiff1d(own, rows) for own in rows_of_users(federation)]
    empty = [user for user, own in enumerate(kept) if not len(own)]
    if empty:
        raise ValueError(f"user {empty[0]} must keep an instance, all of them would leave")
    return rearranged(federation, kept, federation.who)
