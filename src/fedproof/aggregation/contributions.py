"""What the members of a round's cohorts hand in, for all replicas at once."""

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


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
        if self.scales.shape[2] == 1:
            return self.updates * self.scales
        parts = torch.split(self.updates, list(self.layer_sizes), dim=2)
        scales = self.scales.unbind(2)
        return torch.cat(
            [part * scale.unsqueeze(2) for part, scale in zip(parts, scales, strict=True)], dim=2
        )


Aggregation = Callable[[Contributions], Tensor]
"""A rule: contributions of all replicas in, `(replicas, dim)` out, on the scale of a sum over the cohort."""
