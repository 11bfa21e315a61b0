"""Cohorts drawn once, with noise: how much of it, and what a drawn unit adds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fedproof.ensemble import Task, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.mechanisms import CohortOnce, FixedSize, LocalTraining, NoisyPartition, Poisson
from fedproof.models import build
from fedproof.rounds import executor_of
from fedproof.seeds import cohorts_of, groups_of

FALSE_ALARM = 1e-6
HYBRID = CohortOnce(
    rounds=2,
    sampling=FixedSize(cohort=9, users=40),
    pooled=True,
    unit="instance",
    noise_multiplier=0.5,
    clip_norm=0.2,
)


def test_with_noise_members_are_clipped_and_the_divisor_is_fixed(setting, begin, constant):
    mechanism = CohortOnce(rounds=1, sampling=Poisson(probability=0.3), noise_multiplier=1e-9, clip_norm=0.5)
    state, streams = begin(mechanism, range(30))
    after, report = executor_of(mechanism)(mechanism, setting, state, streams, constant(8.0))
    np.testing.assert_allclose(after.params[:, 0], report.cohort_size * 0.5 / 3, rtol=1e-5, atol=1e-6)


def trained(federation, mechanism, replicas=range(30), **local):
    task = Task(
        federation=federation,
        model=build("mlp", federation, hidden=(40,)),
        mechanism=mechanism,
        local=LocalTraining(**{"batch_size": 3, "learning_rate": 0.5} | local),
        dtype=torch.float64,
    )
    found = train_replicas(task, replicas)
    return found.params - start_of(task, 0), found.diagnostics


def test_noise_on_drawn_instances_has_the_stated_scale(federation):
    # Practically nobody is drawn, so that a step is noise alone, divided by the expected cohort all the same.
    chance, rounds = 1e-9, 4
    mechanism = replace(HYBRID, rounds=rounds, sampling=Poisson(probability=chance))
    moved, diagnostics = trained(federation, mechanism)
    assert not diagnostics["cohort_size"].any()
    std = 0.5 * np.sqrt(rounds) * mechanism.noise_multiplier * mechanism.clip_norm / (40 * chance)
    low, high = chi2.interval(1 - FALSE_ALARM, df=moved.numel())
    statistic = float((moved / std).square().sum())
    assert low < statistic < high
    assert statistic * 0.95**2 < low  # noise 5 % too small would be caught


@pytest.mark.parametrize("sampling", [Poisson(probability=0.3), FixedSize(cohort=9, users=40)])
def test_drawn_instances_are_clipped_one_by_one_and_the_divisor_is_fixed(federation, sampling):
    # Equal instances pull the same way: their clipped gradients add up, whatever batches they come in.
    same = replace(
        federation, features=np.ones_like(federation.features), labels=np.zeros_like(federation.labels)
    )
    mechanism = replace(HYBRID, rounds=1, sampling=sampling, noise_multiplier=1e-9, clip_norm=0.01)
    moved, diagnostics = trained(same, mechanism)
    drawn = cohorts_of(mechanism, federation.which, 0, range(30))[:, 0].sum(axis=1)
    expected = 12 if isinstance(sampling, Poisson) else 9
    np.testing.assert_allclose(moved.norm(dim=1), 0.5 * 0.01 * drawn / expected, rtol=1e-6)
    assert np.array_equal(diagnostics["cohort_size"][:, 0], drawn)
    assert np.all(diagnostics["clipped_share"] == 1)
    assert np.all(diagnostics["mean_norm"] > 0.01)
    assert np.all(diagnostics["clip_norm"] == 0.01)


def test_batches_only_say_how_much_is_held_at_a_time(federation):
    few, all_at_once = (trained(federation, HYBRID, batch_size=size) for size in (2, 1000))
    # A batch decides, besides, how much less than the clip norm its instances have: 1e-11 of it at most.
    np.testing.assert_allclose(few[0], all_at_once[0], rtol=1e-9, atol=1e-11 * HYBRID.clip_norm)
    for name, values in few[1].items():
        np.testing.assert_allclose(values, all_at_once[1][name], rtol=1e-9, err_msg=name)
    again = trained(federation, HYBRID, epochs=7, momentum=0.9, shift=0)  # a step has neither
    assert torch.equal(again[0], trained(federation, HYBRID)[0])
    assert not torch.allclose(again[0], trained(federation, HYBRID, weight_decay=0.1)[0])


def test_an_instance_whose_gradient_is_not_finite_counts_as_zero(federation):
    features = federation.features.copy()
    features[17] = np.nan
    mechanism = replace(HYBRID, rounds=1)
    moved, diagnostics = trained(replace(federation, features=features), mechanism)
    drawn = cohorts_of(mechanism, federation.which, 0, range(30))[:, 0, 17]
    assert 0 < drawn.sum() < 30
    assert moved.isfinite().all()
    assert np.array_equal(diagnostics["non_finite"][:, 0], drawn)


# --- disjoint groups with noise -----------------------------------------------------------------------------

GROUPED = NoisyPartition(groups=4, rounds=1, noise_multiplier=0.5, clip_norm=0.2, population=20)


def test_groups_have_noise_of_the_stated_scale_each_its_own(federation):
    mechanism = replace(GROUPED, rounds=4)
    moved, diagnostics = trained(federation, mechanism, range(4), learning_rate=1e-12)  # noise alone
    std = np.sqrt(4) * mechanism.noise_multiplier * mechanism.clip_norm / (20 / 4)
    low, high = chi2.interval(1 - FALSE_ALARM, df=moved.numel())
    statistic = float((moved / std).square().sum())
    assert low < statistic < high
    assert statistic * 0.8**2 < low  # noise a fifth too small would be caught
    assert float(torch.corrcoef(moved).fill_diagonal_(0).abs().max()) < 0.3
    assert diagnostics["cohort_size"].sum(axis=0).tolist() == [10] * 4


def joint_shift(federation, other, mechanism, **local):
    """How far all models together lie apart on two data sets, in standard deviations of their noise."""
    before, after = (trained(data, mechanism, range(4), **local)[0] for data in (federation, other))
    steps = mechanism.rounds * (local["learning_rate"] if mechanism.pooled else 1)
    noise_std = steps * mechanism.noise_multiplier * mechanism.clip_norm / mechanism.divisor(0)
    return (after - before).norm(dim=1) / noise_std


def without(federation, user):
    """The federation after a user has left."""
    ids = np.arange(10) if federation.user_ids is None else federation.user_ids
    begin, end = federation.offsets[user : user + 2]
    rows = np.r_[0:begin, end : len(federation.labels)]
    return replace(
        federation,
        features=federation.features[rows],
        labels=federation.labels[rows],
        offsets=np.concatenate([[0], np.cumsum(np.delete(federation.sizes, user))]),
        user_ids=np.delete(ids, user),
        instance_ids=federation.which[rows],
    )


@pytest.mark.parametrize("user", range(10))
def test_one_user_shifts_all_models_together_by_one_over_the_noise_multiplier_at_most(federation, user):
    known = replace(federation, user_ids=np.arange(10), instance_ids=federation.which)
    left = without(known, user)
    poisoned = known.features.copy()
    poisoned[known.offsets[user] : known.offsets[user + 1]] = 1e6
    replaced = replace(known, features=poisoned)
    for other, clips in ((left, 1), (replaced, 2)):
        shift = joint_shift(known, other, GROUPED, learning_rate=50.0, epochs=3)
        assert 0.1 < float(shift.norm()) <= clips / GROUPED.noise_multiplier * (1 + 1e-9)
        assert shift.count_nonzero() == 1
        assert shift.argmax() == groups_of(4, np.arange(10), 0)[user]


def test_a_user_in_two_groups_is_found(federation, monkeypatch):
    def twice(mechanism, ids, seed, replicas, *, secure=False):
        chosen = cohorts_of(mechanism, ids, seed, replicas, secure=secure)
        return chosen | np.roll(chosen, 1, axis=0)

    monkeypatch.setattr("fedproof.ensemble.train.cohorts_of", twice)
    known = replace(federation, user_ids=np.arange(10), instance_ids=federation.which)
    shift = joint_shift(known, without(known, 3), GROUPED, learning_rate=50.0, epochs=3)
    assert float(shift.norm()) > 1.2 / GROUPED.noise_multiplier
    assert shift.count_nonzero() == 2


def test_one_instance_shifts_one_step_of_one_model(federation):
    known = replace(federation, user_ids=np.arange(10), instance_ids=federation.which)
    mechanism = replace(GROUPED, pooled=True, unit="instance", population=40)
    features = known.features.copy()
    features[17] = 1e6
    shift = joint_shift(known, replace(known, features=features), mechanism, learning_rate=0.5)
    assert 0.1 < float(shift.norm()) <= 2 / mechanism.noise_multiplier * (1 + 1e-9)
    assert shift.count_nonzero() == 1


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"groups": 1}, "groups = 1 must be at least 2"),
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0 must be a positive number"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0 must be a positive number"),
        ({"pooled": True}, "must be 0 for pooled training of users"),
        ({"unit": "instance"}, "pooled = False must be True for unit = 'instance'"),
        ({"population": 0}, "population = 0 must be a whole number of at least 1"),
    ],
)
def test_noisy_groups_that_cannot_be_are_refused(changes, said):
    with pytest.raises(ValueError, match=said):
        replace(GROUPED, **changes)
