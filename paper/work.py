"""What every measurement of a training uses: its ensemble, the accuracy and the privacy of its replicas."""

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting import account, ensemble_account
from fedproof.arrays import ensemble_accuracy, replica_accuracies
from fedproof.attacks import Goal
from fedproof.config import Config
from fedproof.ensemble import Task
from fedproof.experiment import SharedWork
from fedproof.mechanisms import Flat, UserFedAvg, is_private
from fedproof.robustness.outcome import AttackOutcome, train
from paper.results import Clean
from paper.study import Panel


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a measurement may use.

    Attributes:
        panel: what is asked for.
        config: the experiment.
        task: its training.
        shared: data and first updates that neighbouring points have in common.
    """

    panel: Panel
    config: Config
    task: Task
    shared: SharedWork


def clean_outcome(work: Work, *goals: Goal) -> AttackOutcome:
    """The ensemble without attack, and its losses for the goals."""
    first = work.shared.first_updates(work.config, work.task)
    return train(work.task, work.config.ensemble.replicas, goals, first=first)


def trained(work: Work, scores: NDArray[np.float32]) -> Clean:
    """Accuracy and privacy of the replicas, nothing certified yet."""
    labels = work.task.federation.test_labels
    single = replica_accuracies(scores, labels)
    return Clean(
        accuracy=round(float(single.mean()), 5),
        accuracy_std=round(float(single.std()), 5),
        ensemble_accuracy=round(ensemble_accuracy(scores, labels), 5),
        **privacy(work),
    )


def privacy(work: Work) -> dict[str, Any]:
    """What `Trained` says of privacy; nothing where there is none."""
    mechanism, delta = work.task.mechanism, work.config.mechanism.delta
    if not is_private(mechanism):
        return {}
    together = ensemble_account(mechanism, delta, work.config.ensemble.replicas)
    return one_model(work) | {"ensemble_epsilon": {name: round(value, 4) for name, value in together.items()}}


def one_model(work: Work) -> dict[str, Any]:
    """ε and δ of one model, or of the one release; nothing where there are none."""
    mechanism, delta = work.task.mechanism, work.config.mechanism.delta
    if not is_private(mechanism):
        return {}
    found = account(mechanism, delta).items()
    return {"epsilon": {name: round(value, 6) for name, value in found}, "delta": delta}


def paper_epsilon_of(work: Work, printed: bool = False) -> float:
    """ε by the paper's accounting; the one it prints counts every clipping as if it were flat."""
    mechanism = work.task.mechanism
    if printed and isinstance(mechanism, UserFedAvg):
        mechanism = replace(mechanism, clipping=Flat())
    return account(mechanism, work.config.mechanism.delta, ["paper"])["paper"]
