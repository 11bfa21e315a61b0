"""Observers of bits: what a released number tells beyond its size.

A candidate sum is impossible if no number that the sampler can draw explains what was published. Noise of
float32 on exact sums made most wrong candidates impossible, and told who took part at any ε. Here all that
is released is observed in two neighbouring worlds, and observers that know both sums say which it was.
"""

import os
from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import norm

from fedproof import exact, release
from fedproof.audit import _scale, _weights, bits, canary_pair, noise_in_steps
from fedproof.certificates.confidence import binomial_lower
from fedproof.ensemble import Task, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.ensemble.train import released
from fedproof.federation import Federation
from fedproof.integrations import server
from fedproof.integrations import site as site_of
from fedproof.mechanisms import (
    CohortOnce,
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Local,
    LocalTraining,
    NoisyPartition,
    OneRound,
    PerLayer,
    Poisson,
    Smoothed,
    UserFedAvg,
)
from fedproof.mechanisms.uploads import Anchors, Ball, NonNegative, Pairs, Rows
from fedproof.seeds import SeededGenerator
from fedproof.threat import Relation

FALSE_ALARM = 1e-6
TRIALS = int(os.environ.get("FEDPROOF_BITS_TRIALS", "4000"))
NORM = 0.7


def users_in(world, dim, rng=0):
    """Updates of six users, `(6, dim)`: in world 1 the first sends one clip norm, in world 0 nothing."""
    updates = np.random.default_rng(rng).normal(size=(6, dim)).astype(np.float32)
    updates *= 0.9 * NORM / np.linalg.norm(updates, axis=1, keepdims=True)
    updates[0] *= world
    return updates


def federation_of(dim):
    return Federation(
        features=np.zeros((6, dim // 2 - 1), dtype=np.float32),
        labels=np.zeros(6, dtype=np.int64),
        offsets=np.arange(7),
        test_features=np.zeros((1, dim // 2 - 1), dtype=np.float32),
        test_labels=np.zeros(1, dtype=np.int64),
        class_names=("a", "b"),
        name="two worlds",
    )


def engine(mechanism, dim, *, secure=False, dtype=torch.float64):
    """What the engine publishes in a world, as the sum that it was made of."""

    def published(world, trials):
        updates = torch.from_numpy(users_in(world, dim))

        def say(contributions, state):
            return replace(contributions, updates=updates[None].to(contributions.updates.dtype))

        task = Task(
            federation=federation_of(dim),
            model="logistic",
            mechanism=mechanism,
            local=LocalTraining(),
            attack=say,
            seed=world,
            secure_noise=secure,
            dtype=dtype,
        )
        first = released(replace(task, seed=7)) if mechanism.one_release else None
        found = train_replicas(task, range(trials), first_updates=first)
        return (found.params - start_of(task, 0)).double().numpy() * 6

    return published


def flower(mechanism, dim):
    """What a server publishes after one round, for all trials as replicas of one plan."""

    def published(world, trials):
        plan = server.Plan(mechanism=mechanism, num_users=6, seed=world, replicas=range(trials))
        state = server.start(plan, np.zeros(dim))
        total, below = np.zeros((trials, dim)), np.zeros(trials, dtype=np.int64)
        for update in users_in(world, dim):
            one = np.array(update, dtype=np.float64)[None]
            (whole,) = server.addends(plan, server.bound(plan, one, state.clip_norms[:1], (dim,)).updates)
            total += whole
        noise = server.noise_streams(plan, state)
        after = server.release(plan, state, total, below, np.full(trials, 6), noise)
        return after.params * plan.divisor

    return published


def once(upload, noise):
    """One release of a set: five units, and a sixth that is there or not."""
    mechanism = OneRound(upload=upload, noise_multiplier=noise)
    rng = np.random.default_rng(1)
    sent = (
        rng.integers(upload.classes, size=(6, upload.shape[0]))
        if upload.labels
        else rng.normal(size=(6, *upload.shape))
    )

    def published(world, trials):
        total = release.summed(mechanism, sent[1 - world :])
        rows = []
        for trial in range(trials):
            noisy = total.copy()
            release.add_noise(mechanism, noisy, SeededGenerator(np.random.SeedSequence([world, trial])))
            rows.append(noisy.ravel() * mechanism.grid.step)
        return np.array(rows)

    return published


def own_noise(noise):
    """What one user of local noise sends, who holds something or nothing."""
    mechanism = Local(upload=Ball(features=30, classes=4), noise_multiplier=noise, honest=5)
    held = np.random.default_rng(1).normal(size=(1, 30, 4))

    def published(world, trials):
        numbers = SeededGenerator(np.random.SeedSequence(world))
        return np.array([mechanism.noised(held * world, numbers).ravel() for _ in range(trials)])

    return published


def site(noise, dim):
    own = site_of.Site(ledger="none", clip_norm=NORM, noise_multiplier=noise, delta=1e-3, max_epsilon=1e9)
    held = np.random.default_rng(1).normal(size=dim)
    return lambda world, trials: np.array([site_of.noised(own, held * world) for _ in range(trials)])


def user_fedavg():
    return UserFedAvg(rounds=1, noise_multiplier=3.0, sampling=Everyone(), clip_norm=1e-3)


def rounds(noise, **other):
    return UserFedAvg(rounds=1, noise_multiplier=noise, sampling=Everyone(), clip_norm=NORM, **other)


def grid_of(noise, clip_norm=NORM, widest=0.0):
    return exact.grid_of(noise, clip_norm, widest)


def instances(mechanism):
    """What DP-SGD steps publish: in world 1 an instance pulls as far as it is clipped."""
    clean, pulled = canary_pair(mechanism, Relation.JOIN, num_users=2)

    def published(world, trials):
        task = replace(pulled if world else clean, seed=world, dtype=torch.float64)
        weights = _weights(train_replicas(task, range(trials)).models).reshape(trials, -1)
        return weights * _scale(task) * mechanism.clip_norm

    return published, exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm)


SETS = [
    Ball(features=30, classes=4),
    Rows(features=30, classes=4),
    Pairs(features=30, classes=4),
    NonNegative(anchors=30, classes=4),
    Anchors(anchors=30, classes=4),
]
EXECUTORS = {
    **{
        f"rounds {noise}": (engine(rounds(noise), 100), grid_of(noise), noise) for noise in (0.5, 5.0, 1000.0)
    },
    "rounds, layers": (engine(rounds(3.0, clipping=PerLayer(num_layers=1)), 100), grid_of(3.0), 3.0),
    "rounds, secure": (engine(rounds(3.0), 100, secure=True), grid_of(3.0), 3.0),
    "smoothed": (
        engine(Smoothed(noise_multiplier=5.0, smoothing=20.0, clip_norm=NORM), 100),
        grid_of(20.0, NORM, 5.0),
        20.0,
    ),
    **{f"server {noise}": (flower(rounds(noise), 100), grid_of(noise), noise) for noise in (0.5, 30.0)},
    **{f"once, {each.kind}": (once(each, 20.0), grid_of(20.0, each.norm), 20.0) for each in SETS},
    "once, much noise": (once(SETS[-1], 1000.0), grid_of(1000.0, SETS[-1].norm), 1000.0),
    "local": (
        own_noise(2.0),
        Local(upload=SETS[0], noise_multiplier=2.0, honest=5).grid,
        2.0,
    ),
    "site": (site(4.0, 100), grid_of(4.0), 4.0),
    **{
        f"instances, {mechanism.kind}": (*instances(mechanism), mechanism.noise_multiplier)
        for mechanism in (
            InstanceFedAvg(
                rounds=1,
                local_steps=1,
                noise_multiplier=2.0,
                batch_probability=1.0,
                clip_norm=1e-3,
                population=2,
            ),
            CohortOnce(
                rounds=1,
                sampling=Poisson(probability=1.0),
                noise_multiplier=2.0,
                clip_norm=1e-3,
                pooled=True,
                unit="instance",
            ),
        )
    },
}


# --- observers ----------------------------------------------------------------------------------------------


def floats_explain(rest, grid):
    """How many numbers are a float32 times the noise's standard deviation, which few others are."""
    normal = rest / grid.scale
    return (np.abs(normal - normal.astype(np.float32)) < 2.0**-40 * np.abs(normal)).sum(axis=1)


def low_zeros(rest, grid):
    """Mean number of zeros behind the last one of the numbers in steps of the grid."""
    whole = np.rint(rest).astype(np.int64)
    return np.log2((whole & -whole).clip(1)).mean(axis=1)


def coarse(rest, grid):
    """How near numbers are to multiples of a sixteenth of a step: what a finer grid would leave."""
    return np.abs(rest * 16 - np.rint(rest * 16)).mean(axis=1)


def size(rest, grid):
    """The likelihood of Gaussian noise of these sizes, which the ε is about."""
    return -np.square(rest / grid.scale).sum(axis=1)


def advantage(first, second):
    """Lower confidence limit of how much more often an observer says 1 in world 1, best threshold."""
    half = len(first) // 2
    cuts = np.quantile(np.concatenate([first[:half], second[:half]]), np.linspace(0.02, 0.98, 49))
    gain = [(second[:half] > cut).mean() - (first[:half] > cut).mean() for cut in cuts]
    cut, sign = cuts[int(np.argmax(np.abs(gain)))], np.sign(gain[int(np.argmax(np.abs(gain)))])
    said = [(sign * other[half:] > sign * cut).sum() for other in (first, second)]
    count = len(first) - half
    table = binomial_lower(count, FALSE_ALARM / 2)
    return table[said[1]] - (1 - table[count - said[0]])


OBSERVERS = (floats_explain, low_zeros, coarse, size)


def observed(published, grid, truth, trials=TRIALS):
    """The advantage of each observer, who looks at what is left of a release under either sum."""
    found = {}
    rows = [published(world, trials) / grid.step for world in (0, 1)]
    for observer in OBSERVERS:
        seen = [observer(row - truth[1], grid) - observer(row - truth[0], grid) for row in rows]
        found[observer.__name__] = advantage(*seen)
    return found


def truths(name, monkeypatch):
    published, grid, _ = EXECUTORS[name]
    with monkeypatch.context() as patch:
        patch.setattr(exact, "normals", lambda words, scale, further: words * 0.0)
        return [published(world, 1)[0] / grid.step for world in (0, 1)]


@pytest.mark.parametrize("name", EXECUTORS)
def test_nobody_sees_more_than_epsilon_allows(name, monkeypatch):
    published, grid, noise = EXECUTORS[name]
    truth = truths(name, monkeypatch)
    rows = published(0, 50) / grid.step
    assert np.abs(rows - np.rint(rows)).max() < 2.0**-20  # no number is off the grid, whatever the sum
    assert all(np.abs(each - np.rint(each)).max() < 2.0**-20 for each in truth)
    apart = np.linalg.norm(truth[1] - truth[0]) / grid.scale  # in standard deviations
    assert 0 < apart <= 1 / noise * (1 + 1e-9)
    bound = 2 * norm.cdf(apart / 2) - 1
    for observer, gain in observed(published, grid, truth).items():
        assert gain <= bound, observer


# --- planted mistakes, which the same observers see ---------------------------------------------------------


def float32_noise(monkeypatch):
    """Normal numbers of float32 on an exact sum, as frameworks draw them."""
    rng = np.random.default_rng(0)

    def drawn(words, scale, further):
        normal = torch.from_numpy(rng.standard_normal(tuple(words.shape), dtype=np.float32).astype(float))
        return normal.numpy() * scale if isinstance(words, np.ndarray) else normal * scale

    monkeypatch.setattr(exact, "normals", drawn)


def fixed_grid(monkeypatch):
    """A grid of 2^-40, whatever the noise: doubles have too few digits below it."""
    real = exact.grid_of

    def fixed(noise_multiplier, norm, widest=0.0):
        found = real(noise_multiplier, norm, widest)
        step = 2.0**-40 + 0 * found.step
        return exact.Grid(step=step, scale=found.scale * found.step / step)

    rng = np.random.default_rng(0)

    def drawn(words, scale, further):
        return np.rint(rng.standard_normal(words.shape) * scale)

    monkeypatch.setattr(exact, "grid_of", fixed)
    monkeypatch.setattr(exact, "normals", drawn)


@pytest.mark.parametrize("name", ["rounds 5.0", "rounds 1000.0", "server 30.0", "site"])
def test_float32_noise_is_seen(name, monkeypatch):
    published, grid, noise = EXECUTORS[name]
    truth = truths(name, monkeypatch)
    float32_noise(monkeypatch)
    found = observed(published, grid, truth, 400)
    assert found["floats_explain"] > 0.5
    assert found["floats_explain"] > 2 * norm.cdf(1 / noise / 2) - 1


MECHANISMS = {
    "users": (user_fedavg(), 4),
    "groups": (NoisyPartition(groups=500, rounds=1, noise_multiplier=3.0, clip_norm=1e-3), 500),
    "drawn instances": (
        CohortOnce(
            rounds=1,
            sampling=Poisson(probability=0.5),
            noise_multiplier=3.0,
            clip_norm=1e-3,
            pooled=True,
            unit="instance",
        ),
        4,
    ),
    "FedSGD": (
        InstanceFedSGD(
            rounds=1,
            noise_multiplier=3.0,
            sampling=FixedSize(cohort=2, users=4),
            batch_probability=0.5,
            clip_norm=1e-3,
        ),
        4,
    ),
    "FedAvg": (
        InstanceFedAvg(rounds=1, local_steps=1, noise_multiplier=3.0, batch_probability=0.5, clip_norm=1e-3),
        4,
    ),
}


@pytest.mark.parametrize("name", MECHANISMS)
def test_the_auditor_of_bits_finds_nothing(name):
    mechanism, users = MECHANISMS[name]
    assert bits(noise_in_steps(mechanism, num_users=users, num_replicas=500)) > FALSE_ALARM


@pytest.mark.parametrize("name", MECHANISMS)
@pytest.mark.parametrize("mistake", [float32_noise, fixed_grid])
def test_the_auditor_of_bits_finds_what_was_planted(name, mistake, monkeypatch):
    mechanism, users = MECHANISMS[name]
    step = exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm).step
    mistake(monkeypatch)
    assert bits(noise_in_steps(mechanism, step=float(step), num_users=users, num_replicas=500)) < FALSE_ALARM


def test_the_auditor_of_bits_sees_pairs_that_share_digits():
    words = SeededGenerator(np.random.SeedSequence(0)).words(200 * 64).reshape(200, 64) % 2**30
    assert bits(words.astype(float)) > FALSE_ALARM
    words[:, 8::16] = words[:, ::16] + 2**20  # as two numbers with one radius would, eight places on
    assert bits(words.astype(float)) < FALSE_ALARM


def test_a_million_numbers_of_float32_hide_the_sum():
    """No published number is impossible under the sum of the wrong world."""
    dim, noise = 10**6, 10.0
    published = flower(rounds(noise), dim)
    grid = grid_of(noise)
    noisy = published(0, 1)[0] / grid.step
    for world in (0, 1):
        total = np.zeros(dim)
        for update in users_in(world, dim):
            one = np.array(update, dtype=np.float64)[None]
            total += exact.whole(one, exact.factors(exact.lengths(one, (dim,)), NORM, grid.step, dim))[0]
        rest = noisy - total
        assert np.abs(rest - np.rint(rest)).max() < 2.0**-20
