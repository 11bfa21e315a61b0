"""The server's half of what trains in rounds, in NumPy, for any framework that delivers updates.

It draws the same cohorts, groups and noise as `fedproof.ensemble` does for the same seed and replica (see
`rounds.randomness`), so the two can be compared replica by replica. Norms and scales are float64, sums exact;
noise is drawn in the precision of the model.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedproof import check, seeds
from fedproof.arrays import Floats
from fedproof.mechanisms import Mechanism, Releases
from fedproof.seeds import Numbers, Purpose, private_numbers
from fedproof.threat import Unit

Params = NDArray[np.floating]

_HUGE = 1e100  # beyond, squares may overflow
_FREE = 2.0**32  # an update that is not clipped holds no larger number
_STEP = 2.0**-36  # of what is added up, over the largest number that it may hold
_MEMBERS = 2**15  # a cohort that is drawn with chances is never twice as large as expected
_PIECE = 8192  # too short for BLAS to share among threads, which on busy cores wait for each other


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What is executed and accounted: `mechanism` over `num_users` users, for each of `replicas`.

    The seed decides cohorts and noise. Whoever knows it can take the noise off: keep it on the server.
    Without one, both come from the operating system: nobody can take the noise off or repeat the training.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> fedavg = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> Plan(mechanism=fedavg, num_users=200, seed=0).divisor
    20.0
    """

    mechanism: Mechanism
    num_users: int
    seed: int | None = field(repr=False)
    replicas: range = range(1)

    def __post_init__(self) -> None:
        check.count(num_users=self.num_users)
        if self.seed is not None:
            check.not_negative_count(seed=self.seed)
        _check_among_users(self.mechanism)
        if not len(self.replicas) or self.replicas.start < 0 or self.replicas.step != 1:
            raise ValueError(f"replicas = {self.replicas!r} must be a range like range(0, 10)")
        sampling, clipping = self.mechanism.sampling, self.mechanism.clipping
        sampling.check_units(self.num_users)
        if clipping.from_cohort:
            raise ValueError(
                f"clipping = {clipping!r} must be Flat, PerLayer or Quantile: a clip norm taken from the "
                "cohort without noise has no guarantee"
            )
        models = self.mechanism.models(self.num_users)
        if sampling.expected(self.num_users) / (models or 1) > _MEMBERS:
            raise ValueError(
                f"more than {_MEMBERS:,} users are expected in a round: sums are exact up to twice that"
            )
        if self.mechanism.noise_multiplier:
            check.summed_in_float32(clip_norm=self.mechanism.clip_norm)
        if models is not None and self.replicas != range(models):
            raise ValueError(f"replicas = {self.replicas!r} must be range(0, {models}), one for each group")

    @property
    def divisor(self) -> float:
        """Expected size of a cohort.

        Guarantee: it does not depend on who was drawn or who replied.
        """
        return self.mechanism.divisor(self.num_users)


@dataclass(frozen=True, kw_only=True)
class State:
    """Where the replicas stand after so many rounds: models `(replicas, dim)`, and whether there is one.

    One that no member's update is in was not `heard`, and has no vote, unless noise is added whoever replies.
    """

    round: int
    params: Params
    clip_norms: Floats
    heard: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class Bounded:
    """One user's updates after clipping.

    Attributes:
        updates: `(replicas, dim)`, no longer than the clip norm; zero where it was not finite.
        norms: `(replicas, layers or 1)`, before clipping; 0 where it was not finite.
        finite: `(replicas,)`.
        clipped: `(replicas,)`, whether it was longer than the clip norm.
    """

    updates: Floats
    norms: Floats
    finite: NDArray[np.bool_]
    clipped: NDArray[np.bool_]


def start(plan: Plan, initial: Params) -> State:
    """The state before round one: every replica starts from `initial` (dim,)."""
    if not np.isfinite(initial).all():
        raise ValueError("the initial model holds NaN or infinity")
    count = len(plan.replicas)
    return State(
        round=0,
        params=np.tile(initial, (count, 1)),
        clip_norms=np.full(count, plan.mechanism.clip_norm, dtype=np.float64),
        heard=np.zeros(count, dtype=np.bool_),
    )


def _check_among_users(mechanism: Mechanism) -> None:
    """Raise ValueError unless rounds among users who keep their instances to themselves are described."""
    if mechanism.releases is Releases.MODEL or mechanism.one_release or mechanism.executor is None:
        raise ValueError(f"kind = '{mechanism.kind}' must be one that trains in rounds")
    if mechanism.unit is not Unit.USER:
        raise ValueError(
            f"unit = '{mechanism.unit}' must be 'user': a node is a user, and moves whole models"
        )
    if mechanism.pooled and not mechanism.apart:
        raise ValueError("pooled = True must be False: users of a federation do not pool their instances")
    if mechanism.rule not in (None, "mean"):
        raise ValueError(f"rule = {mechanism.rule!r} must be 'mean': the server adds updates up as they come")


# --- who takes part ---------------------------------------------------------------------------------------


def draw_cohorts(plan: Plan) -> NDArray[np.bool_]:
    """Whether a user takes part, `(replicas, rounds, users)`."""
    return _drawn(plan, np.arange(plan.num_users))


def draw_newcomer(plan: Plan, user: int) -> NDArray[np.bool_]:
    """Whether a user beyond the expected ones, numbered from `num_users` on, takes part `(replicas, rounds)`.

    Under Poisson sampling who joins changes nobody else's draw, and the divisor stays. A cohort of fixed size
    is drawn among the expected users alone.
    """
    if plan.mechanism.sampling.closed:
        return np.zeros((len(plan.replicas), plan.mechanism.rounds), dtype=np.bool_)
    return _drawn(plan, np.array([user]))[:, :, 0]


def _drawn(plan: Plan, users: NDArray[np.int64]) -> NDArray[np.bool_]:
    return seeds.cohorts_of(plan.mechanism, users, plan.seed or 0, plan.replicas, secure=plan.seed is None)


# --- one round --------------------------------------------------------------------------------------------


def bound(plan: Plan, updates: Floats, clip_norms: Floats, layers: tuple[int, ...]) -> Bounded:
    """One user's `updates` (replicas, dim), scaled in place to at most `clip_norms` (replicas,).

    Guarantee: whatever is handed in, a row has at most its clip norm (times √layers where each layer is
    clipped); a row that is not finite counts as zero. Where no noise is added nothing is clipped, and a row
    with a number beyond 2^32 counts as zero, too: exact sums have no room for it.
    """
    sizes = layers if plan.mechanism.clipping.num_layers is not None else (updates.shape[1],)
    parts = np.split(updates, np.cumsum(sizes)[:-1], axis=1)  # views
    norms = np.stack([_norms(part) for part in parts], axis=1)
    finite: NDArray[np.bool_] = np.all(np.isfinite(norms), axis=1)
    if not plan.mechanism.noise_multiplier:
        finite &= np.abs(updates).max(axis=1, initial=0.0) <= _FREE
    if not finite.all():
        norms[~finite] = updates[~finite] = 0.0
    if not plan.mechanism.noise_multiplier:
        return Bounded(updates=updates, norms=norms, finite=finite, clipped=np.zeros_like(finite))
    bounds = clip_norms[:, None]
    clipped: NDArray[np.bool_] = np.any(norms > bounds, axis=1)
    # Quotient, product and norm may each round up: leave them room.
    scales = bounds * (1 - (8 + updates.shape[1]) * np.finfo(np.float64).eps)
    longest = np.maximum(norms, bounds)
    for part, own in zip(parts, longest.T[:, :, None], strict=True):
        if own.max() > _HUGE:  # the factor would be subnormal, hence inexact: shorten first
            part /= own
            part *= scales
        else:
            part *= scales / own
    return Bounded(updates=updates, norms=norms, finite=finite, clipped=clipped)


def addends(plan: Plan, updates: Floats, clip_norms: Floats) -> tuple[Floats, ...]:
    """Bounded `updates` (replicas, dim), which are overwritten, as what is added up, each by itself.

    Of a clipped update that is one vector, of another two: its numbers may differ more in size. They are cut
    to multiples of 2^-36 of the power of two above the clip norm, those without noise to multiples of 2^-40.

    Guarantee: sums of up to 2^16 are exact, so the order in which nodes reply changes no bit of a model.
    Who sends what cannot be read, or nothing for long, decides about that order, also where it was not drawn.
    Proof: no number has more than 2^36 whole steps of a power of two. All are rounded towards zero, which
    makes no update longer.
    """
    if plan.mechanism.noise_multiplier:
        largest = np.ldexp(1.0, np.frexp(clip_norms)[1])[:, None]  # no number is larger than the whole
        return (_rounded(updates, largest * _STEP),)
    coarse = _rounded(updates.copy(), np.float64(_FREE * _STEP))
    updates -= coarse
    return coarse, _rounded(updates, np.float64(_FREE * _STEP * _STEP))


def _rounded(numbers: Floats, step: Floats | np.float64) -> Floats:
    """The numbers as whole multiples of a power of two, in place."""
    numbers *= 1 / step  # as exact as a quotient, and sooner done
    np.trunc(numbers, out=numbers)
    numbers *= step
    return numbers


def release(
    plan: Plan,
    state: State,
    total: Floats,
    below: NDArray[np.int64],
    replied: NDArray[np.int64],
    noise: Sequence[Numbers],
) -> State:
    """The state after a round in which bounded updates added up to `total` (replicas, dim).

    Guarantee: given the models before it, a round is a Gaussian mechanism: noise of standard deviation
    `noise_multiplier * clip_norm` on the sum, whether or not anybody replied, and then a fixed divisor.
    Without noise it is the mean of those who replied, and nobody else has any influence.

    Of each replica `replied` updates are in the sum, of which `below` were not clipped; `noise` has one
    generator for each replica, see `noise_streams`.
    """
    mechanism, dtype = plan.mechanism, _noise_dtype(state.params)
    heard = state.heard | (replied > 0) | (mechanism.noise_multiplier > 0)
    if not mechanism.noise_multiplier:
        return replace(
            state, round=state.round + 1, params=_averaged(state.params, total, replied), heard=heard
        )
    drawn = np.stack([stream.standard_normal(state.params.shape[1], dtype=dtype) for stream in noise])
    moved = drawn * (mechanism.noise_multiplier * state.clip_norms)[:, None]  # float64, and then in place
    moved += total
    moved /= plan.divisor
    moved += state.params
    clip_norms = state.clip_norms
    if mechanism.clipping.bit_noise is not None:
        bits = below - 0.5 * replied  # ±1/2 for each member that replied
        bit_noise = np.array([stream.standard_normal() for stream in noise])
        clip_norms = clip_norms * np.exp(mechanism.clipping.step(bits, bit_noise, plan.divisor))
    params = moved.astype(state.params.dtype)
    return State(round=state.round + 1, params=params, clip_norms=clip_norms, heard=heard)


def _averaged(params: Params, total: Floats, replied: NDArray[np.int64]) -> Params:
    """The models after the mean of their members' updates; one whose members sent too much stays."""
    with np.errstate(over="ignore", invalid="ignore"):
        moved = (params + total / np.maximum(replied, 1)[:, None]).astype(params.dtype)
    return np.where(np.isfinite(moved).all(axis=1, keepdims=True), moved, params)


def noise_streams(plan: Plan, state: State) -> Sequence[Numbers]:
    """A generator of noise for each replica, standing where `state.round` rounds have left it."""
    if not plan.mechanism.noise_multiplier:
        return ()
    draw = partial(private_numbers, plan.seed or 0, Purpose.NOISE, secure=plan.seed is None)
    streams = [draw(replica) for replica in plan.replicas]
    for stream in () if plan.seed is None else streams:
        for _ in range(state.round):
            stream.standard_normal(state.params.shape[1], dtype=_noise_dtype(state.params))
            if plan.mechanism.clipping.bit_noise is not None:
                stream.standard_normal()
    return streams


def _norms(rows: Floats) -> Floats:
    with np.errstate(over="ignore", under="ignore", invalid="ignore"):
        norms = np.sqrt(_squares(rows))
        return norms if (norms < _HUGE).all() else _norms_of_huge(rows)


def _norms_of_huge(rows: Floats) -> Floats:
    # Scaled by the largest entry: the square of a huge number overflows, and its row would be lost.
    largest: Floats = np.abs(rows).max(axis=1, initial=0.0)
    return largest * np.sqrt(_squares(rows / np.where(largest > 0, largest, 1.0)[:, None]))


def _squares(rows: Floats) -> Floats:
    squares: Floats = np.zeros(len(rows))
    for begin in range(0, rows.shape[1], _PIECE):
        piece = rows[:, begin : begin + _PIECE]
        squares += np.vecdot(piece, piece)
    return squares


def _noise_dtype(params: Params) -> type[np.float32] | type[np.float64]:
    return np.float64 if params.dtype == np.float64 else np.float32
