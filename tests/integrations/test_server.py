"""The server's half of DP-FedAvg in NumPy against the engine, and against its own statement."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2

from fedproof import exact
from fedproof.integrations import server
from fedproof.integrations.server import Plan
from fedproof.mechanisms import Everyone, FixedSize, Flat, Median, PerLayer, Poisson, Quantile, UserFedAvg
from fedproof.rounds import clipping as engine_clipping
from fedproof.rounds.randomness import Stream
from fedproof.rounds.state import contributions_of
from fedproof.seeds import Purpose, draw_cohorts

FALSE_ALARM = 1e-6
SAMPLINGS = [Poisson(probability=0.3), FixedSize(cohort=4, users=10), Everyone()]
CLIPPINGS = [Flat(), PerLayer(num_layers=2), Quantile()]


def make_plan(sampling=SAMPLINGS[0], clipping=CLIPPINGS[0], replicas=range(3, 6), rounds=4):
    mechanism = UserFedAvg(
        rounds=rounds, noise_multiplier=1.3, sampling=sampling, clip_norm=0.7, clipping=clipping
    )
    return Plan(mechanism=mechanism, num_users=10, seed=11, replicas=replicas)


@pytest.mark.parametrize("sampling", SAMPLINGS, ids=repr)
def test_cohorts_are_the_engines(sampling):
    plan = make_plan(sampling)
    expected = draw_cohorts(sampling, np.arange(10), plan.mechanism.rounds, plan.seed, plan.replicas)
    np.testing.assert_array_equal(server.draw_cohorts(plan), expected)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
def test_rounds_are_the_engines(clipping):
    plan, layers, generator = make_plan(clipping=clipping), (5, 7), np.random.default_rng(0)
    initial = generator.normal(size=12).astype(np.float32)
    state = server.start(plan, initial)
    noise = server.noise_streams(plan, state)
    params, norms = torch.tensor(state.params), torch.tensor(state.clip_norms)
    streams = [Stream(plan.seed, Purpose.NOISE, replica, torch.device("cpu")) for replica in plan.replicas]
    for _ in range(plan.mechanism.rounds):
        updates = generator.normal(scale=0.2, size=(3, 6, 12)).astype(np.float32)
        state = play(plan, state, updates, layers, noise)
        members = np.tile(np.arange(6), (3, 1))
        bounded = engine_clipping.bound(
            contributions_of(torch.tensor(updates), members, layers), clipping, norms
        )
        total, step = engine_clipping.released(bounded, plan.mechanism.noise_multiplier, streams, 1)
        params = exact.moved(params, total, step, plan.divisor).float()
        if isinstance(clipping, Quantile):
            norms = engine_clipping.next_clip_norms(bounded, clipping, norms, streams, plan.divisor)
        np.testing.assert_array_equal(state.params, params.numpy())
        np.testing.assert_array_equal(state.clip_norms, norms.numpy())


def noise_std(plan):
    """Of the noise on each parameter of the new model."""
    return plan.mechanism.noise_multiplier * plan.mechanism.clip_norm / plan.divisor


def play(plan, state, updates, layers, noise):
    """One round with the given updates `(replicas, members, dim)`."""
    count = len(plan.replicas)
    total, below, replied = np.zeros(state.params.shape), np.zeros(count, int), np.zeros(count, int)
    for member in range(updates.shape[1]):
        bounded = server.bound(plan, updates[:, member].astype(np.float64), state.clip_norms, layers)
        total += bounded.updates
        below += ~bounded.clipped & bounded.finite
        replied += bounded.finite
    return server.release(plan, state, total, below, replied, noise)


@settings(derandomize=True, max_examples=100, deadline=None)
@given(
    rows=st.lists(
        st.lists(st.floats(allow_nan=True, allow_infinity=True, width=64), min_size=4, max_size=4),
        min_size=1,
        max_size=3,
    ),
    clip_norm=st.floats(1e-3, 1e3),
)
def test_nothing_exceeds_the_clip_norm(rows, clip_norm):
    plan = make_plan(replicas=range(len(rows)))
    updates = np.array(rows)
    bounded = server.bound(plan, updates, np.full(len(rows), clip_norm), (4,))
    step = exact.grid_of(plan.mechanism.noise_multiplier, clip_norm).step
    assert (np.linalg.norm(bounded.updates * step, axis=1) <= clip_norm).all()
    assert (bounded.updates[~np.isfinite(updates).all(axis=1)] == 0).all()


def test_the_largest_float_is_shortened_exactly_enough():
    # 0.125 / 1.8e308 is subnormal: a product with it would exceed the clip norm.
    updates = np.array([[0.0, np.finfo(np.float64).max]])
    plan = make_plan(replicas=range(1))
    bounded = server.bound(plan, updates, np.array([0.125]), (2,))
    step = exact.grid_of(plan.mechanism.noise_multiplier, 0.125).step
    assert 0.1249 < np.linalg.norm(bounded.updates * step) <= 0.125


def test_a_short_update_is_hardly_touched():
    bounded = server.bound(make_plan(), np.full((3, 4), 0.1), np.ones(3), (4,))
    step = exact.grid_of(make_plan().mechanism.noise_multiplier, 1.0).step
    np.testing.assert_allclose(bounded.updates * step, 0.1, atol=step)
    assert not bounded.clipped.any()


def test_noise_has_the_stated_scale_in_an_empty_round():
    plan = make_plan(replicas=range(1))
    state = server.start(plan, np.zeros(20_000, dtype=np.float32))
    nobody = np.zeros(1, dtype=np.int64)
    after = server.release(
        plan, state, np.zeros((1, 20_000)), nobody, nobody, server.noise_streams(plan, state)
    )
    statistic = float(np.square(after.params / noise_std(plan)).sum())
    low, high = chi2.interval(1 - FALSE_ALARM, df=20_000)
    assert low < statistic < high
    assert statistic / 1.1**2 < low  # noise 10 % too small would be caught


@pytest.mark.parametrize("clipping", [Flat(), Quantile()], ids=repr)
def test_without_a_seed_noise_and_cohorts_come_from_the_operating_system(clipping, known_bits):
    plan = replace(make_plan(clipping=clipping), seed=None)
    start = server.start(plan, np.zeros(2000, dtype=np.float32))
    found = []
    for key in ("a", "a", "b"):
        known_bits(key)
        noise = server.noise_streams(plan, replace(start, round=3))  # nothing to go back to
        after = play(plan, start, np.zeros((3, 1, 2000)), (2000,), noise)
        found.append((after.params, after.clip_norms, server.draw_cohorts(plan)))
    assert all(np.array_equal(first, second) for first, second in zip(found[0], found[1], strict=True))
    assert not np.array_equal(found[0][0], found[2][0])
    assert not np.array_equal(found[0][2], found[2][2])
    unit = found[0][0] / noise_std(plan)
    low, high = chi2.interval(1 - FALSE_ALARM, df=unit.size)
    assert low < float(np.square(unit).sum()) < high


@pytest.mark.parametrize("clipping", [Flat(), Quantile()], ids=repr)
def test_noise_goes_on_where_it_stopped(clipping):
    plan = make_plan(clipping=clipping)
    state = server.start(plan, np.zeros(9, dtype=np.float32))
    noise = server.noise_streams(plan, state)
    for _ in range(2):
        state = play(plan, state, np.zeros((3, 1, 9)), (9,), noise)
    resumed = server.noise_streams(plan, state)
    assert [a.words(1) for a in noise] == [b.words(1) for b in resumed]


def test_newcomers_change_nobody_elses_draw_and_have_one_of_their_own():
    plan = make_plan(rounds=2000, replicas=range(2))
    first, second = server.draw_newcomer(plan, 10), server.draw_newcomer(plan, 11)
    assert not np.array_equal(first, second)
    assert abs(first.mean() - 0.3) < 0.05  # 4000 draws: standard deviation 0.007
    assert not server.draw_newcomer(make_plan(SAMPLINGS[1]), 10).any()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_users": 0}, "num_users = 0 must be a whole number"),
        ({"seed": -1}, "seed = -1 must be"),
        ({"replicas": range(0)}, "must be a range like"),
        ({"num_users": 11}, r"sampling.users = 10 must be the number of users = 11"),
    ],
)
def test_bad_plans(change, message):
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=SAMPLINGS[1])
    with pytest.raises(ValueError, match=message):
        Plan(**({"mechanism": mechanism, "num_users": 10, "seed": 0} | change))


@pytest.mark.parametrize("norm", [1e-31, 1e-299, 1e31, 1.7e308])
def test_a_clip_norm_that_sums_cannot_hold_is_refused(norm):
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=SAMPLINGS[0], clip_norm=norm)
    with pytest.raises(ValueError, match=r"clip_norm = .* must be from 1e-30 to 1e\+30"):
        Plan(mechanism=mechanism, num_users=10, seed=0)


def test_sums_are_exact_for_as_many_as_a_plan_allows_and_more_are_refused():
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.25), clip_norm=0.7)
    plan = Plan(mechanism=mechanism, num_users=4 * 2**15, seed=0)
    with pytest.raises(ValueError, match="more than 32,768 users are expected in a round"):
        Plan(mechanism=mechanism, num_users=4 * 2**15 + 4, seed=0)
    generator = np.random.default_rng(0)
    updates = generator.normal(size=(2**16, 3))  # twice as many as expected, all longer than the clip norm
    bounded = [server.bound(plan, one[None].copy(), np.array([0.7]), (3,)) for one in updates]
    parts = [server.addends(plan, one.updates)[0] for one in bounded]
    there, back = (sum(every, np.zeros((1, 3))) for every in (parts, parts[::-1]))
    np.testing.assert_array_equal(there, back)
    assert (there == [[sum(int(one[0, place]) for one in parts) for place in range(3)]]).all()
    assert not np.array_equal(sum(updates, np.zeros(3)), sum(updates[::-1], np.zeros(3)))


def test_a_clip_norm_without_a_guarantee_is_refused():
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=SAMPLINGS[0], clipping=Median())
    with pytest.raises(ValueError, match="must be Flat, PerLayer or Quantile"):
        Plan(mechanism=mechanism, num_users=10, seed=0)
