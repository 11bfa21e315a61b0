"""Local training of many (replica, user) pairs at once, each exactly as if it were trained alone."""

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms.augment import Augment
from fedproof.mechanisms.users import Users
from fedproof.models.model import Model
from fedproof.protocol import LocalTraining


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The instances that the first `active` models of a stack see in one step.

    Attributes:
        epoch: number of the pass over the data.
        step: number of the step within the pass.
        active: number of models whose user still has instances left in this epoch.
        rows: `(active, width)` rows of the federation; padding repeats a user's last row.
        inside: `(active, width)`, False for padding.
        sizes: `(active, 1)`, the size of each user's own batch.
    """

    epoch: int
    step: int
    active: int
    rows: Tensor
    inside: Tensor
    sizes: Tensor


def local_updates(
    model: Model,
    users: Users,
    local: LocalTraining,
    start: Tensor,
    members: NDArray[np.int64],
    order: Tensor,
    augment: Augment,
) -> Tensor:
    """Update `(stack, dim)` of each user in `members` (stack,), trained from its row of `start` (stack, dim).

    `members` must be sorted by falling number of instances, so that those who stop early stand last.
    `order` (epochs, instances) says in which order a user sees its rows.
    """
    return descent(model, users, local, start, _batches(users, local, members, order), augment)


def descent(
    model: Model,
    users: Users,
    local: LocalTraining,
    start: Tensor,
    batches: Iterable[Batch],
    augment: Augment,
) -> Tensor:
    """What SGD over `batches` changes, `(stack, dim)`, from `start` (stack, dim)."""
    params = start.clone()
    velocity = torch.zeros_like(params)
    for batch in batches:
        now, moving = params[: batch.active], velocity[: batch.active]
        inputs, labels = users.features[batch.rows], users.labels[batch.rows]
        inputs = augment(inputs, batch.epoch, batch.step)
        weights = batch.inside.to(now.dtype) / batch.sizes
        if local.balanced:
            weights = weights * users.balance[batch.rows]
        gradient = model.gradient(now, inputs, labels, weights)
        descend(now, moving, gradient, at_epoch(local, batch.epoch))
    return params.sub_(start)


def at_epoch(local: LocalTraining, epoch: int) -> LocalTraining:
    """The training with the learning rate of one epoch.

    >>> rates = [at_epoch(LocalTraining(epochs=2, cosine=True), epoch).learning_rate for epoch in range(2)]
    >>> [round(rate, 3) for rate in rates]
    [0.1, 0.05]
    """
    if not local.cosine:
        return local
    part = (1 + math.cos(math.pi * epoch / local.epochs)) / 2
    return replace(local, learning_rate=local.learning_rate * part)


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
            yield Batch(
                epoch=epoch,
                step=begin // local.batch_size,
                active=active,
                rows=order[epoch, rows],
                inside=place < counts[:active],
                sizes=own,
            )
