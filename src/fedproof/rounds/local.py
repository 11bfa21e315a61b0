"""Local training of many (replica, user) pairs at once, each exactly as if it were trained alone."""

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedproof.mechanisms import LocalTraining
from fedproof.rounds.randomness import augment_generator
from fedproof.rounds.stacking import on_cores, taken
from fedproof.rounds.state import Setting, State

_POINTS = 4  # along each side of an image, at which it is bent


@dataclass(frozen=True, kw_only=True)
class Batch:
    """The instances that the models of a stack see in one step.

    Attributes:
        epoch: number of the pass over the data.
        step: number of the step within the pass.
        rows: `(models, width)` rows of the federation for the first models of the stack; padding repeats a
            row of the model's own, and is anybody's where a model has none.
        inside: `(models, width)`, False for padding.
        sizes: `(models, 1)`, how many of a model's rows are no padding, at least 1.
        steps: `(models, 1)`, which of these models take the step; None if all do.
    """

    epoch: int
    step: int
    rows: Tensor
    inside: Tensor
    sizes: Tensor
    steps: Tensor | None


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to the images of each step of one round, alike for all models that take the step.

    Images are moved and mirrored alike in the whole step, stretched and bent in each place of a batch by
    itself. Nothing is drawn for a model or a unit, so nobody's random numbers depend on others.

    Attributes:
        local: says by how much, see `shift`, `flip`, `stretch` and `bend` there.
        seed, round: of the random numbers.
    """

    local: LocalTraining
    seed: int = field(repr=False)
    round: int

    def __call__(self, images: Tensor, epoch: int, step: int) -> Tensor:
        """`images` (models, places, ..., height, width) as seen in one step; their border is repeated."""
        if not self.local.augments:
            return images
        generator = augment_generator(self.seed, self.round, epoch, step)
        down, right = generator.integers(-self.local.shift, self.local.shift + 1, size=2).tolist()
        images = _moved(_moved(images, down, -2), right, -1)
        images = images.flip(-1) if self.local.flip and generator.random() < 0.5 else images
        return self._warped(images, generator) if self.local.stretch or self.local.bend else images

    def _warped(self, images: Tensor, generator: np.random.Generator) -> Tensor:
        models, places, *_, height, width = images.shape
        # Row after row, so that a short batch is warped as the first places of a full one are.
        drawn = torch.from_numpy(generator.uniform(-1, 1, (places, 2, 2 + _POINTS**2)))
        matrix = torch.eye(2, 3).double() + F.pad(self.local.stretch * drawn[..., :2], (0, 1))
        points = self.local.bend * drawn[..., 2:].reshape(places, 2, _POINTS, _POINTS)
        moves = F.interpolate(points, (height, width), mode="bicubic").permute(0, 2, 3, 1)
        source = F.affine_grid(matrix, [places, 1, height, width], align_corners=False)
        source = source + moves * 2 / torch.tensor([width, height])
        stacked = images.transpose(0, 1).reshape(places, -1, height, width)
        seen = F.grid_sample(stacked, source.to(images), padding_mode="border", align_corners=False)
        return seen.view(places, models, *images.shape[2:]).transpose(0, 1).contiguous()


@dataclass(frozen=True, kw_only=True)
class Work:
    """The local training of one round, in pieces: each has a replica's model to start from, and batches.

    Attributes:
        replica, slot: `(pieces,)`, which replica a piece belongs to, and its place among the pieces of that.
        width: number of these places.
        stacks: the pieces that are trained at once, -1 where a place is empty, see `Stacking.stacks`.
        batches: of the pieces in a stack.
    """

    replica: NDArray[np.int64]
    slot: NDArray[np.int64]
    width: int
    stacks: Iterable[NDArray[np.int64]]
    batches: Callable[[NDArray[np.int64]], Iterator[Batch]]


def descent(setting: Setting, state: State, work: Work, home: torch.device | None = None) -> Tensor:
    """What SGD changes, `(replicas, width, dim)`, 0 where there is no piece, kept on `home` or with `state`.

    Guarantee: an update depends on its replica's model, its own batches and the round alone, bit for bit.
    """
    params, local, device = state.params, setting.local, state.params.device
    home = home or device
    updates = torch.zeros((len(params), work.width, params.shape[1]), dtype=params.dtype, device=home)
    augment = Augment(local=local, seed=setting.seed, round=state.round)

    def train(places: NDArray[np.int64]) -> None:
        pieces, real = places[places >= 0], torch.from_numpy(places >= 0).to(device)
        replica, slot = (torch.from_numpy(index[pieces]) for index in (work.replica, work.slot))
        start = params.new_zeros((len(places), params.shape[1]))  # nobody asks what becomes of an empty place
        start[real] = params[replica.to(device)]
        models, velocity = start.clone(), torch.zeros_like(start)
        for batch in work.batches(places):
            now, moving = models[: len(batch.rows)], velocity[: len(batch.rows)]
            gradient = setting.model.gradient(now, *_seen(setting, batch, augment))
            descend(now, moving, gradient, at_epoch(local, batch.epoch), batch.steps)
        updates[replica.to(home), slot.to(home)] = models.sub_(start)[real].to(home)

    on_cores(train, work.stacks, setting.cores)
    return updates


def _seen(setting: Setting, batch: Batch, augment: Augment) -> tuple[Tensor, Tensor, Tensor]:
    """Inputs, labels and weights `(models, width)` of a batch."""
    users = setting.users
    inputs = augment(users.features[batch.rows], batch.epoch, batch.step)
    weights = 1 / batch.sizes.to(users.balance.dtype)
    if setting.local.balanced:
        weights = weights * users.balance[batch.rows]
    return inputs, users.labels[batch.rows], torch.where(batch.inside, weights, 0)


def batches_of(
    setting: Setting, user: NDArray[np.int64], order: Tensor, places: NDArray[np.int64]
) -> Iterator[Batch]:
    """The batches, of all epochs, that the pieces in `places` see, each those of its `user` (pieces,).

    `order` (epochs, instances) says in which order a user sees its rows.
    """
    users, size, device = setting.users, setting.local.batch_size, order.device
    sizes, offsets = taken(users.sizes[user], places), taken(users.offsets[user], places)
    first, counts = (torch.from_numpy(array).to(device).unsqueeze(1) for array in (offsets, sizes))
    for epoch in range(setting.local.epochs):
        for begin in range(0, int(sizes.max()), size):
            reached = setting.stacking.reached(sizes, begin)
            place = torch.arange(begin, begin + width_of(setting, begin), device=device)
            own = counts[:reached]
            rows = first[:reached] + torch.minimum(place, (own - 1).clamp(min=0))
            yield Batch(
                epoch=epoch,
                step=begin // size,
                rows=order[epoch, rows],
                inside=place < own,
                sizes=(own - begin).clamp(min=1, max=size),
                steps=steps_of(sizes[:reached], begin, device),
            )


def width_of(setting: Setting, begin: int) -> int:
    """Rows of a batch that begins after `begin` of a user's instances, from public numbers alone."""
    size, most = setting.local.batch_size, setting.users.most_instances
    return size if most is None else max(1, min(size, most - begin))


def steps_of(counts: NDArray[np.int64], begin: int, device: torch.device) -> Tensor | None:
    """Which models `(models, 1)` have more than `begin` instances, or none at all; None if all have.

    What becomes of a model without instances, or of an empty place, nobody asks.
    """
    ahead = (counts > begin) | (counts == 0)
    return None if ahead.all() else torch.from_numpy(ahead[:, None]).to(device)


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


def descend(
    params: Tensor, velocity: Tensor, gradient: Tensor, local: LocalTraining, steps: Tensor | None = None
) -> None:
    """One step of SGD with momentum and weight decay, in place, as `torch.optim.SGD` takes it.

    Of `steps` (models, 1) it is taken by those where it is True, if it is given.
    """
    before = None if steps is None else (params.clone(), velocity.clone())
    if local.weight_decay:
        gradient = gradient.add_(params, alpha=local.weight_decay)
    if local.momentum:
        gradient = velocity.mul_(local.momentum).add_(gradient)
    params.add_(gradient, alpha=-local.learning_rate)
    if before is not None and steps is not None:
        params.copy_(torch.where(steps, params, before[0]))
        velocity.copy_(torch.where(steps, velocity, before[1]))


def _moved(images: Tensor, pixels: int, axis: int) -> Tensor:
    if not pixels:
        return images
    length = images.shape[axis]
    source = torch.arange(length, device=images.device) - pixels
    return images.index_select(axis, source.clamp(0, length - 1))
