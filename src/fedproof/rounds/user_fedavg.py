"""User-level DP-FedAvg of cohorts or groups, and averaging without privacy: no bound and no noise."""

from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import exact
from fedproof.aggregation import Contributions, mean
from fedproof.mechanisms import Mechanism, Quantile
from fedproof.rounds.clipping import bound, free_sums, next_clip_norms, released, unbounded
from fedproof.rounds.local import Work, batches_of, descent
from fedproof.rounds.randomness import data_order
from fedproof.rounds.state import (
    Cohort,
    RoundReport,
    Setting,
    State,
    Streams,
    cohort_of,
    contributions_of,
    report,
)


def play(
    mechanism: Mechanism, setting: Setting, state: State, streams: Streams, shared: Tensor | None
) -> tuple[State, RoundReport]:
    """The state after one round: local updates, clip, sum, noise, divide by the expected cohort.

    Guarantee: given the models before it, a round is a Gaussian mechanism: noise of standard deviation
    `noise_multiplier * clip_norm` on a sum to which a member adds at most `clip_norm * clipping.sensitivity`.
    There is none where the mechanism has no noise: then nothing is clipped either, and where it does not
    divide by the expected cohort the members' mean is taken. Who is no member has no influence at all.

    Args:
        mechanism: what is accounted, hence what is executed.
        setting: model, users, local training.
        state: before the round.
        streams: of the replicas in `state`.
        shared: updates `(users, dim)` if all replicas start this round from the same model, else None.
    """
    chosen = streams.cohorts[:, state.round]
    if shared is None:
        cohort = cohort_of(chosen)
        updates = descent(setting, state, _pairs(setting, state, cohort, setting.pieces(len(chosen))))
        handed_in = contributions_of(updates, cohort.members, setting.model.layout.layer_sizes)
        if getattr(setting.attack, "collusive", False):
            handed_in = _with_coalition(handed_in, setting, state, chosen)
    else:
        handed_in = _looked_up(shared, setting, state, chosen)
    if setting.attack is not None:
        handed_in = setting.attack(handed_in, state)
    expected = mechanism.divisor(setting.users.num_users)
    if not mechanism.noise_multiplier:
        plain = unbounded(handed_in)
        members = (plain.finite & plain.contributions.present).sum(1).clamp(min=1).unsqueeze(1)
        exactly = setting.aggregation is mean
        total = (
            free_sums(plain.contributions) if exactly else setting.aggregation(plain.contributions).double()
        )
        params = exact.averaged(state.params, total, expected if mechanism.divides else members)
        return replace(state, round=state.round + 1, params=params), report(plain)
    bounded = bound(handed_in, mechanism.clipping, state.clip_norms)
    rule = None if setting.aggregation is mean else setting.aggregation  # the mean's noise is accounted
    total, step = released(bounded, mechanism.noise_multiplier, streams.noise, setting.cores, rule)
    params = exact.moved(state.params, total, step, expected)
    clip_norms = state.clip_norms
    if isinstance(mechanism.clipping, Quantile):
        clip_norms = next_clip_norms(bounded, mechanism.clipping, clip_norms, streams.noise, expected)
    return State(round=state.round + 1, params=params, clip_norms=clip_norms), report(bounded)


def _pairs(
    setting: Setting,
    state: State,
    cohort: Cohort,
    pieces: tuple[float, float],
    lane: NDArray[np.int64] | None = None,
) -> Work:
    """The local training of a cohort: a piece for each (replica, user) pair.

    `pieces` are how many there are on average, and the standard deviation: public numbers, as the `lane` is.
    """
    users, local = setting.users, setting.local
    if lane is None:  # by the place in the replica's own cohort: another replica's members do not change it
        lane = cohort.replica + cohort.slot
    order = data_order(setting.seed, state.round, users.offsets, local.epochs, users.who)
    return Work(
        replica=cohort.replica,
        slot=cohort.slot,
        width=cohort.members.shape[1],
        stacks=setting.stacking.stacks(users.sizes[cohort.user], lane, *pieces),
        batches=partial(batches_of, setting, cohort.user, torch.from_numpy(order).to(users.labels.device)),
    )


def _looked_up(shared: Tensor, setting: Setting, state: State, chosen: NDArray[np.bool_]) -> Contributions:
    """What members hand in where everybody's update is known: one table for all replicas."""
    # All that is needed of a table the device may not hold, and one row if all cohorts are empty.
    needed: NDArray[np.bool_] = np.asarray(chosen.any(axis=0))
    # Adversaries know of each other: what they hand in must not depend on who was drawn beside them.
    needed[list(getattr(setting.attack, "adversaries", ()))] = True
    drawn = np.flatnonzero(needed) if needed.any() else np.zeros(1, dtype=np.int64)
    updates = shared[torch.from_numpy(drawn).to(shared.device)].to(state.params.device)
    present = torch.from_numpy(chosen[:, drawn]).to(updates.device)
    return replace(
        contributions_of(updates.unsqueeze(0), drawn[None, :], setting.model.layout.layer_sizes),
        present=present,
        scales=present.unsqueeze(2).to(updates.dtype),
    )


def _with_coalition(
    contributions: Contributions, setting: Setting, state: State, chosen: NDArray[np.bool_]
) -> Contributions:
    """The contributions, and behind them those of adversaries that were not drawn, who are absent.

    Guarantee: what members hand in is not computed again, and a replica that drew no adversary gets nothing:
    what adversaries hold changes no bit of it.
    """
    adversaries = np.zeros(chosen.shape[1], dtype=np.bool_)
    adversaries[list(getattr(setting.attack, "adversaries", ()))] = True
    at_home = adversaries & ~chosen & (adversaries & chosen).any(axis=1, keepdims=True)
    if not at_home.any():
        return contributions
    cohort = cohort_of(at_home)
    public = float(len(chosen) * adversaries.sum()), 0.0
    updates = descent(setting, state, _pairs(setting, state, cohort, public))
    more = contributions_of(updates, cohort.members, contributions.layer_sizes)
    return replace(
        contributions,
        updates=torch.cat([contributions.updates, more.updates], dim=1),
        present=torch.cat([contributions.present, torch.zeros_like(more.present)], dim=1),
        scales=torch.cat([contributions.scales, torch.zeros_like(more.scales)], dim=1),
        members=torch.cat([contributions.members, more.members], dim=1),
    )


def first_updates(
    setting: Setting, initial: Tensor, home: torch.device, users: NDArray[np.int64] | None = None
) -> Tensor:
    """Round-one update `(users, dim)` of all, or the given, users from `initial` (dim,), kept on `home`."""
    chosen = np.zeros((1, setting.users.num_users), dtype=np.bool_)
    chosen[0, slice(None) if users is None else users] = True
    cohort = cohort_of(chosen)
    start = State(round=0, params=initial.unsqueeze(0), clip_norms=torch.ones(1, dtype=torch.float64))
    lane = setting.users.who[cohort.user]
    return descent(setting, start, _pairs(setting, start, cohort, (setting.population, 0.0), lane), home)[0]
