"""User-level DP-FedAvg for Flower 1.41 (Message API), executed exactly as it is accounted and certified."""

from fedproof.integrations import require_flower

require_flower()

from fedproof.integrations.flower.arrays import stacked_arrays  # noqa: E402 - the version is checked first
from fedproof.integrations.flower.nodes import (  # noqa: E402
    Fault,
    answer_partition,
    ask_partitions,
    replicas_mod,
    wait_for_nodes,
)
from fedproof.integrations.flower.recognise import Recognised, mechanism_of  # noqa: E402
from fedproof.integrations.flower.strategy import UserFedAvgStrategy  # noqa: E402

__all__ = [
    "Fault",
    "Recognised",
    "UserFedAvgStrategy",
    "answer_partition",
    "ask_partitions",
    "mechanism_of",
    "replicas_mod",
    "stacked_arrays",
    "wait_for_nodes",
]
