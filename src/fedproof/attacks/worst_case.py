"""Worst case: adversaries push the model straight towards a wrong answer, by updates or by data alone."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Attack, Coalition, Craft, Goal
from fedproof.attacks.units import check_class, frozen, rows_of
from fedproof.ensemble import one_round
from fedproof.ensemble.memory import sizes_for
from fedproof.ensemble.task import Task
from fedproof.federation import Federation
from fedproof.mechanisms import Releases
from fedproof.mechanisms.uploads import Sent
from fedproof.models.model import Model, as_inputs
from fedproof.rounds.state import State

_LOUD = 1e6  # longer than any public set is wide


@dataclass(frozen=True, kw_only=True)
class _Targeted(Attack):
    """An attack on some test inputs.

    Attributes:
        inputs: which test inputs are to be answered wrongly; empty: all.
        target: the class to be answered; None: any wrong one.
    """

    inputs: tuple[int, ...] = ()
    target: int | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        for index in self.inputs:
            check.not_negative_count(inputs=index)

    def goal(self, federation: Federation) -> Goal:
        """The chosen test inputs, to be answered with the target class, or with any wrong one."""
        chosen = self.chosen(federation)
        features, labels = federation.test_features[chosen], federation.test_labels[chosen]
        if self.target is None:
            return Goal(inputs=features, labels=labels, wanted=False)
        return Goal(inputs=features, labels=np.full_like(labels, self.target))

    def chosen(self, federation: Federation) -> NDArray[np.int64]:
        """The test inputs named, or all, but for those that are of the target class already."""
        count = len(federation.test_labels)
        if self.inputs and max(self.inputs) >= count:
            raise ValueError(f"inputs = {max(self.inputs)} must be below the number of test inputs = {count}")
        chosen = np.array(self.inputs or range(count), dtype=np.int64)
        if self.target is None:
            return chosen
        check_class(federation, target=self.target)
        return np.asarray(chosen[federation.test_labels[chosen] != self.target])


@dataclass(frozen=True, kw_only=True)
class WorstCase(_Targeted):
    """All adversaries hand in the same long update along which the target inputs' margin falls fastest.

    After clipping each contributes the full clip norm in one direction: the poisoned side of the dominating
    pair that certificates are computed from. For a linear model the direction is exact and the same in all
    rounds; in general it is the gradient at the current global model. Of a one-round mechanism all of them
    send the head, or the labels, that `worst_upload` finds.

    Attributes:
        target: the class to be answered; None: for each input and model the strongest wrong one.
        length: of the update; the server clips it.
    """

    length: float = 1e6

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(length=self.length)

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by the steepest descent of the margin."""
        chosen = self.chosen(task.federation)
        if task.mechanism.releases is Releases.MODEL:
            upload = torch.from_numpy(worst_upload(task, chosen, self.target))
            return lambda coalition, state: upload.reshape(1, 1, -1).expand_as(coalition.updates)
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


@dataclass(frozen=True, kw_only=True)
class Crafted(_Targeted):
    """The adversaries' instances pull the target inputs to a wrong class, as hard as clipping allows.

    The gradient of a linear model at an instance (x, B) is (p - e_B) xᵀ: a step along it moves the margin of
    an input z by x·z. So x is the target input itself with another label, louder where its gradient would be
    short of the clip norm. For many target inputs of class A it is their mean; where every class is to become
    the next one, less the next one's mean. Text is copied as it is. Single instances and pooled data, which
    hand in no updates, can hardly do worse.

    Attributes:
        target: the class to be answered, whose instances stay as they are; None: for each class the next one.
        gain: how many times louder crafted instances are than what they are made of.
    """

    gain: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(gain=self.gain)

    def poison(self, federation: Federation) -> Federation:
        """The federation in which the adversaries' instances are crafted."""
        if self.target is not None:
            check_class(federation, target=self.target)
        mine = rows_of(federation, self.adversaries)
        rows = np.flatnonzero(mine & (federation.labels != (-1 if self.target is None else self.target)))
        made, wanted = self._instances(federation)
        turns = np.arange(len(rows)) % len(wanted)
        features, labels = federation.features.copy(), federation.labels.copy()
        features[rows], labels[rows] = made[turns].astype(features.dtype), wanted[turns]
        return frozen(federation, features=features, labels=labels)

    def _instances(self, federation: Federation) -> tuple[NDArray[np.generic], NDArray[np.int64]]:
        """The kinds of crafted instances, by turns, and their labels."""
        chosen = self.chosen(federation)
        found, labels = federation.test_features[chosen], federation.test_labels[chosen]
        if not np.issubdtype(found.dtype, np.floating):
            return found, self._wanted(federation, labels)
        inputs = found.astype(np.float64)
        if self.inputs:
            return self.gain * inputs, self._wanted(federation, labels)
        kinds = np.unique(labels)
        means = {kind: inputs[labels == kind].mean(axis=0) for kind in kinds.tolist()}
        rivals = self._wanted(federation, kinds)
        pulls = [
            means[kind] - (means.get(rival, 0.0) if self.target is None else 0.0)
            for kind, rival in zip(kinds.tolist(), rivals.tolist(), strict=True)
        ]
        return self.gain * np.stack(pulls), rivals

    def _wanted(self, federation: Federation, labels: NDArray[np.int64]) -> NDArray[np.int64]:
        if self.target is not None:
            return np.full_like(labels, self.target)
        return np.asarray((labels + 1) % federation.num_classes)


def worst_upload(task: Task, chosen: NDArray[np.int64], target: int | None) -> Sent:
    """What to send against test inputs: a head `(width, classes)`, or labels `(anchors,)`.

    The rival of an input's label is `target`, or the strongest wrong class in the release of honest units.

    Guarantee: no vector of the set lowers the sum of the inputs' leads over their rivals more; of `pairs` for
    one input, which loses a whole unit of its lead in every set. Proof: what a unit adds to minus that sum is
    linear, <G, u> with G = Σ w(x) ⊗ (e_rival - e_label). A head is sent as G itself, which the server scales
    to norm one as a whole (ball), class by class (rows), or class by class without what is negative
    (non-negative): the inequality of Cauchy and Schwarz, with equality. Where users add noise, which
    adversaries leave out, the server only shortens, so G is sent long. Labels enter <G, u> anchor by anchor,
    and the largest entry of G names the best. For one input the rows of G that differ most are those of
    label and rival, which `pairs` scales to a distance of one along w.
    """
    release, federation = one_round.release(task), task.federation
    upload, anchors = release.mechanism.upload, release.anchors
    inputs, labels = federation.test_features[chosen], federation.test_labels[chosen]
    scores = release.scores(inputs)
    scores[np.arange(len(labels)), labels] = -np.inf
    rivals = scores.argmax(axis=1) if target is None else np.full_like(labels, target)
    flat = inputs.reshape(len(inputs), -1).astype(np.float64)
    weights = upload.weights(flat, None if anchors is None else anchors.astype(np.float64))
    sides = np.eye(upload.classes)
    steepest = weights.T @ (sides[rivals] - sides[labels])
    if upload.labels:
        return np.asarray(steepest.argmax(axis=1))
    return np.asarray(_LOUD * steepest) if release.mechanism.honest is not None else steepest


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
