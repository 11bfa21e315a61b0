"""Sums of clipped per-instance gradients, of many models at once, and a count of what was clipped."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms.cores import on_cores
from fedproof.mechanisms.rounds import Cohort, RoundReport, Setting


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The instances of one step.

    Attributes:
        rows: rows of the federation, those of one model after the other, and one more for padding.
        counts: `(models,)`, how many of them belong to each model.
    """

    rows: Tensor
    counts: Tensor

    @staticmethod
    def of(rows: Tensor, counts: Tensor) -> "Draw":
        """Of rows without the one for padding, which is there because all batches may be empty."""
        return Draw(rows=torch.cat([rows, rows.new_zeros(1)]), counts=counts)

    def batches(self, models: Tensor, width: int | None = None) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows `(len(models), width)` and mask of what is no padding, batch after batch.

        The last batch may be narrower; `width` None takes all instances at once.
        """
        counts = self.counts[models].unsqueeze(1)
        begin = (self.counts.cumsum(0) - self.counts)[models].unsqueeze(1)
        places = torch.arange(max(1, int(counts.max())), device=self.rows.device)
        for place in torch.split(places, width or len(places)):
            mask = place < counts
            yield self.rows[torch.where(mask, begin + place, len(self.rows) - 1)], mask


class Tally:
    """Counts of what was clipped, for each model."""

    def __init__(self, num_models: int, like: Tensor) -> None:
        self._sums = torch.zeros((num_models, 4), dtype=torch.float64, device=like.device)

    def add(self, models: Tensor, mask: Tensor, norms: Tensor, finite: Tensor, clip_norm: float) -> None:
        """Count the instances of one batch."""
        seen = (mask, norms * mask, (norms > clip_norm) & mask, ~finite & mask)
        self._sums[models] += torch.stack([column.double().sum(1) for column in seen], dim=1)

    def of_replicas(self, cohort: Cohort) -> "Tally":
        """The counts of each replica, whose members have a model each."""
        grid = self._sums.new_zeros((*cohort.members.shape, 4))
        places = (torch.from_numpy(index).to(grid.device) for index in (cohort.replica, cohort.slot))
        grid[tuple(places)] = self._sums
        together = Tally(len(grid), grid)
        together._sums += grid.sum(1)
        return together

    def report(self, cohort_size: NDArray[np.int64], clip_norm: float) -> RoundReport:
        """Report of a round in which each replica is one model, or `of_replicas`."""
        seen, length, clipped, bad = self._sums.unbind(1)
        return RoundReport(
            cohort_size=torch.from_numpy(cohort_size).to(seen.device),
            mean_norm=length / seen.clamp(min=1),
            clipped_share=clipped / seen.clamp(min=1),
            non_finite=bad,
            clip_norm=torch.full_like(seen, clip_norm),
        )


def clipped_sums(
    setting: Setting, params: Tensor, draw: Draw, clip_norm: float, tally: Tally, *, width: int | None = None
) -> Tensor:
    """Sum of clipped gradients `(models, dim)` over each model's instances, `width` of them at a time.

    Guarantee: one instance adds at most `clip_norm`, and nothing where its gradient is not finite.
    """
    total = torch.empty_like(params)

    def work(models: Tensor) -> None:
        own = params[models]
        sums: Tensor | None = None
        for rows, mask in draw.batches(models, width):
            found = setting.model.clipped_gradient(
                own, setting.users.features[rows], setting.users.labels[rows], mask, clip_norm
            )
            sums = found.total if sums is None else sums.add_(found.total)
            tally.add(models, mask, found.norms, found.finite, clip_norm)
        assert sums is not None  # there is a batch even if it is empty
        total[models] = sums

    on_cores(work, _stacks(draw.counts, setting.stack), setting.cores)
    return total


def _stacks(counts: Tensor, stack: int) -> Iterator[Tensor]:
    # Batches of like size share a stack: Poisson batches differ by half their size, which would be padding.
    if len(counts):
        yield from torch.split(counts.argsort(descending=True, stable=True), stack)
