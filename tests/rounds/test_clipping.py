"""Bounds and noise. FALSE_ALARM is the chance that right noise fails its statistical tests."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import chi2
from scipy.stats import norm as normal

from fedproof import exact
from fedproof.ensemble import Task, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import (
    Everyone,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    Median,
    PerLayer,
    PerLayerMedian,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.models.model import ClippedGradient
from fedproof.rounds import executor_of
from fedproof.rounds.clipping import Bounded, bound, next_clip_norms, released, unbounded
from fedproof.rounds.instance import Draw, Tally, clipped_sums
from fedproof.rounds.randomness import Purpose, Stream
from fedproof.rounds.state import contributions_of, report

FALSE_ALARM = 1e-6
CPU = torch.device("cpu")
LAYERS = (3, 1, 4)
CLIPPINGS = [
    Flat(),
    PerLayer(num_layers=3),
    Median(),
    PerLayerMedian(num_layers=3),
    Quantile(),
]


anything = st.floats(width=32) | st.sampled_from([math.nan, math.inf, -math.inf, 3e38, -3e38, 1e-45, 0.0])


def contributions(updates, members=None):
    updates = torch.as_tensor(updates)
    if members is None:
        members = np.tile(np.arange(updates.shape[1]), (len(updates), 1))
    return contributions_of(updates, np.asarray(members), LAYERS)


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
@given(
    updates=arrays(np.float32, (2, 3, 8), elements=anything),
    clip_norm=st.floats(1e-3, 1e3),
)
@settings(derandomize=True, max_examples=200)
def test_no_update_is_longer_than_its_threshold(clipping, updates, clip_norm):
    found = bound(contributions(updates), clipping, torch.full((2,), clip_norm, dtype=torch.float64))
    bounded = found.contributions.bounded().double()
    assert bounded.isfinite().all()
    layered = found.thresholds.shape[1] > 1
    parts = torch.split(bounded, list(LAYERS), dim=2) if layered else (bounded,)
    for part, threshold in zip(parts, found.thresholds.unbind(1), strict=True):
        # A median may be so small that float32 has no number below it.
        assert (part.norm(dim=2) <= threshold.unsqueeze(1) + 1e-40).all()
    if not isinstance(clipping, Median | PerLayerMedian):
        assert (bounded.norm(dim=2) <= clip_norm * clipping.sensitivity).all()


@pytest.mark.parametrize("clipping", CLIPPINGS, ids=repr)
@pytest.mark.parametrize("poison", [math.nan, math.inf, -math.inf])
def test_a_non_finite_update_counts_as_zero_and_is_reported(clipping, poison):
    updates = torch.ones(1, 3, 8)
    updates[0, 1, 5] = poison
    found = bound(contributions(updates), clipping, torch.ones(1, dtype=torch.float64))
    assert found.contributions.bounded()[0, 1].eq(0).all()
    assert report(found).non_finite.tolist() == [1]
    assert unbounded(contributions(updates)).contributions.bounded()[0, 1].eq(0).all()


def test_short_updates_keep_their_length_and_long_ones_their_direction():
    updates = torch.zeros(1, 2, 8)
    updates[0, 0, 0], updates[0, 1, 1] = 0.5, -300.0
    bounded = bound(
        contributions(updates), Flat(), torch.ones(1, dtype=torch.float64)
    ).contributions.bounded()
    torch.testing.assert_close(bounded[0, 0, 0], torch.tensor(0.5), rtol=2e-6, atol=0)
    torch.testing.assert_close(bounded[0, 1, 1], torch.tensor(-1.0), rtol=2e-6, atol=0)


def test_a_huge_update_is_clipped_not_lost():
    updates = torch.full((1, 1, 8), 3e38)
    bounded = bound(
        contributions(updates), Flat(), torch.ones(1, dtype=torch.float64)
    ).contributions.bounded()
    assert float(bounded.double().norm()) > 0.999


@pytest.mark.parametrize(
    ("norms", "expected"), [((1.0, 2.0, 9.0), 2.0), ((1.0, 2.0, 3.0, 9.0), 2.5), ((), 0.7)]
)
def test_median_of_the_cohort_or_the_fixed_norm_if_it_is_empty(norms, expected):
    updates = torch.zeros(1, 5, 8)
    members = [[*range(len(norms)), *[-1] * (5 - len(norms))]]
    for slot, norm in enumerate(norms):
        updates[0, slot, 2] = norm
    found = bound(contributions(updates, members), Median(), torch.full((1,), 0.7, dtype=torch.float64))
    assert float(found.thresholds) == pytest.approx(expected)


class Still:
    """A stream whose normal numbers are 0: the quantile of one half."""

    def words_(self, out):
        out.fill_(torch.iinfo(torch.int64).max)

    def further(self, word, place):
        raise AssertionError("nothing is left open in the middle")


def quantile_step(norms, clip_norm, clipping, cohort=4.0) -> float:
    updates = torch.zeros(1, len(norms), 8)
    updates[0, :, 0] = torch.tensor(norms)
    before = torch.full((1,), clip_norm, dtype=torch.float64)
    found: Bounded = bound(contributions(updates), clipping, before)
    return float(next_clip_norms(found, clipping, before, [Still()], cohort))


def test_quantile_step_closed_form():
    # Three of four norms are below 1: share 3/4, C <- C exp(-0.2 (0.75 - 0.5)).
    found = quantile_step((0.1, 0.2, 0.3, 5.0), 1.0, Quantile(target=0.5, learning_rate=0.2))
    assert found == pytest.approx(math.exp(-0.05), rel=1e-12)


def test_quantile_step_divides_by_the_expected_cohort():
    # Two members of an expected four, both below: ((1/2 + 1/2) / 4 + 1/2) = 3/4.
    found = quantile_step((0.1, 0.2), 1.0, Quantile(target=0.5, learning_rate=0.2))
    assert found == pytest.approx(math.exp(-0.05), rel=1e-12)


@given(norms=st.lists(st.floats(0, 10), min_size=2, max_size=6), changed=st.floats(0, 10))
@settings(derandomize=True, max_examples=50)
def test_one_member_moves_the_sum_of_bits_by_at_most_one(norms, changed):
    clipping = Quantile(learning_rate=1.0)
    steps = [
        math.log(quantile_step(norms_, 1.0, clipping)) for norms_ in (norms, [changed, *norms[1:]], norms[1:])
    ]
    # log C moves by -η · bits / cohort: replacing a member moves the bits by 1, leaving one out by 1/2.
    assert abs(steps[0] - steps[1]) * 4 <= 1 + 1e-9
    assert abs(steps[0] - steps[2]) * 4 <= 0.5 + 1e-9


def assert_unit_variance(noise):
    statistic, count = float(noise.double().square().sum()), noise.numel()
    low, high = chi2.interval(1 - FALSE_ALARM, df=count)
    assert low < statistic < high
    assert statistic * 0.9**2 < low  # noise 10 % too small would be caught
    assert abs(float(noise.double().mean())) * count**0.5 < normal.isf(FALSE_ALARM / 2)


def user_fedavg(clipping, sampling):
    return UserFedAvg(rounds=1, noise_multiplier=1.7, sampling=sampling, clip_norm=0.3, clipping=clipping)


@pytest.mark.parametrize("sampling", [Poisson(probability=0.3), FixedSize(cohort=3, users=10), Everyone()])
@pytest.mark.parametrize("clipping", [Flat(), PerLayer(num_layers=2)])
def test_a_round_adds_noise_of_the_stated_scale(setting, begin, clipping, sampling):
    mechanism = user_fedavg(clipping, sampling)
    state, streams = begin(mechanism, range(40))
    still = torch.zeros(10, setting.model.layout.dim)
    after, _ = executor_of(mechanism)(mechanism, setting, state, streams, still)
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
    after, _ = executor_of(mechanism)(mechanism, still, state, streams)
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
    nobody = contributions_of(torch.zeros(2, 1, 20_000), np.zeros((2, 1), dtype=np.int64), (10_000, 10_000))
    thresholds = torch.tensor([[1.0, 3.0], [2.0, 0.0]], dtype=torch.float64)
    found = replace(bound(nobody, PerLayer(num_layers=2), torch.ones(2)), thresholds=thresholds)
    total, step = released(found, 1.0, streams, 1)
    noise = total * step
    assert_unit_variance(noise[0, :10_000])
    assert_unit_variance(noise[0, 10_000:] / 3)
    assert_unit_variance(noise[1, :10_000] / 2)
    assert noise[1, 10_000:].eq(0).all()
    correlation = float((noise[0, :10_000] * noise[1, :10_000] / 2).sum()) / 100
    assert abs(correlation) < normal.isf(FALSE_ALARM / 2) * 1.1


# --- sums of many -------------------------------------------------------------------------------------------


def on_the_edge(crowd):
    """One number each: `crowd` that add up to a power of two of clip norms, as many that take little off it.

    Above the power of two a sum of float32 has steps too wide for the little ones.
    """
    little = -0.99 * 2.0 ** (math.log2(crowd) - 1 - 23)
    return torch.tensor([0.0, *[1.0] * crowd, *[little] * crowd])


def test_a_user_moves_a_sum_of_thousands_by_its_clip_norm_and_no_more():
    # In float32 the sum of 8192 moved by 2.0 clip norms, that of 16384 by 5.0.
    crowd = 4096
    updates = on_the_edge(crowd)
    federation = Federation(
        features=np.zeros((len(updates), 1), dtype=np.float32),
        labels=np.zeros(len(updates), dtype=np.int64),
        offsets=np.arange(len(updates) + 1),
        test_features=np.zeros((1, 1), dtype=np.float32),
        test_labels=np.zeros(1, dtype=np.int64),
        class_names=("a", "b"),
        name="edge",
    )

    def moved(first):
        def say(contributions, state):
            wanted = torch.zeros_like(contributions.updates)
            wanted[0, :, 0] = updates
            wanted[0, 0, 0] = first
            return replace(contributions, updates=wanted)

        mechanism = UserFedAvg(rounds=1, noise_multiplier=1e-3, sampling=Everyone(), population=len(updates))
        task = Task(
            federation=federation, model="logistic", mechanism=mechanism, local=LocalTraining(), attack=say
        )
        return float(train_replicas(task, range(1)).params[0, 0])

    assert 0.99 < (moved(1.0) - moved(0.0)) * len(updates) < 1.001
    assert 0.99 < (moved(0.0) - moved(-1.0)) * len(updates) < 1.001


@pytest.fixture
def summed_instances(setting):
    """The sum over instances whose clipped gradients are given numbers, in batches of given widths."""

    class Said(_Silent):
        """A model whose gradients are the features times clip norms, added up one by one in their type."""

        def clipped_gradient(self, params, inputs, labels, mask, clip_norm):
            told = (inputs[:, :, :1] * clip_norm * mask.unsqueeze(2)).numpy()
            total = torch.zeros_like(params)
            total[:, :1] = torch.from_numpy(np.add.accumulate(told, axis=1)[:, -1])
            there = torch.ones_like(mask)
            return ClippedGradient(total=total, norms=torch.zeros_like(inputs[:, :, 0]), finite=there)

    def total(numbers, widths):
        labels = torch.zeros(len(numbers), dtype=torch.int64)
        params = torch.zeros(1, setting.model.layout.dim)
        return clipped_sums(
            replace(
                setting,
                model=Said(setting.model),
                users=replace(setting.users, features=numbers.unsqueeze(1), labels=labels),
            ),
            params,
            Draw.of(torch.arange(len(numbers)), torch.tensor([len(numbers)])),
            clip_norm=1.0,
            grid=exact.grid_of(0.0, 1.0),
            tally=Tally(1, params),
            lane=np.zeros(1, dtype=np.int64),
            pieces=(1, 0.0),
            widths=widths,
        )[0, 0].item()

    return total


@pytest.mark.parametrize("widths", [(1, 1), (4100, 4100), (4100, 64), (2000, 1000), (1, 4096)])
def test_an_instance_moves_a_sum_of_thousands_by_its_clip_norm_and_no_more(summed_instances, widths):
    # In batches as wide as was asked for it moved the sum by 1.25 clip norms.
    numbers = on_the_edge(2048)
    without = summed_instances(numbers, widths)
    assert without == pytest.approx(float(numbers.double().sum()), rel=1 / 250)
    numbers[0] = 1
    assert 1 - 1 / 250 < summed_instances(numbers, widths) - without <= 1


def test_an_instance_is_clipped_to_so_much_less_as_a_batch_may_round(summed_instances):
    room = 256 * (256 + 3) * 2.0**-24
    crowd, little = on_the_edge(64)[:65], on_the_edge(64)[65:]
    rest = torch.tensor([64 * room])  # up to the power of two, which clipped ones miss
    numbers = torch.cat([crowd, rest, little * (1 + room)])
    without = summed_instances(numbers, (256, 256))
    numbers[0] = 1
    moved = summed_instances(numbers, (256, 256)) - without
    assert 1 / (1 + room) + 2**-13 < moved <= 1
