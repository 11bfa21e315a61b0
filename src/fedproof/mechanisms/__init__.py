"""What is executed: frozen descriptions, torch-free; each answers for itself (`contract`)."""

from fedproof.mechanisms.clipping import Clipping, Flat, Median, PerLayer, PerLayerMedian, Quantile
from fedproof.mechanisms.cohort_once import Bagging, CohortOnce
from fedproof.mechanisms.contract import Mechanism, Query, Releases, is_certified, is_private
from fedproof.mechanisms.instance import InstanceFedAvg, InstanceFedSGD
from fedproof.mechanisms.local import Local
from fedproof.mechanisms.local_training import LocalTraining
from fedproof.mechanisms.one_round import OneRound, Smoothed, UploadedOnce
from fedproof.mechanisms.partition import NoisyPartition, Partition
from fedproof.mechanisms.queries import Queries
from fedproof.mechanisms.sampling import (
    AnySampling,
    Everyone,
    FixedSize,
    Groups,
    Poisson,
    Sampling,
    SamplingKind,
)
from fedproof.mechanisms.user_fedavg import FedAvg, UserFedAvg

__all__ = [
    "AnySampling", "Bagging", "Clipping", "CohortOnce", "Everyone", "FedAvg", "FixedSize",
    "Flat", "Groups", "InstanceFedAvg", "InstanceFedSGD", "Local", "LocalTraining", "Mechanism", "Median",
    "NoisyPartition", "OneRound", "Partition", "PerLayer", "PerLayerMedian", "Poisson", "Quantile",
    "Queries", "Query", "Releases", "Sampling", "SamplingKind", "Smoothed", "UploadedOnce", "UserFedAvg",
    "is_certified", "is_private",
]  # fmt: skip
