"""Training protocols as frozen values: what is executed, and therefore what is accounted.

A mechanism here is a description, free of torch. `fedproof.accounting` reads its `queries`,
`fedproof.mechanisms` executes the same value, so training and accounting cannot disagree.
"""

from fedproof.protocol.clipping import (
    Clipping,
    Flat,
    Median,
    PerLayer,
    PerLayerMedian,
    Quantile,
)
from fedproof.protocol.local import LocalTraining
from fedproof.protocol.mechanisms import (
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
from fedproof.protocol.query import Query
from fedproof.protocol.sampling import (
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
