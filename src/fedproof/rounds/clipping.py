"""Contributions are bounded, added up and noised by `fedproof.exact`: here for all replicas of a block."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from fedproof import exact
from fedproof.aggregation import Aggregation, Contributions
from fedproof.mechanisms import Clipping, Quantile
from fedproof.models.precision import clip_scales
from fedproof.rounds.randomness import Stream, noise

_CHUNK = 1 << 17  # numbers converted to float64 at a time


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """Contributions with scales that bound them, and what the bound was.

    Attributes:
        contributions: with finite updates and clipping scales.
        thresholds: `(replicas, layers or 1)`, the clip norms in force.
        norms: `(replicas or 1, members, layers or 1)`, before clipping; 0 where an update was not finite.
        finite: `(replicas or 1, members)`, False where an update was not finite and counts as zero.
    """

    contributions: Contributions
    thresholds: Tensor
    norms: Tensor
    finite: Tensor


def bound(contributions: Contributions, clipping: Clipping, clip_norms: Tensor) -> Bounded:
    """`contributions` with scales so that no layer, or no update, is longer than its threshold.

    Guarantee: a bounded update has at most the norm of its replica's threshold (per layer where layers are
    clipped), whatever was handed in; an update that is not finite counts as zero.

    Args:
        contributions: what the members handed in.
        clipping: which threshold, and whether for each layer.
        clip_norms: `(replicas,)`, in force where the threshold is not taken from the cohort.
    """
    sizes = contributions.layer_sizes if clipping.num_layers is not None else None
    contributions, norms, finite = _measured(contributions, sizes)
    thresholds = _thresholds(norms, contributions.present, clipping, clip_norms)
    scales = clip_scales(norms, thresholds.unsqueeze(1), contributions.updates.dtype)
    scales = scales * contributions.present.unsqueeze(2)
    return Bounded(
        contributions=replace(contributions, scales=scales), thresholds=thresholds, norms=norms, finite=finite
    )


def unbounded(contributions: Contributions) -> Bounded:
    """`contributions` at full length; what is not finite, or too large for exact sums, as zero."""
    contributions, norms, finite = _measured(contributions, None, free=True)
    thresholds = norms.new_full((len(contributions.present), 1), torch.inf)
    return Bounded(contributions=contributions, thresholds=thresholds, norms=norms, finite=finite)


def released(
    bounded: Bounded,
    noise_multiplier: float,
    streams: Sequence[Stream],
    cores: int,
    rule: Aggregation | None = None,
    widest: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The noisy sum `(replicas, dim)` in steps of a grid, and the step `(replicas, 1 or dim)`.

    Guarantee: a Gaussian mechanism's output, rounded: noise of `noise_multiplier` times the thresholds on a
    sum to which each member adds a vector that its thresholds bound (`exact`). Row r of the noise follows
    from `streams[r]` alone. A replica's sum is exact: nobody but its members changes a bit of it. With
    another `rule` than the sum nothing is guaranteed.

    `widest` is the noise multiplier of what is added to the sum later.
    """
    contributions = bounded.contributions
    grid = exact.grid_of(noise_multiplier, bounded.thresholds.cpu().numpy(), widest)
    step, scale = (_entrywise(each, contributions) for each in (grid.step, grid.scale))
    steps = torch.from_numpy(grid.step).to(bounded.thresholds.device).unsqueeze(1)
    factors = exact.factors(
        bounded.norms, bounded.thresholds.unsqueeze(1), steps, contributions.updates.shape[2]
    )
    total = _sums(contributions, factors) if rule is None else torch.round(rule(contributions) / step)
    rows = [1] * len(streams)
    return total.add_(noise(streams, rows, total.shape[1], scale, cores)), step


def noised(
    total: Tensor, grid: exact.Grid, streams: Sequence[Stream], rows: Sequence[int], cores: int
) -> Tensor:
    """Float64 sums `(rows, dim)`, which are overwritten, rounded to the grid, with its noise.

    Guarantee: where neighbouring sums are at distance `S - exact.room_for_rounding` or less, a Gaussian
    mechanism's output, rounded, whose sensitivity is S.
    """
    scale = torch.full((len(total), 1), float(grid.scale), dtype=torch.float64, device=total.device)
    drawn = noise(streams, rows, total.shape[1], scale, cores)
    return total.div_(grid.step).round_().add_(drawn).mul_(grid.step)


def free_sums(contributions: Contributions) -> Tensor:
    """Sums `(replicas, dim)` in float64 of what members handed in: exact, rounded once."""
    return _summed(contributions, lambda part, _: exact.parts(part))


def _sums(contributions: Contributions, factors: Tensor) -> Tensor:
    """Sums of bounded updates as whole numbers; `factors` are `(replicas or 1, members, layers)`."""
    if len(contributions.updates) == 1 and len(factors) > 1:
        if not bool((factors == factors[:1]).all()):  # of thresholds that follow each replica's own cohort
            alone = (
                _sums(replace(contributions, present=present[None]), own[None])
                for present, own in zip(contributions.present, factors, strict=True)
            )
            return torch.cat(list(alone))
        factors = factors[:1]
    flat = factors.flatten(0, 1)

    def whole(part: Tensor, layer: int) -> tuple[Tensor, ...]:
        return (exact.whole(part, flat[:, min(layer, flat.shape[1] - 1), None]),)

    return _summed(contributions, whole)


_COLUMNS = 2048  # of updates that are copied at once


def _summed(contributions: Contributions, addends: Callable[[Tensor, int], tuple[Tensor, ...]]) -> Tensor:
    """Sums `(replicas, dim)` over members of what `addends` makes of float64 copies of updates.

    The sums of what it makes are exact, so that their order does not matter.
    """
    updates, present = contributions.updates, contributions.present
    replica, slot = present.nonzero(as_tuple=True)
    rows = slot if len(updates) == 1 else replica * updates.shape[1] + slot
    counts = present.sum(1)
    begin = counts.cumsum(0) - counts
    table, found = updates.flatten(0, 1), []
    for layer, part in enumerate(torch.split(table, list(contributions.layer_sizes), dim=1)):
        for some in torch.split(part, _COLUMNS, dim=1):
            made = addends(some.to(torch.float64, copy=True), layer)
            bags = [F.embedding_bag(rows, each, begin, mode="sum") for each in made]
            found.append(bags[0] if len(bags) == 1 else bags[0] + bags[1])
    return torch.cat(found, dim=1)


def _entrywise(by_layer: NDArray[np.float64], contributions: Contributions) -> Tensor:
    """Values `(replicas, layers)` for each entry, or one for all where there is one layer."""
    sizes = contributions.layer_sizes
    wide = np.repeat(by_layer, sizes, axis=1) if by_layer.shape[1] > 1 else by_layer
    return torch.from_numpy(wide).to(contributions.updates.device)


def next_clip_norms(
    bounded: Bounded, clipping: Quantile, clip_norms: Tensor, streams: Sequence[Stream], cohort: float
) -> Tensor:
    """Clip norms `(replicas,)` of the next round: one noisy geometric step towards the target quantile.

    Guarantee: a member enters through one bit centred to ±1/2, to whose sum noise of standard deviation
    `count_noise_std` is added, see `exact.noisy_bits`. An update that is not finite has no bit.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871v5, Algorithm 1.
    """
    norms, before = bounded.norms.squeeze(2).cpu().numpy(), clip_norms.cpu().numpy()
    heard = (bounded.finite & bounded.contributions.present).cpu().numpy()
    bits = ((norms <= before[:, None]) & heard).sum(axis=1) - 0.5 * heard.sum(axis=1)
    words = torch.empty((len(streams), 1), dtype=torch.int64, device=clip_norms.device)
    for stream, row in zip(streams, words, strict=True):
        stream.words_(row)
    further = [stream.further for stream in streams]
    after = clipping.followed(before, bits, words.cpu().numpy()[:, 0], further, cohort)
    return torch.from_numpy(after).to(clip_norms.device)


def _measured(
    contributions: Contributions, layer_sizes: tuple[int, ...] | None, *, free: bool = False
) -> tuple[Contributions, Tensor, Tensor]:
    """`contributions` with non-finite updates as zero, their norms (of layers), and which were finite.

    Of `free` ones, which nothing bounds, those too large to be added up exactly count as not finite.
    """
    updates = contributions.updates
    norms = layer_norms(updates.flatten(0, 1), layer_sizes or (updates.shape[2],))
    norms = norms.view(*updates.shape[:2], -1)
    finite = norms.isfinite().all(2)
    if free:
        finite &= exact.holds(updates.flatten(0, 1)).view(finite.shape)
    if not bool(finite.all()):
        norms = torch.where(finite.unsqueeze(2), norms, 0)
        updates = torch.where(finite.unsqueeze(2), updates, 0)
        contributions = replace(contributions, updates=updates)
    return contributions, norms, finite


def layer_norms(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """L2 norms `(rows, layers)` of `rows` (rows, dim) cut into layers of the given `sizes`, in float64.

    On a CPU they are `exact.lengths` of arrays, as on a server: the same bits.
    """
    # A few rows at a time, because on a CPU the float64 copy should stay in the cache.
    chunk = _CHUNK << (9 if rows.is_cuda else 0)
    chunks = torch.split(rows, max(1, chunk // rows.shape[1]))
    if rows.is_cuda:
        return torch.cat([exact.lengths(some.double(), sizes) for some in chunks])
    return torch.from_numpy(
        np.concatenate([exact.lengths(some.numpy().astype(np.float64), sizes) for some in chunks])
    )


def _thresholds(norms: Tensor, present: Tensor, clipping: Clipping, clip_norms: Tensor) -> Tensor:
    fixed = clip_norms.unsqueeze(1).expand(-1, norms.shape[2])
    if not clipping.from_cohort:
        return fixed
    # Absent members sort last; an empty cohort has no median and keeps the fixed norm.
    ranked = torch.where(present.unsqueeze(2), norms, torch.inf).sort(dim=1).values
    count = present.sum(1)
    low, high = ((count - 1).clamp(min=0) // 2, count // 2)
    middle = [_pick(ranked, index) for index in (low, high)]
    return torch.where(count.unsqueeze(1) > 0, (middle[0] + middle[1]) / 2, fixed)


def _pick(ranked: Tensor, index: Tensor) -> Tensor:
    where = index.clamp(max=ranked.shape[1] - 1)[:, None, None].expand(-1, 1, ranked.shape[2])
    return ranked.gather(1, where).squeeze(1)
