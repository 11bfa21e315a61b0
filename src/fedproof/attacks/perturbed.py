"""What Min-Max and Min-Sum share: the adversaries all hand in the mean, perturbed as far as they dare."""

from abc import abstractmethod
from dataclasses import dataclass

from torch import Tensor

from fedproof.attacks.attack import Attack, Craft
from fedproof.attacks.coalition import Coalition
from fedproof.attacks.perturbation import Direction, Spread, handed_in, spread_of
from fedproof.ensemble.task import Task
from fedproof.rounds.state import State


@dataclass(frozen=True, kw_only=True)
class Perturbed(Attack):
    """All adversaries hand in mean + γp.

    Agnostic setting: the honest updates are those the adversaries would have handed in themselves. A single
    adversary has nothing to hide behind and hands in its own.

    Attributes:
        direction: of the perturbation p.
    """

    direction: Direction = Direction.STD

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "direction", as_direction(self.direction))

    @abstractmethod
    def gamma(self, spread: Spread) -> Tensor:
        """How far the adversaries go, `(replicas,)`."""

    def crafter(self, task: Task) -> Craft:
        """Replaces the adversaries' updates by the perturbed mean."""

        def craft(coalition: Coalition, state: State) -> Tensor:
            spread = spread_of(coalition, self.direction)
            return handed_in(coalition, spread, self.gamma(spread))

        return craft


def as_direction(value: str) -> Direction:
    """`value` as a direction.

    >>> as_direction("inverse-sign")
    <Direction.SIGN: 'inverse-sign'>
    """
    if value not in list(Direction):
        raise ValueError(f"direction = {value!r} must be one of {', '.join(Direction)}")
    return Direction(value)
