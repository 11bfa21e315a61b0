"""Many replicas at once, in parts that survive a crash."""

from fedproof.ensemble.engines import Ensemble, train_ensemble
from fedproof.ensemble.memory import Sizes, sizes_for
from fedproof.ensemble.task import Task, fingerprint, shares_first_round
from fedproof.ensemble.train import (
    Replicas,
    drawn_updates,
    ensemble_accuracy,
    first_updates,
    predict,
    released,
    replica_accuracies,
    train_replicas,
)

__all__ = [
    "Ensemble",
    "Replicas",
    "Sizes",
    "Task",
    "drawn_updates",
    "ensemble_accuracy",
    "fingerprint",
    "first_updates",
    "predict",
    "released",
    "replica_accuracies",
    "shares_first_round",
    "sizes_for",
    "train_ensemble",
    "train_replicas",
]
