"""fedproof: train federated models with differential privacy, prove how much poisoning they tolerate.

Names are imported when they are first used, so that `import fedproof` is quick and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dp_accounting import UnsupportedEventError

    from fedproof.accounting.epsilon import account, account_delta, ensemble_account, user_accounts
    from fedproof.accounting.events import event_of
    from fedproof.accounting.ledger import Ledger
    from fedproof.accounting.tradeoff import Tradeoff, tradeoff
    from fedproof.certificates.api import certify, certify_means, certify_sequentially
    from fedproof.certificates.certificate import Certificate
    from fedproof.certificates.document import verify
    from fedproof.certificates.inefficacy import Inefficacy, inefficacy
    from fedproof.certificates.planning import (
        cohort_for_size,
        noise_for_epsilon,
        noise_for_size,
        rounds_for_size,
    )
    from fedproof.certificates.privacy import ApproximateDP
    from fedproof.encoders.load import load
    from fedproof.ensemble import Task
    from fedproof.experiment import run
    from fedproof.federation import Federation
    from fedproof.mechanisms import (
        Bagging,
        CohortOnce,
        Everyone,
        FedAvg,
        FixedSize,
        Flat,
        InstanceFedAvg,
        InstanceFedSGD,
        Local,
        LocalTraining,
        Median,
        NoisyPartition,
        OneRound,
        Partition,
        PerLayer,
        PerLayerMedian,
        Poisson,
        Quantile,
        Smoothed,
        UserFedAvg,
    )
    from fedproof.mechanisms.uploads import Anchors, Ball, NonNegative, Pairs, Rows
    from fedproof.threat import Relation, ThreatModel, Unit
    from fedproof.training import Trained, train

__version__ = "0.1.0"

_HOME = {
    "dp_accounting": ("UnsupportedEventError",),
    "fedproof.accounting.epsilon": ("account", "account_delta", "ensemble_account", "user_accounts"),
    "fedproof.accounting.events": ("event_of",),
    "fedproof.accounting.ledger": ("Ledger",),
    "fedproof.accounting.tradeoff": ("Tradeoff", "tradeoff"),
    "fedproof.certificates.api": ("certify", "certify_means", "certify_sequentially"),
    "fedproof.certificates.certificate": ("Certificate",),
    "fedproof.certificates.document": ("verify",),
    "fedproof.certificates.inefficacy": ("Inefficacy", "inefficacy"),
    "fedproof.certificates.planning": (
        "cohort_for_size", "noise_for_epsilon", "noise_for_size", "rounds_for_size",
    ),
    "fedproof.certificates.privacy": ("ApproximateDP",),
    "fedproof.encoders.load": ("load",),
    "fedproof.ensemble": ("Task",),
    "fedproof.experiment": ("run",),
    "fedproof.federation": ("Federation",),
    "fedproof.mechanisms": (
        "Bagging", "CohortOnce", "Everyone", "FedAvg", "FixedSize", "Flat", "InstanceFedAvg",
        "InstanceFedSGD", "Local", "LocalTraining", "Median", "NoisyPartition", "OneRound", "Partition",
        "PerLayer", "PerLayerMedian", "Poisson", "Quantile", "Smoothed", "UserFedAvg",
    ),
    "fedproof.mechanisms.uploads": ("Anchors", "Ball", "NonNegative", "Pairs", "Rows"),
    "fedproof.threat": ("Relation", "ThreatModel", "Unit"),
    "fedproof.training": ("Trained", "train"),
}  # fmt: skip
_MODULE_OF = {name: module for module, names in _HOME.items() for name in names}

__all__ = [  # noqa: RUF022 - in the order of the guide, not of the alphabet
    "ThreatModel", "Unit", "Relation",
    "Poisson", "FixedSize", "Everyone",
    "Flat", "PerLayer", "Median", "PerLayerMedian", "Quantile",
    "UserFedAvg", "InstanceFedSGD", "InstanceFedAvg", "CohortOnce", "Bagging", "Partition", "NoisyPartition",
    "OneRound", "Anchors", "Rows", "Pairs", "Ball", "NonNegative", "Local", "Smoothed", "FedAvg",
    "LocalTraining", "Federation",
    "load", "Task", "train", "Trained", "run",
    "account", "account_delta", "ensemble_account", "user_accounts", "event_of", "Ledger",
    "tradeoff", "Tradeoff",
    "certify", "certify_means", "certify_sequentially", "inefficacy", "verify",
    "Certificate", "Inefficacy", "ApproximateDP",
    "noise_for_size", "rounds_for_size", "cohort_for_size", "noise_for_epsilon",
    "UnsupportedEventError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module 'fedproof' has no attribute {name!r}")
    try:
        return getattr(import_module(_MODULE_OF[name]), name)
    except ModuleNotFoundError as error:
        if error.name in ("torch", "safetensors"):
            raise ImportError(
                f"fedproof.{name} needs {error.name}: install it with pip install 'fedproof[train]'"
            ) from error
        raise


def __dir__() -> list[str]:
    return sorted([*__all__, "__version__"])
