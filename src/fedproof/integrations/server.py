"""The server's half of what trains in rounds, in NumPy, for any framework that delivers updates.

It draws the same cohorts, groups and noise as `fedproof.ensemble` does for the same seed and replica (see
`rounds.randomness`), so the two can be compared replica by replica, and the arithmetic is `fedproof.exact`,
as the engine's is: the same updates give the same bits.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray

from fedproof import check, exact, seeds
from fedproof.arrays import Floats
from fedproof.mechanisms import Mechanism, Quantile, Releases
from fedproof.seeds import Numbers, Purpose, SeededGenerator, private_numbers
from fedproof.threat import Unit

Params = NDArray[np.floating]

_MEMBERS = 2**15  # a cohort that is drawn with chances is never twice as large as expected


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
        updates: `(replicas, dim)`, in steps of the grid and no longer than the clip norm; without noise as
            they came; zero where one was not finite.
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
    noise, norm = plan.mechanism.noise_multiplier, plan.mechanism.clip_norm
    if noise:
        exact.check_room(exact.grid_of(noise, norm), norm, len(initial), noise_multiplier=noise)
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
    with a number beyond 2^20 counts as zero, too: exact sums have no room for it.
    """
    sizes = layers if plan.mechanism.clipping.num_layers is not None else (updates.shape[1],)
    norms = exact.lengths(updates, sizes)
    finite: NDArray[np.bool_] = np.all(np.isfinite(norms), axis=1)
    if not plan.mechanism.noise_multiplier:
        finite &= exact.holds(updates)
    if not finite.all():
        norms[~finite] = updates[~finite] = 0.0
    if not plan.mechanism.noise_multiplier:
        return Bounded(updates=updates, norms=norms, finite=finite, clipped=np.zeros_like(finite))
    bounds, step = clip_norms[:, None], _grid(plan, clip_norms).step[:, None]
    factors = exact.factors(norms, bounds, step, updates.shape[1])
    for part, factor in zip(np.split(updates, np.cumsum(sizes)[:-1], axis=1), factors.T, strict=True):
        exact.whole(part, factor[:, None])  # a view: in place
    clipped: NDArray[np.bool_] = np.any(norms > bounds, axis=1)
    return Bounded(updates=updates, norms=norms, finite=finite, clipped=clipped)


def addends(plan: Plan, updates: Floats) -> tuple[Floats, ...]:
    """Bounded `updates` (replicas, dim), which are overwritten, as what is added up, each by itself.

    Guarantee: sums of up to 2^16 are exact, so the order in which nodes reply changes no bit of a model.
    Who sends what cannot be read, or nothing for long, decides about that order, also where it was not drawn.
    """
    return (updates,) if plan.mechanism.noise_multiplier else exact.parts(updates)


def _grid(plan: Plan, clip_norms: Floats) -> exact.Grid:
    return exact.grid_of(plan.mechanism.noise_multiplier, clip_norms)


def release(
    plan: Plan,
    state: State,
    total: Floats,
    below: NDArray[np.int64],
    replied: NDArray[np.int64],
    noise: Sequence[Numbers],
) -> State:
    """The state after a round whose bounded updates add up to `total` (replicas, dim), which is overwritten.

    Guarantee: given the models before it, a round is a Gaussian mechanism: noise of standard deviation
    `noise_multiplier * clip_norm` on the sum, whether or not anybody replied, and then a fixed divisor.
    Without noise it is the mean of those who replied, or their sum over the expected cohort where the
    mechanism divides by that, and nobody else has any influence.

    Of each replica `replied` updates are in the sum, of which `below` were not clipped; `noise` has one
    generator for each replica, see `noise_streams`.
    """
    mechanism = plan.mechanism
    heard = state.heard | (replied > 0) | (mechanism.noise_multiplier > 0)
    if not mechanism.noise_multiplier:
        members = plan.divisor if mechanism.divides else np.maximum(replied, 1)[:, None]
        params = exact.averaged(state.params, total, members)
        return replace(state, round=state.round + 1, params=params, heard=heard)
    grid = _grid(plan, state.clip_norms)
    for row, stream, scale in zip(total, noise, grid.scale, strict=True):
        row += exact.drawn(stream, len(row), scale)
    params = exact.moved(state.params, total, grid.step[:, None], plan.divisor)
    clip_norms = state.clip_norms
    if isinstance(mechanism.clipping, Quantile):
        words = np.concatenate([stream.words(1) for stream in noise])
        further = [stream.further for stream in noise]
        bits = below - 0.5 * replied  # ±1/2 for each member that replied
        clip_norms = mechanism.clipping.followed(clip_norms, bits, words, further, plan.divisor)
    return State(round=state.round + 1, params=params, clip_norms=clip_norms, heard=heard)


def noise_streams(plan: Plan, state: State) -> Sequence[Numbers]:
    """A generator of noise for each replica, standing where `state.round` rounds have left it."""
    if not plan.mechanism.noise_multiplier:
        return ()
    draw = partial(private_numbers, plan.seed or 0, Purpose.NOISE, secure=plan.seed is None)
    in_a_round = state.params.shape[1] + isinstance(plan.mechanism.clipping, Quantile)
    streams = [draw(replica) for replica in plan.replicas]
    for stream in streams:
        if isinstance(stream, SeededGenerator):
            stream.advanced(state.round * in_a_round)
    return streams
