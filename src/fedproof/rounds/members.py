"""Instances of all members as one data set, without noise or with it: members drawn once, or groups."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import exact
from fedproof.mechanisms import Mechanism
from fedproof.rounds.clipping import noised
from fedproof.rounds.heads import heads_of
from fedproof.rounds.instance import Draw, Tally, clipped_sums
from fedproof.rounds.local import Batch, Work, descend, descent, steps_of
from fedproof.rounds.randomness import Stream
from fedproof.rounds.stacking import on_cores, taken
from fedproof.rounds.state import RoundReport, Setting, State, Streams, Users

_NOTHING = np.empty(0, dtype=np.int64)  # the rows of an empty place
_TOGETHER, _NUMBERS = 64, 1 << 25  # models in closed form that are fitted at once, and what they hold


def play(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """The state after one round among the members of each replica, their cohort or group.

    Guarantee: nobody else has any influence. Without noise the round is training on their data, or a fit to
    them, and nothing is claimed about a single member. With noise it is one step on the drawn instances: a
    Gaussian mechanism whose sum is divided by the expected cohort.
    """
    chosen = streams.cohorts[:, state.round]
    if not mechanism.noise_multiplier:
        if setting.local.solver == "sgd":
            update = descent(setting, state, _pooled(setting, chosen, streams.batches))[:, 0]
            some = torch.from_numpy((chosen & (setting.users.sizes > 0)).any(axis=1, keepdims=True))
            update = torch.where(some.to(update.device), update, 0)  # who has no instances does not move
            params = state.params + update
        else:
            params = _fitted(setting, chosen, state.params)
            update = params - state.params
        return replace(state, round=state.round + 1, params=params), _report(chosen, update)
    tally = Tally(len(chosen), state.params)
    grid = exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm)
    total = clipped_sums(
        setting,
        state.params,
        _drawn(chosen, state.params.device),
        clip_norm=mechanism.clip_norm,
        grid=grid,
        tally=tally,
        lane=np.arange(len(chosen)),
        pieces=(len(chosen), 0.0),
        widths=(setting.local.batch_size, setting.local.batch_size),
    )
    noisy = noised(total, grid, streams.noise, [1] * len(total), setting.cores)
    params = state.params.clone()
    gradient = (noisy / mechanism.divisor(setting.users.num_users)).to(params.dtype)  # no draw changes it
    descend(params, torch.zeros_like(params), gradient, setting.local)
    after = replace(state, round=state.round + 1, params=params)
    return after, tally.report(chosen.sum(axis=1), mechanism.clip_norm)


def _drawn(chosen: NDArray[np.bool_], device: torch.device) -> Draw:
    """The instances of each replica; units are instances here, so a unit's number is its row."""
    arrays = (np.nonzero(chosen)[1], chosen.sum(axis=1))
    return Draw.of(*(torch.from_numpy(array).to(device) for array in arrays))


def _fitted(setting: Setting, chosen: NDArray[np.bool_], like: Tensor) -> Tensor:
    """The linear models that fit the pooled instances of each replica in closed form, whatever the start.

    Guarantee: a model's bits follow from its own instances. Some models are computed at once, in a shape that
    their own instances decide: the number of rows is the power of two that holds them, the number of models
    follows from that, and the lane from who the instances belong to.
    """
    local, users = setting.local, setting.users
    own = [_rows_of(users, np.flatnonzero(row)) for row in chosen]
    found = torch.zeros_like(like)

    def fit(places: NDArray[np.int64]) -> None:
        rows, inside = _rows(own, places, found.device)
        heads = heads_of(
            users.features[rows],
            users.labels[rows],
            inside,
            setting.model.num_classes,
            solver=local.solver,
            penalty=local.penalty,
            balanced=local.balanced,
        ).to(found.dtype)
        heads = torch.where(heads.isfinite().all(2).all(1)[:, None, None], heads, 0)  # in this type, too
        params = torch.cat([heads[:, :, :-1].flatten(1), heads[:, :, -1]], dim=1)  # weights, then biases
        real = torch.from_numpy(places >= 0).to(found.device)
        found[torch.from_numpy(places[places >= 0]).to(found.device)] = params[real]

    on_cores(fit, _side_by_side(own, chosen, setting), setting.cores)
    return found


def _rows_of(users: Users, members: NDArray[np.int64]) -> NDArray[np.int64]:
    """The rows of some users; of few users quickly, however many there are."""
    begins, ends = users.offsets[members], users.offsets[members + 1]
    sizes = ends - begins
    return np.asarray(np.arange(sizes.sum()) + (ends - sizes.cumsum()).repeat(sizes))


def _side_by_side(
    own: Sequence[NDArray[np.int64]], chosen: NDArray[np.bool_], setting: Setting
) -> Iterator[NDArray[np.int64]]:
    """The replicas, -1 in empty places, whose models are fitted at once."""
    features = setting.users.features[0].numel()
    width = np.array([_width(len(rows)) for rows in own])
    lane = np.where(chosen.any(axis=1), setting.users.who[chosen.argmax(axis=1)], 0)
    for one in np.unique(width).tolist():
        alike = np.flatnonzero(width == one)
        size = max(1, min(_TOGETHER, _NUMBERS // (one * max(one, features))))
        stacking = replace(setting.stacking, size=size)
        for stack in stacking.stacks(width[alike], lane[alike], size):
            yield np.where(stack >= 0, alike[stack], -1)


def _width(rows: int) -> int:
    """The power of two that holds so many rows."""
    return 1 << max(0, rows - 1).bit_length()


def _rows(
    own: Sequence[NDArray[np.int64]], places: NDArray[np.int64], device: torch.device
) -> tuple[Tensor, Tensor]:
    """Rows `(places, width)` of the federation, and which of them are no padding."""
    held = [own[place] if place >= 0 else _NOTHING for place in places.tolist()]
    counts = np.array([len(rows) for rows in held])
    width = _width(int(counts.max()))
    inside = np.arange(width) < counts[:, None]
    return _table(held, width).to(device), torch.from_numpy(inside).to(device)


def _table(held: Sequence[NDArray[np.int64]], width: int) -> Tensor:
    """Rows `(models, width)`: what each holds, and behind it its last row again; anybody's if it has none."""
    table = np.zeros((len(held), width), dtype=np.int64)
    for row, own in zip(table, held, strict=True):
        if len(own):
            row[: len(own)], row[len(own) :] = own, own[-1]
    return torch.from_numpy(table)


def _pooled(setting: Setting, chosen: NDArray[np.bool_], streams: Sequence[Stream]) -> Work:
    """Training on the instances of each replica's members as one data set: a piece for each replica."""
    sizes, replica = chosen.astype(np.int64) @ setting.users.sizes, np.arange(len(chosen))
    return Work(
        replica=replica,
        slot=np.zeros_like(replica),
        width=1,
        stacks=setting.stacking.stacks(sizes, replica, len(chosen)),
        batches=partial(_batches, setting, chosen, sizes, streams),
    )


def _batches(
    setting: Setting,
    chosen: NDArray[np.bool_],
    sizes: NDArray[np.int64],
    streams: Sequence[Stream],
    places: NDArray[np.int64],
) -> Iterator[Batch]:
    """Batches of the pooled instances of the replicas in `places`; replicas hold `sizes` of them."""
    size, device = setting.local.batch_size, setting.users.labels.device
    counts = taken(sizes, places)
    held = [
        _rows_of(setting.users, np.flatnonzero(chosen[place])) if place >= 0 else _NOTHING
        for place in places.tolist()
    ]
    rows = _table(held, -(-max(1, int(counts.max())) // size) * size).to(device)
    for epoch in range(setting.local.epochs):
        keys = torch.full(rows.shape, 2.0, dtype=torch.float64, device=device)  # padding comes last
        for keys_of_one, count, replica in zip(keys, counts.tolist(), places.tolist(), strict=True):
            if count:
                streams[replica].uniform_(keys_of_one[:count])
        yield from _epoch(epoch, rows.gather(1, keys.argsort(dim=1, stable=True)), counts, setting)


def _epoch(epoch: int, order: Tensor, counts: NDArray[np.int64], setting: Setting) -> Iterator[Batch]:
    size, device = setting.local.batch_size, order.device
    left = torch.from_numpy(counts).to(device).unsqueeze(1)
    for begin in range(0, int(counts.max()), size):
        reached = setting.stacking.reached(counts, begin)
        place = torch.arange(begin, begin + size, device=device)
        yield Batch(
            epoch=epoch,
            step=begin // size,
            rows=order[:reached, begin : begin + size],
            inside=place < left[:reached],
            sizes=(left[:reached] - begin).clamp(min=1, max=size),
            steps=steps_of(counts[:reached], begin, device),
        )


def _report(chosen: NDArray[np.bool_], update: Tensor) -> RoundReport:
    norms = torch.linalg.vector_norm(update.double(), dim=1)
    nothing = torch.zeros_like(norms)
    return RoundReport(
        cohort_size=torch.from_numpy(chosen.sum(axis=1)).to(update.device),
        mean_norm=norms,
        clipped_share=nothing,
        non_finite=(~norms.isfinite()).double(),
        clip_norm=torch.full_like(norms, torch.inf),
    )
