"""Statistical tests of the noise: FALSE_ALARM is the chance that a right mechanism fails."""

from dataclasses import replace

import pytest
import torch
from scipy.stats import chi2, norm

from fedproof.mechanisms import (
    Everyone,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    PerLayer,
    Poisson,
    UserFedAvg,
)
from fedproof.rounds import play
from fedproof.rounds.clipping import add_noise
from fedproof.rounds.randomness import Purpose, Stream

FALSE_ALARM = 1e-6
CPU = torch.device("cpu")


def assert_unit_variance(noise):
    statistic, count = float(noise.double().square().sum()), noise.numel()
    low, high = chi2.interval(1 - FALSE_ALARM, df=count)
    assert low < statistic < high
    assert statistic * 0.9**2 < low  # noise 10 % too small would be caught
    assert abs(float(noise.double().mean())) * count**0.5 < norm.isf(FALSE_ALARM / 2)


def user_fedavg(clipping, sampling):
    return UserFedAvg(rounds=1, noise_multiplier=1.7, sampling=sampling, clip_norm=0.3, clipping=clipping)


@pytest.mark.parametrize("sampling", [Poisson(probability=0.3), FixedSize(cohort=3, users=10), Everyone()])
@pytest.mark.parametrize("clipping", [Flat(), PerLayer(num_layers=2)])
def test_a_round_adds_noise_of_the_stated_scale(setting, begin, clipping, sampling):
    mechanism = user_fedavg(clipping, sampling)
    state, streams = begin(mechanism, range(40))
    still = torch.zeros(10, setting.model.layout.dim)
    after, _ = play(mechanism, setting, state, streams, still)
    # Users that change nothing leave σS · noise, divided by the expected cohort.
    cohort = 10.0 if isinstance(sampling, Everyone) else 3.0
    assert_unit_variance(after.params * cohort / (1.7 * 0.3))


@pytest.mark.parametrize(
    ("mechanism", "members"),
    [
        (
            InstanceFedAvg(
                rounds=1, local_steps=1, noise_multiplier=1.7, batch_probability=1.0, clip_norm=1e-6
            ),
            10,
        ),
        (
            InstanceFedSGD(
                rounds=1,
                noise_multiplier=1.7,
                batch_probability=0.5,
                sampling=FixedSize(cohort=4, users=10),
                clip_norm=1e-6,
            ),
            4,
        ),
    ],
    ids=["fedavg", "fedsgd"],
)
def test_users_add_noise_of_the_stated_scale(setting, begin, mechanism, members):
    state, streams = begin(mechanism, range(40))
    still = replace(setting, model=_Silent(setting.model))
    after, _ = play(mechanism, still, state, streams)
    # A member's step is -η/L · σS · noise; the mean of m members has standard deviation that over √m.
    step = setting.local.learning_rate / setting.local.batch_size * 1.7 * 1e-6
    assert_unit_variance(after.params * members**0.5 / step)


class _Silent:
    """A model whose gradients are zero."""

    def __init__(self, model):
        self.layout = model.layout
        self._model = model

    def clipped_gradient(self, params, inputs, labels, mask, clip_norm):
        found = self._model.clipped_gradient(params, inputs, labels, mask, clip_norm)
        return replace(found, total=torch.zeros_like(found.total))


def test_replicas_and_layers_have_noise_of_their_own():
    streams = [Stream(0, Purpose.NOISE, replica, CPU) for replica in range(2)]
    noise = add_noise(
        torch.zeros(2, 20_000), torch.tensor([[1.0, 3.0], [2.0, 0.0]]), (10_000, 10_000), streams
    )
    assert_unit_variance(noise[0, :10_000])
    assert_unit_variance(noise[0, 10_000:] / 3)
    assert_unit_variance(noise[1, :10_000] / 2)
    assert noise[1, 10_000:].eq(0).all()
    correlation = float((noise[0, :10_000] * noise[1, :10_000] / 2).sum()) / 100
    assert abs(correlation) < norm.isf(FALSE_ALARM / 2) * 1.1
