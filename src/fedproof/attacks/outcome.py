"""Training of clean and attacked ensembles, and what is kept of them."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedproof.attacks.attack import Attack, Goal
from fedproof.attacks.cost import losses, scores_on
from fedproof.attacks.poisoned_task import attacked_first_updates, under_attack
from fedproof.ensemble import Task, first_updates, shares_first_round, train_replicas
from fedproof.ensemble.memory import part_size_for
from fedproof.progress import Tally


def silent(done: int, total: int) -> None:
    """Tells nobody."""


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What is kept of a trained ensemble.

    Attributes:
        scores: `(replicas, inputs, classes)` on the test inputs.
        losses: `(replicas,)` for each goal, the attacker's loss.
    """

    scores: NDArray[np.float32]
    losses: tuple[NDArray[np.float64], ...]


def train(
    task: Task,
    num_replicas: int,
    goals: Sequence[Goal],
    *,
    first: Tensor | None = None,
    progress: Tally = silent,
) -> Outcome:
    """Scores and losses of replicas `0 … num_replicas - 1`, trained in parts whose models are not kept.

    Args:
        task: clean, or from `under_attack`.
        num_replicas: how many.
        goals: what the losses are for.
        first: round-one updates, see `first_updates` and `attacked_first_updates`.
        progress: told after every part.
    """
    scores: list[NDArray[np.float32]] = []
    found: list[list[NDArray[np.float64]]] = [[] for _ in goals]
    step = part_size_for(task)
    for begin in range(0, num_replicas, step):
        part = train_replicas(task, range(begin, min(begin + step, num_replicas)), first_updates=first)
        scores.append(part.scores)
        for goal, kept in zip(goals, found, strict=True):
            kept.append(losses(scores_on(task, part.models, goal.inputs), goal))
        progress(min(begin + step, num_replicas), num_replicas)
    return Outcome(scores=np.concatenate(scores), losses=tuple(np.concatenate(parts) for parts in found))


def run_attack(
    task: Task,
    attack: Attack,
    num_replicas: int,
    *,
    clean_first: Tensor | None = None,
    progress: Tally = silent,
) -> Outcome:
    """The ensemble of the clean `task` under `attack`, and its losses for the attack's goal.

    Honest users' first updates are taken from `clean_first`, the result of `first_updates(task)`.
    """
    attacked, first = under_attack(task, attack), None
    # Where users have left, rows of the clean updates are no longer those of the same users.
    if shares_first_round(task) and attacked.federation.num_users >= task.federation.num_users:
        clean_first = first_updates(task) if clean_first is None else clean_first
        first = attacked_first_updates(attacked, attack.adversaries, clean_first)
    goal = attack.goal(task.federation)
    return train(attacked, num_replicas, [goal], first=first, progress=progress)
