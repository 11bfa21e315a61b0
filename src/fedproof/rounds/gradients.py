"""Sums of clipped per-instance gradients, of many models at once, and a count of what was clipped."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.rounds.stacking import on_cores
from fedproof.rounds.state import Cohort, RoundReport, Setting


@dataclass(frozen=True, kw_only=True)
class Draw:
    """The instances of one step.

    Attributes:
        rows: rows of the federation, those of one model after the other, and one more because all batches
            may be empty.
        counts: `(models,)`, how many of them belong to each model.
    """

    rows: Tensor
    counts: Tensor

    @staticmethod
    def of(rows: Tensor, counts: Tensor) -> "Draw":
        """Of rows without the one more."""
        return Draw(rows=torch.cat([rows, rows.new_zeros(1)]), counts=counts)

    def batches(self, models: Tensor, real: Tensor, width: int) -> Iterator[tuple[Tensor, Tensor]]:
        """Rows `(len(models), width)` and mask of what is no padding, batch after batch.

        Padding repeats a model's own last row; a model without rows, or in an empty place, gets anybody's.
        What is masked adds zero whatever it holds: a gradient that is not finite does so too.
        """
        counts = torch.where(real, self.counts[models], 0).unsqueeze(1)
        begin = (self.counts.cumsum(0) - self.counts)[models].unsqueeze(1)
        places = torch.arange(width, device=self.rows.device)
        for first in range(0, max(1, int(counts.max())), width):
            place = first + places
            own = torch.minimum(place, (counts - 1).clamp(min=0))
            yield self.rows[begin + own], place < counts


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
    setting: Setting,
    params: Tensor,
    draw: Draw,
    *,
    clip_norm: float,
    tally: Tally,
    lane: NDArray[np.int64],
    pieces: tuple[float, float],
    width: int,
) -> Tensor:
    """Sum of clipped gradients `(models, dim)` over each model's instances, `width` of them at a time.

    Guarantee: one instance adds at most `clip_norm`, and nothing where its gradient is not finite. A model's
    sum depends on its own instances alone, bit for bit: batches have the same width for all, and one that
    holds padding only adds nothing.

    Args:
        setting: model, users, how many are summed at once.
        params: `(models, dim)`.
        draw: the models' instances.
        clip_norm: bound on one instance's gradient.
        tally: counts what was clipped.
        lane: `(models,)`, public numbers.
        pieces: how many models there are on average, and the standard deviation.
        width: of a batch, a public number.
    """
    total = torch.zeros_like(params)
    work = draw.counts.cpu().numpy()

    def sum_up(places: NDArray[np.int64]) -> None:
        models = torch.from_numpy(np.maximum(places, 0)).to(params.device)
        real = torch.from_numpy(places >= 0).to(params.device)
        own, sums = params[models], torch.zeros_like(params[models])
        for rows, mask in draw.batches(models, real, width):
            found = setting.model.clipped_gradient(
                own, setting.users.features[rows], setting.users.labels[rows], mask, clip_norm
            )
            sums += found.total
            tally.add(models[real], mask[real], found.norms[real], found.finite[real], clip_norm)
        total[models[real]] = sums[real]

    on_cores(sum_up, setting.stacking.stacks(work, lane, *pieces), setting.cores)
    return total
