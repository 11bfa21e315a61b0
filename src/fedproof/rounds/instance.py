"""Sums of clipped per-instance gradients, of many models at once, and the mechanisms that are made of them.

InsDP-FedSGD and InsDP-FedAvg: DP-SGD of many (replica, user) pairs at once, each on its own instances.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from itertools import repeat

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import exact
from fedproof.aggregation import Contributions
from fedproof.mechanisms import InstanceFedAvg, InstanceFedSGD
from fedproof.rounds.clipping import noised, unbounded
from fedproof.rounds.local import descend
from fedproof.rounds.randomness import draw
from fedproof.rounds.stacking import Stacking, on_cores
from fedproof.rounds.state import (
    Cohort,
    RoundReport,
    Setting,
    State,
    Streams,
    Users,
    cohort_of,
    contributions_of,
)
from fedproof.seeds import Lots

_WIDEST = 256  # instances whose gradients are added up in float32


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

    def batch(self, models: Tensor, first: int, width: int) -> tuple[Tensor, Tensor]:
        """Rows `(len(models), width)` of each model from its row `first` on, and mask of what is no padding.

        Padding repeats a model's own last row; a model without rows gets anybody's. What is masked adds zero
        whatever it holds: a gradient that is not finite does so too.
        """
        counts = self.counts[models].unsqueeze(1)
        begin = (self.counts.cumsum(0) - self.counts)[models].unsqueeze(1)
        place = torch.arange(first, first + width, device=self.rows.device)
        return self.rows[begin + torch.minimum(place, (counts - 1).clamp(min=0))], place < counts


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
    grid: exact.Grid,
    tally: Tally,
    lane: NDArray[np.int64],
    pieces: tuple[float, float],
    widths: tuple[int, int],
) -> Tensor:
    """Sum of clipped gradients `(models, dim)` over each model's instances, batch after batch.

    Guarantee: one instance moves the sum by at most `clip_norm`, whatever is rounded and however many others
    there are, the rounding to the `grid` included, and not at all
    where its gradient is not finite. A model's sum depends on its own instances
    alone, bit for bit: batches have the same width for all, and are added one after the other.

    Proof: batches are added in float64, which loses less than 2^-20 of a clip norm on either side. What the W
    instances of one add up to is computed in the type of `params`, in any order: each of W products, and each
    addition, errs by half an ε of its result. A sum of j has at most j norms that gradients are clipped to,
    and in no order do all sums together have more than one instance after the other, 2 + ... + W: less than
    W (W + 3) ε / 4 of them, and twice that with and without the instance. Gradients are clipped to so much
    less. Only the instance's own batch differs, and W is at most 256: that is four thousandths. Rounding to
    the grid moves two sums apart by `exact.room_for_rounding`, which is taken off first. (What maps that are
    used at several positions add up is closer than that, see `AffineTrace.write`.)

    Args:
        setting: model, users, how many are summed at once.
        params: `(models, dim)`.
        draw: the models' instances.
        clip_norm: bound on one instance's gradient.
        grid: of the noise that will be added to the sum.
        tally: counts what was clipped.
        lane: `(models,)`, public numbers.
        pieces: how many models there are on average, and the standard deviation.
        widths: of the first batch and of all others, public numbers; wider ones are summed in parts.
    """
    total = torch.zeros_like(params, dtype=torch.float64)
    short = clip_norm - exact.room_for_rounding(grid, params.shape[1])

    def sum_up(stack: _Stack) -> None:
        rows, mask = draw.batch(stack.models, stack.first, stack.width)
        rounded = max(stack.width * (stack.width + 3) * torch.finfo(params.dtype).eps / 2, exact.SUMMED)
        inputs, labels = setting.users.features[rows], setting.users.labels[rows]
        found = setting.model.clipped_gradient(
            params[stack.models], inputs, labels, mask, short / (1 + rounded)
        )
        models, real = stack.models[stack.real], stack.real
        total[models] += found.total[real]
        tally.add(models, mask[real], found.norms[real], found.finite[real], clip_norm)

    for stacks in _stacks(setting.stacking, draw.counts, lane, pieces, widths):
        on_cores(sum_up, stacks, setting.cores)
    return total


@dataclass(frozen=True, kw_only=True)
class _Stack:
    """Models that are at the same batch: instances `first`, `first + 1`, ..., `width` of them.

    Attributes:
        models: `(places,)`; anybody in an empty place.
        real: places that are not empty.
    """

    first: int
    width: int
    models: Tensor
    real: Tensor


def _stacks(
    stacking: Stacking,
    counts: Tensor,
    lane: NDArray[np.int64],
    pieces: tuple[float, float],
    widths: tuple[int, int],
) -> Iterator[Iterator[_Stack]]:
    """The stacks of first batches, then those of second ones for models that have so many instances, ..."""
    counted, first = counts.cpu().numpy(), 0
    for width, share in _batches(widths):
        left = np.flatnonzero(counted > first)
        if not left.size:
            return
        stacks = list(stacking.stacks(counted[left], lane[left], share * pieces[0], pieces[1]))
        arrays = [index for places in stacks for index in (left[places], np.flatnonzero(places >= 0))]
        # At once: a GPU is waited for whenever something is sent to it.
        sent = torch.from_numpy(np.concatenate(arrays)).to(counts.device)
        parts = iter(torch.split(sent, [len(array) for array in arrays]))
        yield (_Stack(first=first, width=width, models=models, real=next(parts)) for models in parts)
        first += width


def _batches(widths: tuple[int, int]) -> Iterator[tuple[int, float]]:
    """Width of one batch after the other, and the share of the models that get so far: public numbers."""
    parts = -(-widths[0] // _WIDEST)
    width = widths[0] if parts == 1 else 4 * -(-widths[0] // (4 * parts))
    yield from repeat((width, 1.0), parts)
    # About half of the models end with a first batch that is as wide as theirs are on average.
    yield from repeat((min(widths[1], _WIDEST), 0.5 if widths[1] < widths[0] else 1.0))


# --- the round: DP-SGD of every drawn user ------------------------------------------------------------------


def play(
    mechanism: InstanceFedAvg | InstanceFedSGD,
    setting: Setting,
    state: State,
    streams: Streams,
    shared: Tensor | None = None,
) -> tuple[State, RoundReport]:
    """The state after one round: noisy local steps, sum, divide by the expected cohort.

    Guarantee: given the models before it, each step is a Gaussian mechanism on a batch, a Poisson sample
    unless `shuffled`: noise of standard deviation `noise_multiplier * clip_norm` on a sum to which one
    instance adds at most `clip_norm`. All that leaves a user has been noised there; the server's work is
    post-processing. After one step each (InsDP-FedSGD) the sum of a cohort of m holds noise of √m times that
    standard deviation (times learning rate over batch size), to which one instance adds at most `clip_norm`
    (times the same).
    """
    cohort = cohort_of(streams.cohorts[:, state.round])
    start = state.params[torch.from_numpy(cohort.replica).to(state.params.device)]
    kept = _velocity(setting, state) if mechanism.keep_momentum else None
    velocity = torch.zeros_like(start) if kept is None else kept
    params, tally = start.clone(), Tally(len(start), start)
    rows = _Rows.of(setting.users, cohort, start.device)
    grid = exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm)
    sum_up = partial(
        clipped_sums,
        setting,
        clip_norm=mechanism.clip_norm,
        grid=grid,
        tally=tally,
        lane=cohort.replica + cohort.slot,
        pieces=setting.pieces(len(state.params)),
        widths=_widths(setting),
    )
    pairs = (cohort.members >= 0).sum(1).tolist()
    for drawn, divisors in _draws(mechanism, setting, rows, state.round, streams.lots):
        gradient = noised(sum_up(params, drawn), grid, streams.noise, pairs, setting.cores)
        descend(params, velocity, gradient.div_(divisors).to(params.dtype), setting.local)
    handed_in = _handed_in(setting, state, cohort, params.sub_(start))
    total = setting.aggregation(unbounded(handed_in).contributions)
    mean = total / mechanism.divisor(setting.users.num_users)
    after = replace(state, round=state.round + 1, params=state.params + mean, velocity=kept)
    return after, tally.of_replicas(cohort).report((cohort.members >= 0).sum(1), mechanism.clip_norm)


def _handed_in(setting: Setting, state: State, cohort: Cohort, changes: Tensor) -> Contributions:
    """What the members of a cohort hand in, of `changes` (pairs, dim), after the attack if there is one."""
    updates = changes.new_zeros((*cohort.members.shape, changes.shape[1]))
    places = (torch.from_numpy(index).to(changes.device) for index in (cohort.replica, cohort.slot))
    updates[tuple(places)] = changes
    contributions = contributions_of(updates, cohort.members, setting.model.layout.layer_sizes)
    return contributions if setting.attack is None else setting.attack(contributions, state)


def _velocity(setting: Setting, state: State) -> Tensor:
    """Everybody's momentum as the last round left it, to go on with."""
    if state.velocity is None:
        return state.params.new_zeros((len(state.params) * setting.users.num_users, state.params.shape[1]))
    return state.velocity.clone()


# --- batches ------------------------------------------------------------------------------------------------


def _widths(setting: Setting) -> tuple[int, int]:
    """Instances summed at first, and at a time after that, from public numbers alone.

    As many as a batch has on average, then about two standard deviations: most of a wider batch would be
    padding, and each narrower one reads all parameters of its model.
    """
    size, most = setting.local.batch_size, setting.users.most_instances or math.inf
    first, more = 4 * math.ceil(size / 4), 4 * math.ceil(math.sqrt(size) / 2)
    return int(min(first, most)), int(min(more, first, most))


@dataclass(frozen=True, kw_only=True)
class _Rows:
    """The instances of the pairs of one round.

    Attributes:
        user, replica: `(pairs,)`, on the host.
        rows: `(pairs, largest user)`, the rows of each pair's user; behind them its last row again.
        own: which of `rows` are the user's, each once.
        ids: `(pairs, largest user)`, identities of these instances.
    """

    user: NDArray[np.int64]
    replica: NDArray[np.int64]
    rows: Tensor
    own: Tensor
    ids: Tensor

    @staticmethod
    def of(users: Users, cohort: Cohort, device: torch.device) -> "_Rows":
        begin, end = users.offsets[cohort.user, None], users.offsets[cohort.user + 1, None]
        rows = begin + np.arange(users.sizes[cohort.user].max(initial=1))
        there, own = (torch.from_numpy(array).to(device) for array in (np.minimum(rows, end - 1), rows < end))
        return _Rows(user=cohort.user, replica=cohort.replica, rows=there, own=own, ids=users.which[there])

    def numbers(self, lots: Lots, number: int) -> Tensor:
        """A uniform number for each of `rows`, drawn by the instance's identity."""
        # float64: with the 24 bits of float32 a chance could be exceeded by 6e-8, which nobody accounts.
        return draw(lots, np.full(len(self.user), number), self.replica, self.ids)

    def of_pairs(self, by_user: NDArray[np.generic]) -> Tensor:
        """Values `(users,)` as `(pairs, 1)`."""
        return torch.from_numpy(by_user[self.user, None]).to(self.rows.device)


def _draws(
    mechanism: InstanceFedAvg | InstanceFedSGD, setting: Setting, rows: _Rows, round: int, lots: Lots
) -> Iterator[tuple[Draw, Tensor]]:
    """The batches of all steps, and `(pairs, 1)`, what their noisy sums are divided by."""
    draws = range(round * mechanism.local_steps, (round + 1) * mechanism.local_steps)
    chances = mechanism.batch_probabilities(setting.users.sizes, setting.local.batch_size)
    if mechanism.shuffled:
        return _passes(setting, rows, draws, lots)
    return _poisson(chances, setting, rows, draws, lots)


def _poisson(
    chances: NDArray[np.float64], setting: Setting, rows: _Rows, draws: range, lots: Lots
) -> Iterator[tuple[Draw, Tensor]]:
    """Every instance of a pair by itself, with the user's chance."""
    chance = rows.of_pairs(chances)
    divisors = torch.full(chance.shape, float(setting.local.batch_size), device=chance.device)
    for number in draws:
        chosen = (rows.numbers(lots, number) < chance) & rows.own
        yield Draw.of(rows.rows[chosen], chosen.sum(1)), divisors


def _passes(setting: Setting, rows: _Rows, draws: range, lots: Lots) -> Iterator[tuple[Draw, Tensor]]:
    """Parts of passes over each pair's instances, every pass in an order of its own."""
    size = setting.local.batch_size
    in_pass = -(-setting.users.sizes // size)
    order, batches, instances = rows.rows, rows.of_pairs(in_pass), rows.of_pairs(setting.users.sizes)
    for step, number in enumerate(draws):
        if (step % in_pass[rows.user] == 0).any():
            keys = torch.where(
                rows.own, rows.numbers(lots, number), 2.0
            )  # what stands there twice comes last
            fresh = rows.rows.gather(1, keys.argsort(dim=1, stable=True))
            order = torch.where(step % batches == 0, fresh, order)
        place = step % batches * size + torch.arange(size, device=order.device)
        inside = place < instances
        found = order.gather(1, place.clamp(max=order.shape[1] - 1))
        counts = inside.sum(1)
        yield Draw.of(found[inside], counts), counts.unsqueeze(1).float()
