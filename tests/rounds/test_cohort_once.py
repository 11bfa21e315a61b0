"""Cohorts drawn once: who takes part, how much, and that nobody else matters."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2

from fedproof.ensemble import Task, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, LocalTraining, Partition, Poisson
from fedproof.models import build
from fedproof.rounds import play
from fedproof.rounds.local import Augment
from fedproof.rounds.randomness import cohorts_of, groups_of
from fedproof.rounds.state import class_balance

FALSE_ALARM = 1e-6
FIXED = FixedSize(cohort=4, users=10)


@pytest.mark.parametrize("sampling", [FIXED, Poisson(probability=0.3)])
def test_the_same_users_take_part_in_every_round(sampling):
    chosen = cohorts_of(Bagging(rounds=3, sampling=sampling), np.arange(10), 0, range(50))
    assert chosen.shape == (50, 3, 10)
    assert np.all(chosen == chosen[:, :1])
    assert len({tuple(row) for row in chosen[:, 0]}) > 10


def constant(setting, norm):
    updates = torch.zeros(10, setting.model.layout.dim)
    updates[:, 0] = norm
    return updates


def test_without_noise_the_members_mean_is_taken(setting, begin):
    mechanism = Bagging(rounds=1, sampling=Poisson(probability=0.3))
    state, streams = begin(mechanism, range(30))
    after, report = play(mechanism, setting, state, streams, constant(setting, 8.0))
    some = report.cohort_size > 0
    np.testing.assert_allclose(after.params[some, 0], 8.0, rtol=1e-6)
    assert after.params[~some].eq(0).all()


def test_with_noise_members_are_clipped_and_the_divisor_is_fixed(setting, begin):
    mechanism = CohortOnce(rounds=1, sampling=Poisson(probability=0.3), noise_multiplier=1e-9, clip_norm=0.5)
    state, streams = begin(mechanism, range(30))
    after, report = play(mechanism, setting, state, streams, constant(setting, 8.0))
    np.testing.assert_allclose(after.params[:, 0], report.cohort_size * 0.5 / 3, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("pooled", [False, True])
@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_whoever_is_not_drawn_does_not_matter(federation, pooled, noise):
    if pooled and noise:
        pytest.skip("pooled training has no noise")
    mechanism = (
        CohortOnce(rounds=2, sampling=FIXED, noise_multiplier=noise)
        if noise
        else Bagging(rounds=2, sampling=FIXED, pooled=pooled)
    )
    task = Task(
        federation=federation,
        model=build("mlp", federation, hidden=(4,)),
        mechanism=mechanism,
        local=LocalTraining(epochs=2, batch_size=3, momentum=0.5),
    )
    user = 3
    poisoned = federation.features.copy()
    poisoned[federation.offsets[user] : federation.offsets[user + 1]] = 100.0
    attacked = replace(task, federation=replace(federation, features=poisoned))
    drawn = cohorts_of(mechanism, np.arange(10), task.seed, range(20))[:, 0, user]
    clean, changed = (train_replicas(work, range(20)).params for work in (task, attacked))
    same = (clean == changed).all(dim=1).numpy()
    assert np.array_equal(same, ~drawn)


@pytest.mark.parametrize("pooled", [False, True])
def test_a_user_of_a_partition_touches_one_model(federation, pooled):
    mechanism = Partition(groups=4, rounds=2, pooled=pooled)
    task = Task(
        federation=federation,
        model=build("mlp", federation, hidden=(4,)),
        mechanism=mechanism,
        local=LocalTraining(epochs=2, batch_size=3),
    )
    poisoned = federation.features.copy()
    poisoned[federation.offsets[3] : federation.offsets[4]] = 100.0
    attacked = replace(task, federation=replace(federation, features=poisoned))
    clean, changed = (train_replicas(work, range(4)).params for work in (task, attacked))
    same = (clean == changed).all(dim=1).numpy()
    assert np.flatnonzero(~same).tolist() == [groups_of(4, np.arange(10), task.seed)[3]]
    with pytest.raises(ValueError, match="replica 4 must be below groups = 4"):
        train_replicas(task, range(5))


def test_images_move_by_the_same_pixels_in_a_step_and_keep_their_border():
    augment = Augment(shift=2, flip=False, seed=0, round=0)
    images = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5)
    seen = [augment(images, 0, step) for step in range(20)]
    assert any(torch.equal(one, images) is False for one in seen)
    for one in seen:
        moves = one[0, 0] - images[0, 0]
        assert torch.equal(one - images, moves.expand_as(one))
        assert set(one[0, 0].flatten().tolist()) <= set(images[0, 0].flatten().tolist())
    assert torch.equal(augment(images, 0, 3), seen[3])


def test_flips_happen_half_of_the_time():
    augment = Augment(shift=0, flip=True, seed=0, round=0)
    image = torch.tensor([[0.0, 1.0]])
    flipped = sum(bool(augment(image, 0, step)[0, 0] == 1) for step in range(400))
    assert 140 < flipped < 260  # six standard deviations


def test_pooled_training_refuses_rules_and_vectors_refuse_shifts(federation):
    model = build("mlp", federation, hidden=(4,))
    mechanism = Bagging(rounds=1, sampling=FIXED, pooled=True)
    parts = {"federation": federation, "model": model, "mechanism": mechanism}
    with pytest.raises(ValueError, match="pooled = True has no updates"):
        Task(**parts, local=LocalTraining(), attack=lambda contributions, state: contributions)
    with pytest.raises(ValueError, match="shift = 1 and flip = False need images"):
        Task(**parts, local=LocalTraining(shift=1))


# --- instances instead of users -----------------------------------------------------------------------------

BAGGING = Bagging(rounds=2, sampling=FixedSize(cohort=9, users=40), pooled=True, unit="instance")
HYBRID = CohortOnce(**vars(BAGGING), noise_multiplier=0.5, clip_norm=0.2)
DEEP = Partition(groups=6, rounds=2, pooled=True, unit="instance")


@pytest.mark.parametrize("mechanism", [BAGGING, HYBRID, DEEP], ids=["bagging", "hybrid", "deep partition"])
def test_an_instance_touches_the_models_it_was_drawn_for_alone(federation, mechanism):
    task = Task(
        federation=federation,
        model=build("mlp", federation, hidden=(4,)),
        mechanism=mechanism,
        local=LocalTraining(epochs=2, batch_size=3, momentum=0.5),
    )
    row, replicas = 17, range(6)
    features, labels = federation.features.copy(), federation.labels.copy()
    features[row], labels[row] = 100.0, (labels[row] + 1) % 3
    attacked = replace(task, federation=replace(federation, features=features, labels=labels))
    drawn = cohorts_of(mechanism, task.units.who, task.seed, replicas)[:, 0, row]
    clean, changed = (train_replicas(work, replicas).params for work in (task, attacked))
    assert np.array_equal((clean != changed).any(dim=1).numpy(), drawn)
    assert 0 < drawn.sum() < 6


def test_a_joining_instance_leaves_the_groups_of_all_others(federation):
    task = Task(
        federation=federation,
        model=build("linear", federation),
        mechanism=DEEP,
        local=LocalTraining(batch_size=3),
    )
    joined = replace(
        federation,
        features=np.concatenate([federation.features, np.full((1, 6), 9.0, dtype=np.float32)]),
        labels=np.append(federation.labels, 2),
        offsets=np.append(federation.offsets[:-1], 41),
    )
    before, after = (
        train_replicas(replace(task, federation=data), range(6)).params for data in (federation, joined)
    )
    assert np.flatnonzero((before != after).any(dim=1)).tolist() == [
        groups_of(6, joined.which, task.seed)[40]
    ]


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


def test_instances_are_not_trained_on_alone():
    with pytest.raises(ValueError, match="pooled = False must be True for unit = 'instance'"):
        Partition(groups=3, unit="instance")
    with pytest.raises(ValueError, match="unit = 'group' must be one of user, instance"):
        Bagging(rounds=1, sampling=FIXED, unit="group")


def test_a_group_without_data_is_refused(federation):
    with pytest.raises(ValueError, match="groups = 41 must be at most the number of units = 40"):
        Task(
            federation=federation,
            model=build("linear", federation),
            mechanism=Partition(groups=41, pooled=True, unit="instance"),
            local=LocalTraining(),
        )


def test_balance_makes_every_class_of_a_user_count_alike(federation):
    weights = class_balance(federation)
    for user in range(federation.num_users):
        own = slice(*federation.offsets[user : user + 2])
        labels, weight = federation.labels[own], weights[own]
        sums = [weight[labels == label].sum() for label in np.unique(labels)]
        np.testing.assert_allclose(sums, len(labels) / len(sums))
    poisoned = replace(federation, labels=np.where(np.arange(40) < 4, 0, federation.labels))
    assert np.array_equal(class_balance(poisoned)[4:], weights[4:])
