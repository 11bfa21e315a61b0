"""Local training of many (replica, user) pairs at once, each exactly as if it were trained alone."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms.users import Users
from fedproof.models.model import Model
from fedproof.protocol import LocalTraining


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The instances that the first `active` models of a stack see in one step.

    Attributes:
        active: number of models whose user still has instances left in this epoch.
        rows: `(active, width)` rows of the federation; padding repeats a user's last row.
        inside: `(active, width)`, False for padding.
        sizes: `(active, 1)`, the size of each user's own batch.
    """

    active: int
    rows: Tensor
    inside: Tensor
    sizes: Tensor


def local_updates(
    model: Model, users: Users, local: LocalTraining, start: Tensor, members: NDArray[np.int64], order: Tensor
) -> Tensor:
    """Update `(stack, dim)` of each user in `members` (stack,), trained from its row of `start` (stack, dim).

    `members` must be sorted by falling number of instances, so that those who stop early stand last.
    `order` (epochs, instances) says in which order a user sees its rows.
    """
    params = start.clone()
    velocity = torch.zeros_like(params)
    for batch in _batches(users, local, members, order):
        now, moving = params[: batch.active], velocity[: batch.active]
        inputs, labels = users.features[batch.rows], users.labels[batch.rows]
        gradient = model.gradient(now, inputs, labels, batch.inside.to(now.dtype) / batch.sizes)
        descend(now, moving, gradient, local)
    return params.sub_(start)


def descend(params: Tensor, velocity: Tensor, gradient: Tensor, local: LocalTraining) -> None:
    """One step of SGD with momentum and weight decay, in place, as `torch.optim.SGD` takes it."""
    if local.weight_decay:
        gradient = gradient.add_(params, alpha=local.weight_decay)
    if local.momentum:
        gradient = velocity.mul_(local.momentum).add_(gradient)
    params.add_(gradient, alpha=-local.learning_rate)


def _batches(
    users: Users, local: LocalTraining, members: NDArray[np.int64], order: Tensor
) -> Iterator[Batch]:
    sizes = users.sizes[members]
    first = torch.from_numpy(users.offsets[members]).to(order.device).unsqueeze(1)
    counts = torch.from_numpy(sizes).to(order.device).unsqueeze(1)
    for epoch in range(local.epochs):
        for begin in range(0, int(sizes[0]), local.batch_size):
            active = int((sizes > begin).sum())
            width = min(int(sizes[0]) - begin, local.batch_size)
            place = torch.arange(begin, begin + width, device=order.device)
            rows = first[:active] + torch.minimum(place, counts[:active] - 1)
            own = (counts[:active] - begin).clamp(max=local.batch_size)
            yield Batch(active=active, rows=order[epoch, rows], inside=place < counts[:active], sizes=own)
