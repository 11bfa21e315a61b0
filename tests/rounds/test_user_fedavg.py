from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproof.mechanisms import FedAvg, FixedSize, Poisson, UserFedAvg
from fedproof.rounds.user_fedavg import play

TINY = 1e-9


def mechanism(**changes):
    values = {"rounds": 2, "noise_multiplier": TINY, "sampling": Poisson(probability=0.3), "clip_norm": 1.0}
    return UserFedAvg(**{**values, **changes})


def test_the_sum_is_divided_by_the_expected_cohort_never_by_the_realised(setting, begin, constant):
    state, streams = begin(mechanism(), range(50))
    after, report = play(mechanism(), setting, state, streams, constant(0.5))
    sizes = streams.cohorts[:, 0].sum(1)
    assert len(set(sizes.tolist())) > 3
    np.testing.assert_allclose(after.params[:, 0], sizes * 0.5 / 3, rtol=1e-5, atol=1e-6)
    assert report.cohort_size.tolist() == sizes.tolist()
    np.testing.assert_allclose(report.mean_norm[sizes > 0], 0.5, rtol=1e-6)
    assert float(report.clipped_share.sum()) == 0


def test_an_empty_cohort_leaves_noise_only(setting, begin, constant):
    state, streams = begin(mechanism(noise_multiplier=1.0))
    nobody = replace(streams, cohorts=np.zeros_like(streams.cohorts))
    shared = constant(5.0)
    first, report = play(mechanism(noise_multiplier=1.0), setting, state, nobody, shared)
    assert first.params.std() > 0.1
    assert report.cohort_size.tolist() == [0] * 4
    second, _ = play(mechanism(noise_multiplier=1.0), setting, first, nobody, None)
    assert second.params.isfinite().all()
    assert second.round == 2


@pytest.mark.parametrize("value", [1e30, float("inf"), float("nan"), -1e38])
def test_nothing_an_attack_hands_in_escapes_the_bound(setting, begin, constant, value):
    def attack(contributions, state):
        return replace(contributions, updates=torch.full_like(contributions.updates, value))

    fixed = mechanism(sampling=FixedSize(cohort=4, users=10))
    state, streams = begin(fixed)
    after, report = play(fixed, replace(setting, attack=attack), state, streams, constant(0.1))
    # Four members of norm at most one, divided by four.
    assert (after.params.double().norm(dim=1) <= 1 + 1e-6).all()
    assert report.non_finite.tolist() == ([0] * 4 if np.isfinite(value) else [4] * 4)


def test_fedavg_is_the_plain_average(setting, begin, constant):
    plain = FedAvg(rounds=1, sampling=FixedSize(cohort=4, users=10))
    state, streams = begin(mechanism(rounds=1, sampling=plain.sampling))
    after, _ = play(plain, setting, state, streams, constant(8.0))
    np.testing.assert_allclose(after.params[:, 0], 8.0, rtol=1e-6)
    assert after.params[:, 1:].eq(0).all()


def test_shared_updates_may_be_cut_to_those_drawn(setting, begin):
    state, streams = begin(mechanism(sampling=Poisson(probability=0.1)), range(3))
    rng = torch.Generator().manual_seed(0)
    shared = torch.randn(10, setting.model.layout.dim, generator=rng)
    after, _ = play(mechanism(sampling=Poisson(probability=0.1)), setting, state, streams, shared)
    norms = shared.norm(dim=1, keepdim=True).clamp(min=1)
    expected = torch.from_numpy(streams.cohorts[:, 0]).float() @ (shared / norms)
    torch.testing.assert_close(after.params, expected, rtol=1e-4, atol=1e-5)
