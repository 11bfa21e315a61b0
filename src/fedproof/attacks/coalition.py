"""The adversaries among those who hand in updates, gathered for all replicas at once."""

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedproof.aggregation.contributions import Contributions


@dataclass(frozen=True, kw_only=True)
class Coalition:
    """What the adversaries know of a round: what each of them would hand in if it were honest.

    In round one all replicas share the updates and the first axis has length one; the coalition is then
    complete. Later it consists of the adversaries that were drawn.

    Attributes:
        updates: `(replicas or 1, adversaries, dim)`, 0 where a place is empty.
        present: `(replicas or 1, adversaries)`, False where a place is empty.
        slots: `(replicas or 1, adversaries)`, where each stands among the contributions.
        contributions: of everybody, for attacks that see more than their own.
    """

    updates: Tensor
    present: Tensor
    slots: Tensor
    contributions: Contributions


def coalition_of(contributions: Contributions, adversaries: tuple[int, ...]) -> Coalition | None:
    """The adversaries among the members of `contributions`; None if there is none in any replica."""
    users = torch.tensor(adversaries, dtype=contributions.members.dtype, device=contributions.members.device)
    mask = torch.isin(contributions.members, users)
    width = int(mask.sum(1).max()) if mask.numel() else 0
    if width == 0:
        return None
    slots = mask.logical_not().to(torch.uint8).argsort(dim=1, stable=True)[:, :width]
    present = mask.gather(1, slots)
    rows = torch.arange(len(slots), device=slots.device).unsqueeze(1)
    updates = torch.where(present.unsqueeze(2), contributions.updates[rows, slots], 0)
    return Coalition(updates=updates, present=present, slots=slots, contributions=contributions)


def with_updates(coalition: Coalition, crafted: Tensor) -> Contributions:
    """The contributions in which the adversaries hand in `crafted`; nobody else's update changes."""
    if crafted.shape != coalition.updates.shape:
        raise ValueError(
            f"the attack hands in updates of shape {tuple(crafted.shape)}, "
            f"must be (replicas, adversaries, dim) = {tuple(coalition.updates.shape)}"
        )
    updates = coalition.contributions.updates.clone()
    row, place = coalition.present.nonzero(as_tuple=True)
    updates[row, coalition.slots[row, place]] = crafted[row, place].to(updates.dtype)
    return replace(coalition.contributions, updates=updates)


def masked_mean(updates: Tensor, present: Tensor) -> Tensor:
    """Mean `(replicas, dim)` of the updates (replicas, adversaries, dim) that are `present`; 0 without any.

    >>> masked_mean(torch.tensor([[[2.0], [4.0], [9.0]]]), torch.tensor([[True, True, False]]))
    tensor([[3.]])
    """
    inside = present.unsqueeze(2)
    total = torch.where(inside, updates, 0).sum(1)
    return total / present.sum(1, keepdim=True).clamp(min=1)
