"""How rounds of training are executed: clip, noise, aggregate, stacked over replicas."""

from importlib import import_module

from fedproof.mechanisms import Mechanism
from fedproof.rounds.state import Play, RoundReport, Setting, State, Streams, Tampering

__all__ = ["RoundReport", "Setting", "State", "Streams", "Tampering", "executor_of"]


def executor_of(mechanism: Mechanism) -> Play:
    """The function that executes a round of the mechanism."""
    assert mechanism.executor is not None  # a task refuses what is only described
    play: Play = import_module(mechanism.executor).play
    return play
