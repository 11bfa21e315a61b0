"""A task under attack, and the work it shares with the clean one."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.aggregation.contributions import Contributions
from fedproof.attacks.attack import Attack, Craft, poisoned
from fedproof.attacks.coalition import coalition_of, with_updates
from fedproof.ensemble.memory import sizes_for
from fedproof.ensemble.task import Task, start_of
from fedproof.mechanisms.augment import Augment
from fedproof.mechanisms.cores import free_cores, on_cores
from fedproof.mechanisms.local import local_updates
from fedproof.mechanisms.randomness import data_order
from fedproof.mechanisms.rounds import State
from fedproof.mechanisms.users import users_on
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
    device = torch.device(task.device)
    users, model = users_on(task.federation, device, task.dtype), task.model.to(device, task.dtype)
    start = start_of(task, 0)
    order = torch.from_numpy(data_order(task.seed, 0, users.offsets, task.local.epochs)).to(device)
    members = np.array(sorted(adversaries, key=lambda user: (-users.sizes[user], user)), dtype=np.int64)
    augment = Augment.of(task.local, task.seed, 0)
    updates, stack = clean.clone(), sizes_for(task).stack

    def train(some: NDArray[np.int64]) -> None:
        own = local_updates(model, users, task.local, start.expand(len(some), -1), some, order, augment)
        updates[torch.from_numpy(some).to(updates.device)] = own.to(updates.device, updates.dtype)

    with free_cores(device) as cores:
        on_cores(train, [members[begin : begin + stack] for begin in range(0, len(members), stack)], cores)
    return updates
