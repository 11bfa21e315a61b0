"""A contribution is bounded, then noised: factors that bound its norm, and Gaussian noise on the sum."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from fedproof.aggregation import Contributions
from fedproof.mechanisms import Clipping
from fedproof.models.precision import clip_scales
from fedproof.rounds.randomness import Stream, normal_rows

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
    """`contributions` at full length, those that are not finite as zero."""
    contributions, norms, finite = _measured(contributions, None)
    thresholds = norms.new_full((len(contributions.present), 1), torch.inf)
    return Bounded(contributions=contributions, thresholds=thresholds, norms=norms, finite=finite)


def add_noise(
    total: Tensor,
    noise_std: Tensor,
    layer_sizes: tuple[int, ...],
    streams: Sequence[Stream],
    dtype: torch.dtype | None = None,
) -> Tensor:
    """`total` (replicas, dim) plus Gaussian noise of standard deviation `noise_std` (replicas, layers or 1).

    Guarantee: row r of the noise is drawn from `streams[r]` alone, in `dtype` or the type of `total`,
    independent of `total`. The sum has the type of `total`: whoever rounds it does so to what is noised.
    """
    noise = torch.empty_like(total, dtype=dtype)
    normal_rows(streams, noise)
    if noise_std.shape[1] > 1:
        noise_std = noise_std.repeat_interleave(torch.tensor(layer_sizes, device=total.device), dim=1)
    return total + noise * noise_std


def next_clip_norms(
    bounded: Bounded, clipping: Clipping, clip_norms: Tensor, noise: Tensor, cohort: float
) -> Tensor:
    """Clip norms `(replicas,)` of the next round: one noisy geometric step towards the target quantile.

    Guarantee: a member enters through one bit centred to ±1/2, to whose sum noise of standard deviation
    `count_noise_std` is added; `noise` (replicas,) is standard normal.

    Reference: Andrew, Thakkar, McMahan, Ramaswamy 2021, arXiv:1905.03871v5, Algorithm 1.
    """
    below = bounded.norms.squeeze(2) <= clip_norms.unsqueeze(1)
    bits = (below.to(clip_norms.dtype) - 0.5) * bounded.contributions.present
    return clip_norms * torch.exp(clipping.step(bits.sum(1), noise, cohort))


def _measured(
    contributions: Contributions, layer_sizes: tuple[int, ...] | None
) -> tuple[Contributions, Tensor, Tensor]:
    """`contributions` with non-finite updates as zero, their norms (of layers), and which were finite."""
    updates = contributions.updates
    norms = layer_norms(updates.flatten(0, 1), layer_sizes or (updates.shape[2],))
    norms = norms.view(*updates.shape[:2], -1)
    finite = norms.isfinite().all(2)
    if not bool(finite.all()):
        norms = torch.where(finite.unsqueeze(2), norms, 0)
        updates = torch.where(finite.unsqueeze(2), updates, 0)
        contributions = replace(contributions, updates=updates)
    return contributions, norms, finite


def layer_norms(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    """L2 norms `(rows, layers)` of `rows` (rows, dim) cut into layers of the given `sizes`.

    In float64, which holds the square of every float32: a huge update is clipped, not lost, and a norm is
    finite exactly if all entries are.
    """
    # A few rows at a time, because on a CPU the float64 copy should stay in the cache.
    chunk = _CHUNK << (9 if rows.is_cuda else 0)
    chunks = torch.split(rows, max(1, chunk // rows.shape[1]))
    return torch.cat([_chunk_norms(chunk, sizes) for chunk in chunks])


def _chunk_norms(rows: Tensor, sizes: tuple[int, ...]) -> Tensor:
    parts = torch.split(rows.double(), list(sizes), dim=1)
    return torch.stack([torch.linalg.vector_norm(part, dim=1) for part in parts], dim=1)


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
