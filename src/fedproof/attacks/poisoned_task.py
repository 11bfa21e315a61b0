"""A task under attack, and the work it shares with the clean one."""

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from torch import Tensor

from fedproof.aggregation.contributions import Contributions
from fedproof.attacks.attack import Attack, Craft
from fedproof.attacks.coalition import coalition_of, with_updates
from fedproof.attacks.honest import poisoned
from fedproof.ensemble.task import Task
from fedproof.ensemble.train import first_updates
from fedproof.federation import Federation
from fedproof.mechanisms import FixedSize
from fedproof.models.precision import all_digits
from fedproof.rounds.state import State
from fedproof.threat import Unit


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
    if craft is not None and task.mechanism.pooled:
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
    """Round-one updates `(users, dim)` of the attacked `task`: only the adversaries train anew.

    Args:
        task: from `under_attack`, by an attack that nobody leaves in.
        adversaries: whose rows are computed anew, newcomers behind the others.
        clean: result of `first_updates` for the clean task.
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
