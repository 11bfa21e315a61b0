"""A task under attack, checked: an adversary has the power that is certified, and no more."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation import Contributions
from fedproof.attacks.attack import Attack, Craft, coalition_of, with_updates
from fedproof.attacks.units import check_users, rows_of_users
from fedproof.ensemble.task import Task
from fedproof.ensemble.train import first_updates
from fedproof.federation import Federation
from fedproof.mechanisms import FixedSize
from fedproof.models.precision import all_digits
from fedproof.rounds.state import State
from fedproof.threat import Relation, Unit

Rows = NDArray[np.int64]
_AT_ONCE = 4096


@dataclass(frozen=True, kw_only=True)
class Hook:
    """An attack between local training and clipping; it touches the adversaries' updates alone.

    Its repr, which names the attack and all parameters, is part of the task's fingerprint.
    """

    attack: Attack
    craft: Craft = field(repr=False)

    @property
    def adversaries(self) -> tuple[int, ...]:
        """The users who attack: what all of them would hand in must be among the shared updates."""
        return self.attack.adversaries

    @property
    def collusive(self) -> bool:
        """Whether what all of them would hand in must be there wherever one of them is drawn."""
        return self.attack.collusive

    def __call__(self, contributions: Contributions, state: State) -> Contributions:
        """The contributions after the attack."""
        coalition = coalition_of(contributions, self.adversaries)
        if coalition is None:
            return contributions
        return with_updates(coalition, self.craft(coalition, state))


@all_digits()
def under_attack(task: Task, attack: Attack) -> Task:
    """The task with poisoned data and updates; who joins or leaves changes nothing for anybody else.

    Guarantee: honest units are checked to be unchanged, their updates cannot be reached; what the
    adversaries hand in goes through the server's clipping and noise like everybody's.

    Raises:
        ValueError: the attack goes beyond its units, or hands in updates where there are none.
    """
    if task.attack is not None:
        raise ValueError("the task is under attack already; attacks are combined by wrapping one another")
    federation = poisoned(task.federation, attack)
    attacked = _with_units(task, federation)
    craft = attack.crafter(attacked)
    if craft is not None and not task.mechanism.hands_in:
        raise ValueError(
            f"{type(attack).__name__} replaces updates, but where pooled = true nobody hands in any: attack "
            "the data, as label-flip, hostile and (with by_data) worst-case do"
        )
    hook = None if craft is None or not attack.adversaries else Hook(attack=attack, craft=craft)
    return replace(attacked, attack=hook)


def _with_units(task: Task, federation: Federation) -> Task:
    """The task on another federation, its mechanism made for as many units as there are now.

    Cohorts of fixed size are drawn out of those who are there, which is what `join` means for them; all other
    rates are constants.
    """
    mechanism = task.mechanism
    sampling, drawn = mechanism.sampling, mechanism.draws is Unit.INSTANCE
    before, after = (len(one.labels) if drawn else one.num_users for one in (task.federation, federation))
    if before == after or not isinstance(sampling, FixedSize):
        return replace(task, federation=federation)
    if not mechanism.once or mechanism.noise_multiplier:
        raise ValueError(
            f"{before} units became {after}: relation = 'join' is not defined for noised cohorts of a fixed "
            "size"
        )
    sampling = FixedSize(cohort=sampling.cohort, users=after)
    return replace(task, federation=federation, mechanism=mechanism.altered(sampling=sampling))


@all_digits()
def attacked_first_updates(task: Task, adversaries: tuple[int, ...], clean: Tensor) -> Tensor:
    """Round-one updates `(users, dim)` of a `task` from `under_attack`: only the adversaries train anew.

    Nobody has left; newcomers stand behind the others. `clean` are the `first_updates` of the clean task.
    """
    if not adversaries:
        return clean
    users = np.array(sorted(adversaries), dtype=np.int64)
    newcomers = clean.new_zeros((task.federation.num_users - len(clean), clean.shape[1]))
    updates = torch.cat([clean, newcomers])
    updates[torch.from_numpy(users).to(updates.device)] = first_updates(task, users=users).to(
        updates.device, updates.dtype
    )
    return updates


# --- poisoned data ------------------------------------------------------------------------------------------


def poisoned(federation: Federation, attack: Attack) -> Federation:
    """The federation after `attack`.

    Guarantee: no unit but the attack's own was touched, of which there are `attack.size`. Units are told by
    their identity. An attack on users may give its users any instances; one on instances leaves all others of
    their owners as they are. Only an attack of the relation `join` adds units or takes its own away, and it
    changes none.

    Raises:
        ValueError: the attack went beyond its units.
    """
    if attack.relation is Relation.REPLACE:
        check_users(federation, attack.adversaries)
    after = attack.poison(federation)
    if after is federation:
        return federation
    _check_shapes(federation, after, attack)
    places = _places(federation, after)
    _check_honest_users(federation, after, attack, places)
    if attack.unit is Unit.INSTANCE:
        _check_instances(federation, after, attack, places)
    return after


def _check_shapes(before: Federation, after: Federation, attack: Attack) -> None:
    for name in ("test_features", "test_labels", "vectors", "public_features"):
        if not _same(getattr(before, name), getattr(after, name)):
            raise ValueError(f"{_name(attack)} changed {name}, it may change adversaries' instances only")
    for name in ("features", "labels"):
        old, new = getattr(before, name), getattr(after, name)
        if old.dtype != new.dtype or old.shape[1:] != new.shape[1:]:
            raise ValueError(
                f"{_name(attack)} turned {name} {old.dtype} {old.shape[1:]} into {new.dtype} {new.shape[1:]}"
            )


def _places(before: Federation, after: Federation) -> Rows:
    """Where each user of `before` stands in `after`, -1 if it has left."""
    where = {user: place for place, user in enumerate(after.who.tolist())}
    return np.array([where.get(user, -1) for user in before.who.tolist()], dtype=np.int64)


def _check_honest_users(before: Federation, after: Federation, attack: Attack, places: Rows) -> None:
    honest = np.setdiff1d(np.arange(before.num_users), attack.adversaries)
    if (places[honest] < 0).any() or (places[honest] >= after.num_users).any():
        raise ValueError(f"{_name(attack)} removed users who are no adversaries")
    more = after.num_users - int((places >= 0).sum())
    less = int((places < 0).sum())
    units = attack.size if attack.unit is Unit.USER else 0
    if (more or less) and attack.relation is not Relation.JOIN:
        raise ValueError(
            f"{_name(attack)} changed the number of users: only attacks of the relation join may"
        )
    if more + less > units:
        raise ValueError(f"{_name(attack)} added {more} and removed {less} users, it may move {units}")
    if not np.array_equal(before.sizes[honest], after.sizes[places[honest]]):
        raise ValueError(f"{_name(attack)} changed the number of instances of users who are no adversaries")
    old = np.concatenate([np.empty(0, np.int64), *_rows(before, honest)])
    new = np.concatenate([np.empty(0, np.int64), *_rows(after, places[honest])])
    for name in ("features", "labels"):
        if not _same_rows(getattr(before, name), old, getattr(after, name), new):
            raise ValueError(f"{_name(attack)} changed {name} of users who are no adversaries")
    if not _same(before.which[old], after.which[new]):
        raise ValueError(f"{_name(attack)} gave instances of users who are no adversaries other identities")
    if attack.relation is Relation.JOIN and attack.unit is Unit.USER and not (more or less) and attack.size:
        raise ValueError(f"{_name(attack)} corrupted users, but its relation is join: they come or go")


def _check_instances(before: Federation, after: Federation, attack: Attack, places: Rows) -> None:
    """An attack on instances keeps to so many of them, and leaves their owners' other ones alone."""
    touched = 0
    owners = [user for user in attack.adversaries if user < before.num_users]
    for user in owners:
        old, new = _rows(before, [user])[0], _rows(after, places[[user]])[0]
        pairs = _matched(before, after, old, new)
        changed = sum(not _same_row(before, after, one, other) for one, other in pairs)
        moved = len(old) + len(new) - 2 * len(pairs)
        if moved and attack.relation is Relation.REPLACE:
            raise ValueError(
                f"{_name(attack)} changed the number of instances of user {user}: only attacks of the "
                "relation join may"
            )
        if changed and attack.relation is Relation.JOIN:
            raise ValueError(
                f"{_name(attack)} corrupted instances of user {user}, but its relation is join: they come "
                "or go"
            )
        touched += changed + moved
    if touched > attack.size:
        raise ValueError(f"{_name(attack)} touched {touched} instances, it may touch {attack.size}")


def _matched(before: Federation, after: Federation, old: Rows, new: Rows) -> list[tuple[int, int]]:
    """Rows that are the same instance on both sides."""
    where = {one: row for row, one in zip(new.tolist(), after.which[new].tolist(), strict=True)}
    mine = zip(old.tolist(), before.which[old].tolist(), strict=True)
    return [(row, where[one]) for row, one in mine if one in where]


def _same_row(before: Federation, after: Federation, old: int, new: int) -> bool:
    return bool(before.labels[old] == after.labels[new]) and _same(before.features[old], after.features[new])


def _rows(federation: Federation, users: Rows | list[int]) -> list[Rows]:
    rows = rows_of_users(federation)
    return [rows[user] for user in users]


def _same_rows(before: NDArray[np.generic], old: Rows, after: NDArray[np.generic], new: Rows) -> bool:
    if before is after and np.array_equal(old, new):
        return True
    parts = range(0, len(old), _AT_ONCE)  # of data that may fill the memory there is no second copy
    return all(_same(before[old[i : i + _AT_ONCE]], after[new[i : i + _AT_ONCE]]) for i in parts)


def _same(one: NDArray[np.generic] | None, other: NDArray[np.generic] | None) -> bool:
    if one is other:
        return True
    if one is None or other is None:
        return False
    return np.array_equal(one, other, equal_nan=np.issubdtype(one.dtype, np.floating))


def _name(attack: Attack) -> str:
    return type(attack).__name__
