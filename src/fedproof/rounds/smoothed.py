"""One release of any model, and draws around it."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedproof import exact
from fedproof.mechanisms import Mechanism
from fedproof.rounds.clipping import bound, released
from fedproof.rounds.randomness import Stream, noise
from fedproof.rounds.state import RoundReport, Setting, State, Streams, contributions_of


def release(mechanism: Mechanism, setting: Setting, start: Tensor, updates: Tensor, stream: Stream) -> Tensor:
    """The noisy sum `(dim,)` of everybody's clipped `updates` (users, dim) from `start`, in float64.

    Guarantee: a user changes the sum by its own vector alone, of norm `clip_norm` or less, whatever it sends:
    sums are exact (`clipping.released`). The grid serves the noise of the draws as well, so that their sums
    with the release are on it, too.
    """
    state = State(
        round=0, params=start[None], clip_norms=torch.tensor([mechanism.clip_norm], dtype=torch.float64)
    )
    layers = setting.model.layout.layer_sizes
    handed_in = contributions_of(updates[None], np.arange(len(updates))[None], layers)
    if setting.attack is not None:
        handed_in = setting.attack(handed_in, state)
    bounded = bound(handed_in, mechanism.clipping, state.clip_norms.to(updates.device))
    total, step = released(
        bounded, mechanism.noise_multiplier, [stream], setting.cores, widest=_smoothing(mechanism)
    )
    return (total * step)[0].cpu()


def play(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """Models drawn around the one release `shared` (dim,), each with noise of its own.

    Guarantee: rounded noise of standard deviation `smoothing * clip_norm` is added to the release, both in
    steps of one grid, and both are divided alike; what follows is post-processing.
    """
    assert shared is not None  # the release is made once, for all replicas
    grid = exact.grid_of(_smoothing(mechanism), mechanism.clip_norm, mechanism.noise_multiplier)
    count = len(state.params)
    scale = torch.full((count, 1), float(grid.scale), dtype=torch.float64, device=state.params.device)
    drawn = noise(streams.noise, [1] * count, state.params.shape[1], scale, setting.cores)
    total = drawn.add_(shared.to(drawn.device) / float(grid.step))
    moved = exact.moved(state.params, total, float(grid.step), mechanism.divisor(setting.users.num_users))
    unknown = state.clip_norms.new_full((count,), torch.nan)
    return replace(state, round=1, params=moved), RoundReport(
        cohort_size=torch.full_like(unknown, setting.users.num_users),
        mean_norm=unknown,
        clipped_share=unknown,
        non_finite=unknown,
        clip_norm=state.clip_norms,
    )


def _smoothing(mechanism: Mechanism) -> float:
    """Noise of a draw around the release, over the clip norm."""
    return float(mechanism.smoothing)  # type: ignore[attr-defined]
