"""Rounds of training: clip, noise, aggregate, stacked over replicas."""

from torch import Tensor

from fedproof.mechanisms import CohortOnce, FedAvg, InstanceFedAvg, InstanceFedSGD, Partition, UserFedAvg
from fedproof.models.precision import all_digits
from fedproof.rounds import cohort_once, fedavg, instance_fedavg, instance_fedsgd, user_fedavg
from fedproof.rounds.state import RoundReport, Setting, State, Streams, Tampering

__all__ = ["RoundReport", "Setting", "State", "Streams", "Tampering", "Trainable", "play"]

Trainable = UserFedAvg | InstanceFedSGD | InstanceFedAvg | CohortOnce | Partition | FedAvg
"""Mechanisms that this package executes."""


@all_digits()
def play(
    mechanism: Trainable, setting: Setting, state: State, streams: Streams, shared: Tensor | None = None
) -> tuple[State, RoundReport]:
    """The state of a block of replicas after one round of any mechanism, and what happened."""
    match mechanism:
        case UserFedAvg():
            return user_fedavg.play(mechanism, setting, state, streams, shared)
        case CohortOnce() | Partition():
            return cohort_once.play(mechanism, setting, state, streams, shared)
        case FedAvg():
            return fedavg.play(mechanism, setting, state, streams, shared)
        case InstanceFedSGD():
            return instance_fedsgd.play(mechanism, setting, state, streams)
        case InstanceFedAvg():
            return instance_fedavg.play(mechanism, setting, state, streams)
