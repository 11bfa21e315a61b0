"""Rules that look at every update by itself, applied to cohorts of any size."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from fedproof import check
from fedproof.aggregation.contributions import Contributions

Function = Callable[..., Tensor]
"""`function(updates, num_adversaries, **options)`: `(replicas, cohort, dim)` in, `(replicas, dim)` out.

The result is on the scale of one update. All replicas have cohorts of the same size.
"""

_ENTRIES = {"cpu": 1 << 24, "cuda": 1 << 27}  # numbers gathered at once


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule as the server applies it; its result times the cohort's size takes the place of the sum.

    Attributes:
        name: of the rule.
        num_adversaries: f, how many of a cohort the rule shall withstand.
        function: the rule for cohorts of equal size.
        least: smallest cohort for a given f.
        options: further arguments of `function`.
    """

    name: str
    num_adversaries: int
    function: Function = field(repr=False)
    least: Callable[[int], int] = field(repr=False)
    options: tuple[tuple[str, Any], ...] = ()

    def __post_init__(self) -> None:
        check.not_negative_count(num_adversaries=self.num_adversaries)

    @property
    def least_cohort(self) -> int:
        """Smallest cohort that the rule can work with."""
        return self.least(self.num_adversaries)

    def __call__(self, contributions: Contributions) -> Tensor:
        """The aggregate `(replicas, dim)` on the scale of a sum over the cohort; 0 for an empty cohort."""
        present = contributions.present
        total = contributions.updates.new_zeros((len(present), contributions.updates.shape[2]))
        sizes = present.sum(1)
        most = _ENTRIES.get(total.device.type, _ENTRIES["cpu"])
        # Replicas with cohorts of one size form one tensor without gaps: rules need no masks.
        for size in sorted(set(sizes.tolist())):
            if size == 0:
                continue
            check_size(self.name, size, self.num_adversaries, self.least_cohort)
            replicas = (sizes == size).nonzero().squeeze(1)
            for chunk in torch.split(replicas, max(1, most // (size * total.shape[1]))):
                updates = bounded_updates(contributions, chunk, size)
                total[chunk] = size * self.function(updates, self.num_adversaries, **dict(self.options))
        return total


def majority(num_adversaries: int) -> int:
    """Smallest cohort in which the adversaries are a minority: n > 2f."""
    return 2 * num_adversaries + 1


def check_size(name: str, size: int, num_adversaries: int, least: int) -> None:
    """Raise ValueError unless a cohort of `size` is large enough."""
    if size < least:
        raise ValueError(
            f"{name} against num_adversaries = {num_adversaries} needs cohorts of at least {least} users, "
            f"one has {size}; draw larger cohorts of fixed size, or withstand fewer adversaries"
        )


def bounded_updates(contributions: Contributions, replicas: Tensor, size: int) -> Tensor:
    """Clipped updates `(len(replicas), size, dim)` of the members of cohorts that all have `size` members."""
    slots = contributions.present[replicas].nonzero()[:, 1].view(-1, size)
    rows = torch.zeros_like(replicas) if len(contributions.updates) == 1 else replicas
    updates = contributions.updates[rows.unsqueeze(1), slots]
    scales = contributions.scales[replicas.unsqueeze(1), slots]
    if scales.shape[2] == 1:
        return updates * scales
    sizes = torch.tensor(contributions.layer_sizes, device=updates.device)
    return updates * scales.repeat_interleave(sizes, dim=2)
