"""Cohorts drawn once, with noise: how much of it, and what a drawn unit adds."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fedproof.ensemble import Task, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.mechanisms import CohortOnce, FixedSize, LocalTraining, Poisson
from fedproof.models import build
from fedproof.rounds import play
from fedproof.rounds.randomness import cohorts_of

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
    after, report = play(mechanism, setting, state, streams, constant(8.0))
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
    np.testing.assert_allclose(few[0], all_at_once[0], rtol=1e-9)
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
