"""One release of any model, and draws around it."""

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from fedproof.mechanisms import Mechanism
from fedproof.mechanisms.uploads import GRID, on_grid
from fedproof.release import with_noise
from fedproof.rounds.clipping import bound
from fedproof.rounds.randomness import normal_rows
from fedproof.rounds.state import RoundReport, Setting, State, Streams, contributions_of
from fedproof.seeds import Numbers

_NUMBERS = 1 << 22  # of updates that are summed at once


def release(
    mechanism: Mechanism, setting: Setting, start: Tensor, updates: Tensor, numbers: Numbers
) -> Tensor:
    """The noisy sum `(dim,)` of everybody's clipped `updates` (users, dim) from `start`, in float64.

    Guarantee: a user changes the sum by its own vector alone, of norm `clip_norm` or less, whatever it sends.
    Proof: vectors are shrunk by more than float32 may have lost, entries rounded towards zero, which makes no
    norm larger, to whole multiples of `GRID`, and added as whole numbers.
    """
    layers, clip_norm = setting.model.layout.layer_sizes, mechanism.clip_norm
    state = State(round=0, params=start[None], clip_norms=torch.tensor([clip_norm], dtype=torch.float64))
    handed_in = contributions_of(updates[None], np.arange(len(updates))[None], layers)
    if setting.attack is not None:
        handed_in = setting.attack(handed_in, state)
    clip_norms = state.clip_norms.to(updates.device)
    bounded = bound(handed_in, mechanism.clipping, clip_norms).contributions
    total = np.zeros(updates.shape[1], dtype=np.int64)
    step = max(1, _NUMBERS // updates.shape[1])
    for begin in range(0, len(updates), step):
        users = slice(begin, begin + step)
        rows = bounded.updates[0, users].double() * bounded.scales[0, users].double()
        total += on_grid(rows.cpu().numpy() / clip_norm).sum(axis=0)
    normal = np.empty(updates.shape[1])
    numbers.standard_normal(dtype=np.float64, out=normal)
    return torch.from_numpy(with_noise(total, normal, mechanism.noise_multiplier) * (GRID * clip_norm))


def play(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """Models drawn around the one release `shared` (dim,), each with noise of its own.

    Guarantee: noise of standard deviation `smoothing * clip_norm` is added to the release in float64, and
    both are divided alike; what follows is post-processing, the rounding of parameters included.
    """
    assert shared is not None  # the release is made once, for all replicas
    noise = torch.empty_like(state.params, dtype=torch.float64)
    normal_rows(streams.noise, noise)
    noisy = shared.to(noise.device) + noise * (mechanism.smoothing * mechanism.clip_norm)  # type: ignore[attr-defined]
    moved = state.params.double() + noisy / mechanism.divisor(setting.users.num_users)
    unknown = state.clip_norms.new_full((len(noise),), torch.nan)
    return replace(state, round=1, params=moved.to(state.params.dtype)), RoundReport(
        cohort_size=torch.full_like(unknown, setting.users.num_users),
        mean_norm=unknown,
        clipped_share=unknown,
        non_finite=unknown,
        clip_norm=state.clip_norms,
    )
