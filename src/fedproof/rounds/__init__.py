"""How rounds of training are executed: clip, noise, aggregate, stacked over replicas."""

from importlib import import_module

from torch import Tensor

from fedproof.mechanisms import Mechanism
from fedproof.models.precision import all_digits
from fedproof.rounds.state import Play, RoundReport, Setting, State, Streams, Tampering

__all__ = ["RoundReport", "Setting", "State", "Streams", "Tampering", "play"]


@all_digits()
def play(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams, shared: Tensor | None = None
) -> tuple[State, RoundReport]:
    """The state of a block of replicas after one round of any mechanism, and what happened.

    `shared` are updates `(users, dim)` if all replicas start this round from the same model, else None.
    """
    assert mechanism.executor is not None  # a task refuses what is only described
    played: Play = import_module(mechanism.executor).play
    return played(mechanism, setting, state, streams, shared)
