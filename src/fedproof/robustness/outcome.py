"""Training of clean and attacked ensembles: their scores, and what they cost the attacker."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.arrays import Floats, votes_of
from fedproof.attacks import Attack, Goal
from fedproof.ensemble import (
    Task,
    first_updates,
    one_round,
    predict,
    shares_first_round,
    sizes_for,
    train_replicas,
)
from fedproof.ensemble.memory import part_size_for
from fedproof.mechanisms import Releases
from fedproof.models.model import as_inputs
from fedproof.progress import Tally
from fedproof.robustness.poisoned import attacked_first_updates, under_attack


@dataclass(frozen=True, kw_only=True)
class AttackOutcome:
    """What is kept of an ensemble, clean or attacked, once it is trained.

    Attributes:
        scores: `(replicas, inputs, classes)` on the test inputs; of a single release counted in units.
        losses: `(replicas,)` for each goal, the attacker's loss.
        answers: `(2, inputs, classes)` for each goal: what the replicas say to its inputs, added up, in
            confidences and in votes.
        missed: `(replicas,)` for each goal: share of its inputs not answered as it wants, a cost in [0, 1].
    """

    scores: NDArray[np.floating]
    losses: tuple[NDArray[np.float64], ...]
    answers: tuple[NDArray[np.float64], ...] = ()
    missed: tuple[NDArray[np.float64], ...] = ()


def train(
    task: Task,
    num_replicas: int,
    goals: Sequence[Goal],
    *,
    first: Tensor | None = None,
    progress: Tally = lambda done, total: None,
) -> AttackOutcome:
    """Scores and losses of replicas `0 … num_replicas - 1`, trained in parts whose models are not kept.

    Args:
        task: clean, or from `under_attack`.
        num_replicas: how many.
        goals: what the losses are for.
        first: round-one updates, see `first_updates` and `attacked_first_updates`.
        progress: told after every part.
    """
    if task.mechanism.releases is Releases.MODEL:
        return _released(task, goals)
    scores: list[NDArray[np.float32]] = []
    found: list[list[NDArray[np.float64]]] = [[] for _ in goals]
    missed: list[list[NDArray[np.float64]]] = [[] for _ in goals]
    answers = [np.zeros((2, 1, 1))] * len(goals)
    step = part_size_for(task)
    for begin in range(0, num_replicas, step):
        part = train_replicas(task, range(begin, min(begin + step, num_replicas)), first_updates=first)
        scores.append(part.scores)
        for place, goal in enumerate(goals):
            said = scores_on(task, part.models, goal.inputs)
            found[place].append(losses(said, goal))
            missed[place].append(answer_costs(said, goal).mean(axis=1))
            answers[place] = answers[place] + np.stack(
                [said.sum(axis=0, dtype=np.float64), votes_of(said).sum(axis=0)]
            )
        progress(min(begin + step, num_replicas), num_replicas)
    return AttackOutcome(
        scores=np.concatenate(scores),
        losses=tuple(np.concatenate(parts) for parts in found),
        answers=tuple(answers),
        missed=tuple(np.concatenate(parts) for parts in missed),
    )


def run_attack(
    task: Task,
    attack: Attack,
    num_replicas: int,
    *,
    clean_first: Tensor | None = None,
    progress: Tally = lambda done, total: None,
) -> AttackOutcome:
    """The ensemble of the clean `task` under `attack`, and its losses for the attack's goal.

    Honest users' first updates are taken from `clean_first`, the result of `first_updates(task)`.
    """
    attacked, first = under_attack(task, attack), None
    # Where users have left, rows of the clean updates are no longer those of the same users.
    if shares_first_round(task) and attacked.federation.num_users >= task.federation.num_users:
        clean_first = first_updates(task) if clean_first is None else clean_first
        first = attacked_first_updates(attacked, attack.adversaries, clean_first)
    goal = attack.goal(task.federation)
    num_replicas = attacked.mechanism.models(attacked.units.num_users) or num_replicas
    return train(attacked, num_replicas, [goal], first=first, progress=progress)


def _released(task: Task, goals: Sequence[Goal]) -> AttackOutcome:
    """What the one model of a single release answers; its noise follows from the seed, clean or attacked."""
    if task.secure_noise:
        raise ValueError(
            f"ensemble.secure_noise = true must be false to attack kind = '{task.mechanism.kind}': its "
            "certificate is about the same noise with and without the attack"
        )
    found = one_round.release(task)
    said = [found.scores(goal.inputs) for goal in goals]
    missed = tuple(answer_costs(one, goal).mean(keepdims=True) for one, goal in zip(said, goals, strict=True))
    return AttackOutcome(
        scores=found.scores(task.federation.test_features)[None],
        losses=missed,
        answers=tuple(np.stack([one, votes_of(one[None])[0]]) for one in said),
        missed=missed,
    )


# --- the attacker's cost: the loss of a model on the attack's own test set ----------------------------------

_LEAST = 1e-300  # a score of zero costs much, not infinity


def scores_on(task: Task, models: Mapping[str, Tensor], inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    """Scores `(replicas, inputs, classes)` of trained models, named parameters `(replicas, ...)`."""
    device = torch.device(task.device)
    params = torch.cat([models[name].flatten(1) for name in task.model.layout.names], dim=1)
    return predict(
        task.model.to(device, task.dtype),
        params.to(device, task.dtype),
        as_inputs(inputs, device, task.dtype),
        cells=sizes_for(task).cells,
    )


def losses(scores: NDArray[np.floating], goal: Goal) -> NDArray[np.float64]:
    """The attacker's loss `(replicas,)` from scores (replicas, inputs, classes) on the goal's inputs.

    The mean over the inputs of -log f_y*, y* being the wanted class; where every wrong class will do, of
    -log(1 - f_y), y being the right one.

    Reference: the paper, Examples 1 and 2.

    >>> goal = Goal(inputs=np.zeros((1, 2)), labels=np.array([0]))
    >>> losses(np.array([[[0.5, 0.5]], [[1.0, 0.0]]]), goal).round(4).tolist()
    [0.6931, -0.0]
    """
    chosen = np.take_along_axis(scores, goal.labels[None, :, None], axis=2)[:, :, 0].astype(np.float64)
    if not goal.wanted:
        chosen = scores.astype(np.float64).sum(axis=2) - chosen
    return np.asarray(-np.log(np.clip(chosen, _LEAST, 1.0)).mean(axis=1))


def answer_costs(scores: NDArray[np.floating], goal: Goal) -> Floats:
    """The cost `(..., inputs)` of models' answers: 0 where they are what the attacker wants, else 1.

    >>> answer_costs(np.array([[5.0, 7.5]]), Goal(inputs=np.zeros((1, 2)), labels=np.array([0]))).tolist()
    [1.0]
    """
    return np.asarray((scores.argmax(axis=-1) == goal.labels) != goal.wanted, dtype=np.float64)


def success_rate(answers: NDArray[np.float64], goal: Goal) -> float:
    """Share of the goal's inputs that get the answer the attacker wants, from `answers` (inputs, classes).

    >>> goal = Goal(inputs=np.zeros((2, 3)), labels=np.array([1, 1]))
    >>> success_rate(np.array([[0.2, 0.8], [0.9, 0.1]]), goal)
    0.5
    """
    return float(np.mean((answers.argmax(axis=1) == goal.labels) == goal.wanted))


def costs(losses: NDArray[np.float64], cost_bound: float) -> NDArray[np.float64]:
    """The bounded cost `(replicas,)`: the loss, clipped to [0, C̄] before anything is averaged.

    >>> costs(np.array([0.2, 3.0]), 0.5).tolist()
    [0.2, 0.5]
    """
    check.positive(cost_bound=cost_bound)
    return np.clip(losses, 0.0, cost_bound)
