"""Many replicas at once, in parts that survive a crash."""

from fedproof.ensemble.engines import Ensemble, train_ensemble
from fedproof.ensemble.fingerprints import fingerprint
from fedproof.ensemble.memory import Sizes, sizes_for
from fedproof.ensemble.task import Task, shares_first_round
from fedproof.ensemble.train import (
    Replicas,
    drawn_users,
    first_updates,
    predict,
    released,
    table_of,
    train_replicas,
)

__all__ = [
    "Ensemble",
    "Replicas",
    "Sizes",
    "Task",
    "drawn_users",
    "fingerprint",
    "first_updates",
    "predict",
    "released",
    "shares_first_round",
    "sizes_for",
    "table_of",
    "train_ensemble",
    "train_replicas",
]
