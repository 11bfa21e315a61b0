"""Model replacement: what an attack would hand in, times a factor."""

from dataclasses import dataclass

from torch import Tensor

from fedproof import check
from fedproof.attacks.attack import Coalition, Craft, Wrapped, check_numbers
from fedproof.ensemble.task import Task
from fedproof.rounds.state import State


@dataclass(frozen=True, kw_only=True)
class ModelReplacement(Wrapped):
    """Adversaries multiply what `base` makes them hand in by γ, the `scale`, to outweigh everybody else.

    Reference: Bagdasaryan, Veit, Hua, Estrin, Shmatikov 2020, arXiv:1807.00459v3, section 4.2; Bhagoji,
    Chakraborty, Mittal, Calo 2019, arXiv:1811.12470v4.
    """

    scale: float = 50.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(scale=self.scale)

    def crafter(self, task: Task) -> Craft:
        """Scales what `base` would hand in."""
        check_numbers(task, self)
        before = self.base.crafter(task)

        def craft(coalition: Coalition, state: State) -> Tensor:
            updates = coalition.updates if before is None else before(coalition, state)
            return updates * self.scale

        return craft
