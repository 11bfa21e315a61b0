"""A task under attack, and the work it shares with the clean one."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedproof.aggregation.contributions import Contributions
from fedproof.attacks.attack import Attack, Craft, poisoned
from fedproof.attacks.coalition import coalition_of, with_updates
from fedproof.ensemble.task import Task
from fedproof.ensemble.train import first_updates
from fedproof.mechanisms.rounds import State
from fedproof.models.precision import all_digits


@dataclass(frozen=True, kw_only=True)
class Hook:
    """An attack between local training and clipping; it touches the adversaries' updates alone.

    Its repr, which names the attack and all parameters, is part of the task's fingerprint.

    Attributes:
        attack: who attacks, and how.
        craft: what they hand in.
    """

    attack: Attack
    craft: Craft = field(repr=False)

    @property
    def adversaries(self) -> tuple[int, ...]:
        """The users who attack: what all of them would hand in must be among the shared updates."""
        return self.attack.adversaries

    def __call__(self, contributions: Contributions, state: State) -> Contributions:
        """The contributions after the attack."""
        coalition = coalition_of(contributions, self.adversaries)
        if coalition is None:
            return contributions
        return with_updates(coalition, self.craft(coalition, state))


@all_digits()
def under_attack(task: Task, attack: Attack) -> Task:
    """The task with poisoned data and updates; cohorts and noise of every replica stay the same.

    Guarantee: honest users' data are checked to be unchanged, their updates cannot be reached; what the
    adversaries hand in goes through the server's clipping and noise like everybody's.
    """
    if task.attack is not None:
        raise ValueError("the task is under attack already; attacks are combined by wrapping one another")
    federation = poisoned(task.federation, attack)
    craft = attack.crafter(replace(task, federation=federation))
    hook = None if craft is None or not attack.adversaries else Hook(attack=attack, craft=craft)
    return replace(task, federation=federation, attack=hook)


@all_digits()
def attacked_first_updates(task: Task, adversaries: tuple[int, ...], clean: Tensor) -> Tensor:
    """Round-one updates `(users, dim)` of the attacked `task`: only the adversaries train anew.

    Args:
        task: from `under_attack`.
        adversaries: whose rows are computed anew.
        clean: result of `first_updates` for the clean task.
    """
    if not adversaries:
        return clean
    users = np.array(sorted(adversaries), dtype=np.int64)
    updates = clean.clone()
    updates[torch.from_numpy(users).to(updates.device)] = first_updates(task, users=users).to(
        updates.device, updates.dtype
    )
    return updates
