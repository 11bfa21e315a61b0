"""Worst-case direction: all adversaries push the model straight towards a wrong answer."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Attack, Craft, Goal
from fedproof.attacks.backdoor import check_class
from fedproof.attacks.coalition import Coalition
from fedproof.ensemble.memory import sizes_for
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.models.model import Model
from fedproof.rounds.state import State
from fedproof.rounds.users import as_inputs


@dataclass(frozen=True, kw_only=True)
class WorstCase(Attack):
    """All adversaries hand in the same long update along which the target inputs' margin falls fastest.

    After clipping each contributes the full clip norm in one direction: the poisoned side of the dominating
    pair that certificates are computed from. For a linear model the direction is exact and the same in all
    rounds; in general it is the gradient at the current global model.

    Attributes:
        inputs: which test inputs are to be answered wrongly; empty: all.
        target: the class to be answered; None: for each input and model the strongest wrong one.
        length: of the update; the server clips it.
    """

    inputs: tuple[int, ...] = ()
    target: int | None = None
    length: float = 1e6

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(length=self.length)
        for index in self.inputs:
            check.not_negative_count(inputs=index)

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by the steepest descent of the margin."""
        chosen = chosen_inputs(task.federation, self.inputs, self.target)
        device = torch.device(task.device)
        model = task.model.to(device, task.dtype)
        inputs = as_inputs(task.federation.test_features[chosen], device, task.dtype)
        labels = torch.tensor(task.federation.test_labels[chosen], device=device)

        room = sizes_for(task).stack * task.local.batch_size  # (model, instance) pairs that fit at once

        def craft(coalition: Coalition, state: State) -> Tensor:
            params = state.params[: len(coalition.updates)]
            steepest = _steepest(model, params, inputs, labels, self.target, room)
            norm = torch.linalg.vector_norm(steepest, dim=1, keepdim=True)
            step = steepest * (self.length / norm.clamp(min=torch.finfo(norm.dtype).tiny))
            everybody: Tensor = step.unsqueeze(1).expand_as(coalition.updates)
            return everybody

        return craft

    def goal(self, federation: Federation) -> Goal:
        """The chosen test inputs, to be answered with the target class, or with any wrong one."""
        return target_goal(federation, self.inputs, self.target)


def target_goal(federation: Federation, inputs: tuple[int, ...], target: int | None) -> Goal:
    """The chosen test inputs, to be answered with the `target` class, or if it is None with any wrong one."""
    chosen = chosen_inputs(federation, inputs, target)
    features, labels = federation.test_features[chosen], federation.test_labels[chosen]
    if target is None:
        return Goal(inputs=features, labels=labels, wanted=False)
    return Goal(inputs=features, labels=np.full_like(labels, target))


def chosen_inputs(federation: Federation, inputs: tuple[int, ...], target: int | None) -> NDArray[np.int64]:
    """The test inputs named, or all, but for those that are of the `target` class already."""
    count = len(federation.test_labels)
    if inputs and max(inputs) >= count:
        raise ValueError(f"inputs = {max(inputs)} must be below the number of test inputs = {count}")
    chosen = np.array(inputs or range(count), dtype=np.int64)
    if target is None:
        return chosen
    check_class(federation, target=target)
    return np.asarray(chosen[federation.test_labels[chosen] != target])


def _steepest(
    model: Model, params: Tensor, inputs: Tensor, labels: Tensor, target: int | None, room: int
) -> Tensor:
    """Descent `(models, dim)` of the summed margin over all inputs, at most `room` pairs at a time."""
    width = min(room, len(labels))
    batches = list(zip(torch.split(inputs, width), torch.split(labels, width), strict=True))
    found = []
    for part in torch.split(params, room // width):
        steepest = torch.zeros_like(part)
        for some, theirs in batches:
            steepest += _descent(model, part, some, theirs, target)
        found.append(steepest)
    return torch.cat(found)


def _descent(model: Model, params: Tensor, inputs: Tensor, labels: Tensor, target: int | None) -> Tensor:
    """Minus the gradient `(models, dim)` of the sum of logit(label) - logit(rival) over the inputs."""
    stack = (len(params), len(labels))
    right = labels.expand(stack)
    rival = _rivals(model, params, inputs, right) if target is None else torch.full_like(right, target)
    factors = params.new_ones(stack)
    # Cross-entropies towards two classes differ by the two logits alone.
    everywhere = inputs.expand(len(params), *inputs.shape)
    towards = model.gradient(params, everywhere, rival, factors)
    return model.gradient(params, everywhere, right, factors).sub_(towards)


def _rivals(model: Model, params: Tensor, inputs: Tensor, labels: Tensor) -> Tensor:
    with torch.no_grad():
        logits = model.logits(params, inputs.unsqueeze(0)).clone()
    return logits.scatter_(2, labels.unsqueeze(2), -torch.inf).argmax(2)
