"""What the members of a round hand in, and rules that turn it into one update, for all replicas at once."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from fedproof import check


@dataclass(frozen=True, kw_only=True)
class Contributions:
    """The updates of a round, with the factor that bounds each of them.

    In round one all replicas start from the same model: `updates` and `members` then have a first axis of
    length one, shared by all replicas, and `present` tells the replicas' cohorts apart.

    Attributes:
        updates: `(replicas or 1, members, dim)`, finite.
        present: `(replicas, members)`, who takes part.
        scales: `(replicas, members, layers)`, or `(replicas, members, 1)` for the whole update: the factor
            that clipping applies; 0 where a member is absent.
        members: `(replicas or 1, members)`, the user behind each update; -1 where there is none.
        layer_sizes: number of entries of each layer.
    """

    updates: Tensor
    present: Tensor
    scales: Tensor
    members: Tensor
    layer_sizes: tuple[int, ...]

    def bounded(self) -> Tensor:
        """The clipped updates `(replicas, members, dim)`, 0 where a member is absent."""
        return self.updates * self._entrywise(self.scales)

    def bounded_of(self, replicas: Tensor, size: int) -> Tensor:
        """Clipped updates `(len(replicas), size, dim)` of the cohorts of `replicas`, each of `size`."""
        slots = self.present[replicas].nonzero()[:, 1].view(-1, size)
        rows = torch.zeros_like(replicas) if len(self.updates) == 1 else replicas
        scales = self.scales[replicas.unsqueeze(1), slots]
        return self.updates[rows.unsqueeze(1), slots] * self._entrywise(scales)

    def _entrywise(self, scales: Tensor) -> Tensor:
        """Scales that can be multiplied with updates, entry by entry."""
        if scales.shape[2] == 1:
            return scales
        sizes = torch.tensor(self.layer_sizes, device=scales.device)
        return scales.repeat_interleave(sizes, dim=2)


Aggregation = Callable[[Contributions], Tensor]
"""A rule: contributions of all replicas in, `(replicas, dim)` out, on the scale of a sum over the cohort."""


def mean(contributions: Contributions) -> Tensor:
    """Sum `(replicas, dim)` of the bounded updates, which the server divides by the expected cohort.

    Guarantee: a replica's sum is taken over its own members, one after the other: it is the same bit for bit
    whoever else the others have drawn.
    """
    updates, present = contributions.updates, contributions.present
    replica, slot = present.nonzero(as_tuple=True)
    rows = slot if len(updates) == 1 else replica * updates.shape[1] + slot
    counts = present.sum(1)
    begin = counts.cumsum(0) - counts
    scales = contributions.scales[replica, slot]
    sizes = contributions.layer_sizes if scales.shape[1] > 1 else (updates.shape[2],)
    parts = torch.split(updates.flatten(0, 1), list(sizes), dim=1)
    # A bag is a weighted sum of rows of a table: clipped copies of the updates are never made.
    return torch.cat(
        [
            F.embedding_bag(rows, part.contiguous(), begin, mode="sum", per_sample_weights=scale.contiguous())
            for part, scale in zip(parts, scales.unbind(1), strict=True)
        ],
        dim=1,
    )


# --- rules that look at every update by itself --------------------------------------------------------------

Function = Callable[..., Tensor]
"""`function(updates, num_adversaries, **options)`: `(replicas, cohort, dim)` in, `(replicas, dim)` out.

The result is on the scale of one update. All replicas have cohorts of the same size. Rules of this package
add up by `folded`: a replica's result is the same bit for bit whatever is stacked beside it.
"""

_ENTRIES = {"cpu": 1 << 24, "cuda": 1 << 27}  # numbers gathered at once


@dataclass(frozen=True, kw_only=True)
class Rule:
    """A rule as the server applies it; its result times the cohort's size takes the place of the sum.

    Of a cohort it shall withstand f = `num_adversaries`; the smallest cohort for an f is `least(f)`.
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
                updates = contributions.bounded_of(chunk, size)
                total[chunk] = size * self.function(updates, self.num_adversaries, **dict(self.options))
        return total


def alone(aggregation: Aggregation) -> Aggregation:
    """A rule of the user's own as it is asked: about one replica at a time, and shown its members alone.

    Guarantee: what it makes of a replica does not depend on other replicas, nor on who was not drawn, however
    it was written: a quantile or a maximum over all that it is handed is then one over the cohort. Rules of
    this package keep replicas apart themselves.
    """
    function = aggregation.function if isinstance(aggregation, Rule) else aggregation
    own = str(getattr(function, "__module__", "")).partition(".")[0] != "fedproof"
    return partial(_one_by_one, aggregation) if own else aggregation


def _one_by_one(aggregation: Aggregation, contributions: Contributions) -> Tensor:
    updates, present = contributions.updates, contributions.present
    found = updates.new_zeros((len(present), updates.shape[2]))
    for replica in present.any(1).nonzero().squeeze(1).tolist():
        there, row = present[replica], replica if len(updates) > 1 else 0
        found[replica] = aggregation(
            replace(
                contributions,
                updates=updates[row, there].unsqueeze(0),
                present=there[there].unsqueeze(0),
                scales=contributions.scales[replica, there].unsqueeze(0),
                members=contributions.members[row, there].unsqueeze(0),
            )
        ).squeeze(0)
    return found


def rule_of(aggregation: Aggregation) -> tuple[str, int]:
    """What a mechanism calls a rule, and how many of a cohort it is to withstand.

    >>> rule_of(mean)
    ('mean', 0)
    """
    if isinstance(aggregation, Rule):
        return aggregation.name, aggregation.num_adversaries
    return ("mean" if aggregation is mean else "another rule"), 0


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
