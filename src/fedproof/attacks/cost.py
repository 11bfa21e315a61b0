"""The attacker's cost: the loss of a model on the attack's own test set."""

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Goal
from fedproof.ensemble.memory import sizes_for
from fedproof.ensemble.task import Task
from fedproof.ensemble.train import predict
from fedproof.rounds.users import as_inputs

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


def costs(losses: NDArray[np.float64], cost_bound: float) -> NDArray[np.float64]:
    """The bounded cost `(replicas,)`: the loss, clipped to [0, C̄] before anything is averaged.

    >>> costs(np.array([0.2, 3.0]), 0.5).tolist()
    [0.2, 0.5]
    """
    check.positive(cost_bound=cost_bound)
    return np.clip(losses, 0.0, cost_bound)
