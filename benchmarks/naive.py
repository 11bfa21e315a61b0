"""One model at a time, as everybody writes it: the yardstick for tests and benchmarks.

Draws the same cohorts, orders, batches and noise as the engine, and shares none of its arithmetic.
"""

import math
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from fedproof import exact
from fedproof.ensemble.task import Task, cohort_size, start_of
from fedproof.mechanisms import (
    InstanceFedAvg,
    InstanceFedSGD,
    Mechanism,
    Median,
    PerLayer,
    PerLayerMedian,
    Quantile,
)
from fedproof.models.model import as_inputs, load
from fedproof.models.precision import all_digits
from fedproof.rounds.local import Augment, at_epoch
from fedproof.rounds.randomness import Stream, data_order, draw, noise
from fedproof.rounds.state import class_balance
from fedproof.seeds import Lots, Purpose, cohorts_of


@all_digits()
def train_one(task: Task, replica: int) -> Tensor:
    """Parameters `(dim,)` of one replica, trained user after user with ordinary modules."""
    plain, server = _Plain.of(task), _Server.of(task, replica)
    params = start_of(task, replica)
    users = _PrivateUsers(plain=plain, server=server)
    for round in range(task.mechanism.rounds):
        members = np.flatnonzero(server.cohorts[round])
        augment = Augment(local=task.local, seed=task.seed, round=round)
        if task.mechanism.pooled:
            if task.mechanism.noise_multiplier:
                change = _noisy_step(plain, server, params, members, task.mechanism)
            else:
                change = plain.update(params, server.pooled_order(members), augment)
            total = change * server.divisor
        elif task.mechanism.shares_first_round:
            offsets, ids = task.federation.offsets, task.federation.who
            order = data_order(task.seed, round, offsets, task.local.epochs, ids)
            updates = [
                plain.update(params, order[:, offsets[user] : offsets[user + 1]], augment) for user in members
            ]
            total = server.private_sum(updates, params)
        else:
            total = sum(users.updates(params, members, round), torch.zeros_like(params))
        params = (params.double() + total.double() / server.divisor).to(params.dtype)
    return params


@all_digits()
def score_one(task: Task, params: Tensor) -> Tensor:
    """Softmax scores `(inputs, classes)` of one model on the test inputs."""
    module = _Plain.of(task).fresh(params)
    with torch.no_grad():
        logits: Tensor = module(as_inputs(task.federation.test_features, params.device, task.dtype))
    return logits.softmax(-1)


@dataclass(frozen=True, kw_only=True)
class _Plain:
    """The task with its data on the device."""

    task: Task
    features: Tensor
    labels: Tensor
    balance: Tensor

    @staticmethod
    def of(task: Task) -> "_Plain":
        device = torch.device(task.device)
        features = as_inputs(task.federation.features, device, task.dtype)
        return _Plain(
            task=task,
            features=features,
            labels=torch.tensor(task.federation.labels, device=device),
            balance=torch.from_numpy(class_balance(task.units)).to(device, task.dtype),
        )

    def fresh(self, params: Tensor) -> nn.Module:
        """A module with the given parameters."""
        module = self.task.model.module().to(self.labels.device, self.task.dtype)
        return load(module, self.task.model.layout, params)

    def flat(self, module: nn.Module) -> Tensor:
        """A module's parameters as `(dim,)`."""
        return self.task.model.layout.flatten(dict(module.named_parameters()))

    def optimizer(self, module: nn.Module) -> torch.optim.SGD:
        """Torch's own SGD."""
        local = self.task.local
        trained = [parameter for parameter in module.parameters() if parameter.requires_grad]
        return torch.optim.SGD(
            trained, local.learning_rate, momentum=local.momentum, weight_decay=local.weight_decay
        )

    def update(self, params: Tensor, order: NDArray[np.int64], augment: Augment) -> Tensor:
        """What local training on rows in the given `order` (epochs, instances) changes."""
        module = self.fresh(params)
        optimizer = self.optimizer(module)
        local = self.task.local
        for epoch, rows in enumerate(torch.from_numpy(order).to(self.labels.device)):
            optimizer.param_groups[0]["lr"] = at_epoch(local, epoch).learning_rate
            for step, batch in enumerate(torch.split(rows, local.batch_size) if len(rows) else ()):
                optimizer.zero_grad()
                inputs = augment(self.features[batch][None], epoch, step)[0]
                losses = F.cross_entropy(module(inputs), self.labels[batch], reduction="none")
                loss = (losses * self.balance[batch]).mean() if local.balanced else losses.mean()
                torch.autograd.backward(loss)
                optimizer.step()
        return self.flat(module) - params

    def step(self, module: nn.Module, optimizer: torch.optim.SGD, gradient: Tensor) -> None:
        """Let torch's own SGD take one step along a `gradient` (dim,)."""
        views = self.task.model.layout.views(gradient.unsqueeze(0))
        for name, parameter in module.named_parameters():
            parameter.grad = views[name][0].clone()
        optimizer.step()

    def clipped_sum(self, module: nn.Module, batch: Tensor, clip_norm: float) -> Tensor:
        """Sum of clipped per-instance gradients `(dim,)`."""
        inputs, labels = self.features[batch], self.labels[batch]
        if not len(batch):
            return torch.zeros_like(self.flat(module))
        rows = _looped(module, inputs, labels) if _recurrent(module) else _mapped(module, inputs, labels)
        scales = (clip_norm / rows.norm(dim=1)).clamp(max=1)
        total: Tensor = (rows * scales.unsqueeze(1)).sum(0)
        return total


@dataclass(kw_only=True)
class _Server:
    """The server of one replica; the clip norm changes where it is adaptive."""

    task: Task
    cohorts: NDArray[np.bool_]
    noise: Stream
    batches: Stream
    lots: Lots
    divisor: float
    clip_norm: float

    @staticmethod
    def of(task: Task, replica: int) -> "_Server":
        users = task.units.who
        only = range(replica, replica + 1)
        device, secure = torch.device(task.device), task.secure_noise
        return _Server(
            task=task,
            cohorts=cohorts_of(task.mechanism, users, task.seed, only, secure=secure)[0],
            noise=Stream(task.seed, Purpose.NOISE, replica, device, secure=secure),
            batches=Stream(task.seed, Purpose.BATCH, replica, device, secure=secure),
            lots=Lots(task.seed, Purpose.BATCH, only, secure=secure),
            divisor=cohort_size(task),
            clip_norm=getattr(task.mechanism, "clip_norm", 1.0),
        )

    def noisy(self, totals: Tensor, grid: exact.Grid) -> Tensor:
        """Float64 sums `(rows, numbers)` on the nearest places of a grid, and noise."""
        scale = torch.full((len(totals), 1), float(grid.scale), dtype=torch.float64, device=totals.device)
        drawn = noise([self.noise], [len(totals)], totals.shape[1], scale)
        noisy: Tensor = (torch.round(totals / grid.step) + drawn) * grid.step
        return noisy

    def private_sum(self, updates: list[Tensor], like: Tensor) -> Tensor:
        """Sum of the clipped updates plus noise, from the definitions; without privacy the sum alone."""
        mechanism = self.task.mechanism
        if mechanism.once and not mechanism.noise_multiplier:
            # the mean of those who are there
            return sum(updates, torch.zeros_like(like)) * (self.divisor / max(1, len(updates)))
        if not mechanism.noise_multiplier:
            return sum(updates, torch.zeros_like(like))
        total, found = torch.zeros_like(like, dtype=torch.float64), []
        clipping = mechanism.clipping
        layered = isinstance(clipping, PerLayer | PerLayerMedian)
        begin = 0
        for size in self.task.model.layout.layer_sizes if layered else (len(like),):
            part = slice(begin, begin + size)
            norms = [float(update[part].double().norm()) for update in updates]
            from_cohort = isinstance(clipping, Median | PerLayerMedian) and norms
            bound = float(np.median(norms)) if from_cohort else self.clip_norm
            grid = exact.grid_of(mechanism.noise_multiplier, bound)
            room = 1 - (8 + len(like)) * 2.0**-52
            for update, norm in zip(updates, norms, strict=True):
                short = update[part].double() * (bound * room / grid.step / max(norm, bound))
                total[part] += torch.trunc(short) * grid.step
            found.append(grid)
            begin += size
        sizes = self.task.model.layout.layer_sizes if layered else (len(like),)
        steps, scales = (
            torch.tensor([float(getattr(grid, name)) for grid in found], dtype=torch.float64)
            .repeat_interleave(torch.tensor(sizes))
            .to(like.device)
            for name in ("step", "scale")
        )
        total += noise([self.noise], [1], len(like), scales.unsqueeze(0))[0] * steps
        if isinstance(clipping, Quantile):
            self.adapt(clipping, updates)
        return total

    def pooled_order(self, members: NDArray[np.int64]) -> NDArray[np.int64]:
        """Rows `(epochs, instances)` of all members, in the order in which they are trained on."""
        offsets = self.task.units.offsets
        rows = np.concatenate(
            [np.arange(0), *(np.arange(offsets[user], offsets[user + 1]) for user in members)]
        )
        order = np.empty((self.task.local.epochs, len(rows)), dtype=np.int64)
        for epoch in order:
            keys = torch.empty(len(rows), dtype=torch.float64, device=self.task.device)
            self.batches.uniform_(keys)
            epoch[:] = rows[keys.argsort(stable=True).cpu().numpy()]
        return order

    def adapt(self, clipping: Quantile, updates: list[Tensor]) -> None:
        """Take a step of the clip norm towards the target quantile."""
        bits = sum((float(update.double().norm()) <= self.clip_norm) - 0.5 for update in updates)
        # Of norm 1/2 each.
        grid = exact.grid_of(2 * clipping.count_noise_std, 0.5)
        noisy = float(self.noisy(torch.full((1, 1), bits, dtype=torch.float64), grid))
        share = noisy / self.divisor + 0.5
        self.clip_norm *= float(np.exp(-clipping.learning_rate * (share - clipping.target)))


@dataclass(kw_only=True)
class _PrivateUsers:
    """Users of one replica who run DP-SGD; they remember the momentum they ended a round with.

    Attributes:
        momentum: of users, by the name of the parameter.
        orders: in which users go through their instances, where passes are shuffled.
    """

    plain: _Plain
    server: _Server
    momentum: dict[int, dict[str, Tensor]] = field(default_factory=dict)
    orders: dict[int, Tensor] = field(default_factory=dict)

    def updates(self, params: Tensor, members: NDArray[np.int64], round: int) -> list[Tensor]:
        """What the members' steps change."""
        mechanism = self.plain.task.mechanism
        assert isinstance(mechanism, InstanceFedAvg | InstanceFedSGD)
        modules = {user: self.plain.fresh(params) for user in members.tolist()}
        optimizers = {user: self._optimizer(user, module) for user, module in modules.items()}
        steps = mechanism.local_steps if isinstance(mechanism, InstanceFedAvg) else 1
        for step in range(steps):
            batches = self._batches(step, round * steps + step)
            grid = exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm)
            short = (mechanism.clip_norm - exact.room_for_rounding(grid, len(params))) / (1 + exact.SUMMED)
            totals = [
                self.plain.clipped_sum(module, batches[user][0], short).double()
                for user, module in modules.items()
            ]
            for total, user in zip(self.server.noisy(torch.stack(totals), grid), modules, strict=True):
                gradient = (total / batches[user][1]).to(params.dtype)
                self.plain.step(modules[user], optimizers[user], gradient)
        for user, module in modules.items():
            state = optimizers[user].state
            self.momentum[user] = {
                name: state[parameter]["momentum_buffer"]
                for name, parameter in module.named_parameters()
                if "momentum_buffer" in state[parameter]
            }
        return [self.plain.flat(module) - params for module in modules.values()]

    def _optimizer(self, user: int, module: nn.Module) -> torch.optim.SGD:
        optimizer = self.plain.optimizer(module)
        if getattr(self.plain.task.mechanism, "keep_momentum", False):
            named = dict(module.named_parameters())
            for name, buffer in self.momentum.get(user, {}).items():
                optimizer.state[named[name]]["momentum_buffer"] = buffer
        return optimizer

    def _batches(self, step: int, number: int) -> list[tuple[Tensor, int]]:
        """Everybody's batch in a step, and what its noisy sum is divided by."""
        mechanism, local = self.plain.task.mechanism, self.plain.task.local
        offsets = self.plain.task.federation.offsets.tolist()
        device = self.plain.labels.device
        users = [torch.arange(*ends, device=device) for ends in pairwise(offsets)]
        if getattr(mechanism, "shuffled", False):
            return self._parts(step, number, users)
        numbers = self._numbers(number)
        chances = [getattr(mechanism, "batch_probability", 1.0)] * len(users)
        if isinstance(mechanism, InstanceFedAvg):
            chances = mechanism.batch_probabilities(
                self.plain.task.federation.sizes, local.batch_size
            ).tolist()
        batches = [rows[numbers[rows] < chance] for rows, chance in zip(users, chances, strict=True)]
        return [(batch, local.batch_size) for batch in batches]

    def _parts(self, step: int, number: int, users: list[Tensor]) -> list[tuple[Tensor, int]]:
        """The next part of everybody's shuffled instances."""
        size = self.plain.task.local.batch_size
        counts = [math.ceil(len(rows) / size) for rows in users]
        beginners = [user for user, count in enumerate(counts) if step % count == 0]
        if beginners:
            numbers = self._numbers(number)
            for user in beginners:
                self.orders[user] = users[user][numbers[users[user]].argsort(stable=True)]
        places = [step % count * size for count in counts]
        batches = [self.orders[user][begin : begin + size] for user, begin in enumerate(places)]
        return [(batch, len(batch)) for batch in batches]

    def _numbers(self, number: int) -> Tensor:
        ids = torch.from_numpy(self.plain.task.federation.which[None]).to(self.plain.labels.device)
        return draw(self.server.lots, np.array([number]), np.zeros(1, dtype=np.int64), ids)[0]


def _noisy_step(
    plain: _Plain, server: _Server, params: Tensor, members: NDArray[np.int64], mechanism: Mechanism
) -> Tensor:
    """What one noisy step on all drawn instances changes."""
    module = plain.fresh(params)
    grid = exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm)
    short = (mechanism.clip_norm - exact.room_for_rounding(grid, len(params))) / (1 + exact.SUMMED)
    total = plain.clipped_sum(module, torch.from_numpy(members).to(params.device), short)
    noisy = server.noisy(total.double().unsqueeze(0), grid)[0] / server.divisor
    plain.step(module, plain.optimizer(module), noisy.to(params.dtype))
    return plain.flat(module) - params


def _recurrent(module: nn.Module) -> bool:
    return any(isinstance(part, nn.RNNBase) for part in module.modules())


def _mapped(module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    def loss(weights: dict[str, Tensor], instance: Tensor, label: Tensor) -> Tensor:
        return F.cross_entropy(functional_call(module, weights, (instance[None],)), label[None])

    weights = {name: value.detach() for name, value in module.named_parameters()}
    found = vmap(grad(loss), in_dims=(None, 0, 0))(weights, inputs, labels)
    return torch.cat([found[name].flatten(1) for name in weights], dim=1)


def _looped(module: nn.Module, inputs: Tensor, labels: Tensor) -> Tensor:
    trained = list(module.parameters())
    rows = []
    for index in range(len(labels)):
        loss = F.cross_entropy(module(inputs[index : index + 1]), labels[index : index + 1])
        parts = torch.autograd.grad(loss, trained)
        rows.append(torch.cat([part.flatten() for part in parts])[None])
    return torch.cat(rows)
