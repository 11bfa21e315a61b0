"""Hostile values: whatever numbers a machine can hold, in data and in updates."""

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Attack, Coalition, Craft
from fedproof.attacks.units import frozen, most_instances, resized, rows_of_users
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.rounds.state import State


class Values(StrEnum):
    """What adversaries write: one kind of number, or all of them by turns."""

    HUGE = "huge"
    NAN = "nan"
    INFINITE = "infinite"
    SUBNORMAL = "subnormal"
    MIXED = "mixed"


_NUMBERS = {
    Values.HUGE: (3e38, -3e38),
    Values.NAN: (np.nan,),
    Values.INFINITE: (np.inf, -np.inf),
    Values.SUBNORMAL: (1e-45, 0.0),
}
_LABELS = {Values.HUGE: 2**62, Values.NAN: -1, Values.INFINITE: -(2**63), Values.SUBNORMAL: 2**31}
"""What stands for such a number among labels: no class."""


@dataclass(frozen=True, kw_only=True)
class Hostile(Attack):
    """Adversaries hold, and hand in, numbers that no honest user has.

    A certificate speaks of any data: a model that did not draw these users must be what it was, bit for bit,
    and one that did may be ruined, within the bounds. Every second adversary hands in such numbers as its
    update; the others train on what they hold.

    Attributes:
        values: which numbers.
        resize: whether adversaries hold, by turns, the most instances a user may hold, one, and their own.
    """

    values: Values = Values.MIXED
    resize: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "values", check.member(Values, values=self.values))

    def poison(self, federation: Federation) -> Federation:
        """The federation in which the adversaries hold hostile instances."""
        if self.resize and self.adversaries:
            limit, own = most_instances(federation), federation.sizes
            counts = [(limit, 1, int(own[user]))[turn % 3] for turn, user in enumerate(self.adversaries)]
            federation = resized(federation, self.adversaries, counts)
        features, labels = federation.features.copy(), federation.labels.copy()
        rows = rows_of_users(federation)
        for turn, user in enumerate(self.adversaries):
            mine = rows[user]
            features[mine] = self._features(federation, len(mine), turn)
            labels[mine] = (np.arange(len(mine)) + turn) % federation.num_classes
        return frozen(federation, features=features, labels=labels)

    def crafter(self, task: Task) -> Craft | None:
        """Every second adversary hands in such numbers, or labels; None where nobody hands in anything."""
        if not task.mechanism.hands_in:
            return None
        labels = task.mechanism.sends_labels
        numbers = [
            (user, _LABELS[self._kind(turn)] if labels else _NUMBERS[self._kind(turn)][0])
            for turn, user in enumerate(self.adversaries)
            if turn % 2
        ]

        def craft(coalition: Coalition, state: State) -> Tensor:
            members = coalition.contributions.members
            rows = torch.arange(len(coalition.slots), device=members.device).unsqueeze(1)
            who = members[rows, coalition.slots]
            updates = coalition.updates.clone()
            for user, number in numbers:
                updates[who == user] = number
            return updates

        return craft

    def _kind(self, turn: int) -> Values:
        return list(_NUMBERS)[turn // 2 % len(_NUMBERS)] if self.values is Values.MIXED else self.values

    def _features(self, federation: Federation, count: int, turn: int) -> NDArray[np.generic]:
        shape, kind = (count, *federation.features.shape[1:]), federation.features.dtype
        if not np.issubdtype(kind, np.floating):  # token ids: the first and the last there is
            ends = [federation.features.min(), federation.features.max()]
            return np.resize(np.array(ends, dtype=kind), shape)
        numbers = np.array(_NUMBERS[self._kind(turn)], dtype=np.float32)
        return np.resize(numbers, shape).astype(kind)
