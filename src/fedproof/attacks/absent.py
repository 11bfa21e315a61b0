"""Absent: users who hand in nothing, the other side of the relation `join`."""

from dataclasses import dataclass

from torch import Tensor

from fedproof.attacks.attack import Attack, Craft
from fedproof.attacks.coalition import Coalition
from fedproof.ensemble.task import Task
from fedproof.rounds.state import State


@dataclass(frozen=True, kw_only=True)
class Absent(Attack):
    """The adversaries' updates are zero: the federation before they joined, with the same divisor.

    Under Poisson sampling a user who adds nothing to the sum is as good as not there. Certificates for the
    relation `join` compare this training with any other that these users could bring about.
    """

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by zero."""

        def craft(coalition: Coalition, state: State) -> Tensor:
            return coalition.updates.new_zeros(coalition.updates.shape)

        return craft
