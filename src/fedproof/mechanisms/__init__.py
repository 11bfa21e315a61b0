"""Training protocols as frozen values: what is executed, and therefore what is accounted.

A mechanism here is a description, free of torch. `fedproof.accounting` reads its `queries`,
`fedproof.rounds` executes the same value, so training and accounting cannot disagree.
"""

from fedproof.mechanisms.clipping import (
    Clipping,
    Flat,
    Median,
    PerLayer,
    PerLayerMedian,
    Quantile,
)
from fedproof.mechanisms.local import LocalTraining
from fedproof.mechanisms.mechanisms import (
    CohortOnce,
    FedAvg,
    InstanceFedAvg,
    InstanceFedSGD,
    Mechanism,
    Partition,
    PrivateMechanism,
    Queries,
    UserFedAvg,
)
from fedproof.mechanisms.query import Query
from fedproof.mechanisms.sampling import (
    Everyone,
    FixedSize,
    Poisson,
    Sampling,
    expected_cohort,
)

__all__ = [
    "Clipping",
    "CohortOnce",
    "Everyone",
    "FedAvg",
    "FixedSize",
    "Flat",
    "InstanceFedAvg",
    "InstanceFedSGD",
    "LocalTraining",
    "Mechanism",
    "Median",
    "Partition",
    "PerLayer",
    "PerLayerMedian",
    "Poisson",
    "PrivateMechanism",
    "Quantile",
    "Queries",
    "Query",
    "Sampling",
    "UserFedAvg",
    "expected_cohort",
]
