"""Members drawn once: who takes part, how much, and that nobody else matters."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproof.ensemble import Sizes, Task, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import Bagging, CohortOnce, FixedSize, LocalTraining, Partition, Poisson
from fedproof.models import build
from fedproof.rounds import executor_of
from fedproof.rounds.heads import heads
from fedproof.seeds import cohorts_of, groups_of

FIXED = FixedSize(cohort=4, users=10)


@pytest.mark.parametrize("sampling", [FIXED, Poisson(probability=0.3)])
def test_the_same_users_take_part_in_every_round(sampling):
    chosen = cohorts_of(Bagging(rounds=3, sampling=sampling), np.arange(10), 0, range(50))
    assert chosen.shape == (50, 3, 10)
    assert np.all(chosen == chosen[:, :1])
    assert len({tuple(row) for row in chosen[:, 0]}) > 10


def test_without_noise_the_members_mean_is_taken(setting, begin, constant):
    mechanism = Bagging(rounds=1, sampling=Poisson(probability=0.3))
    state, streams = begin(mechanism, range(30))
    after, report = executor_of(mechanism)(mechanism, setting, state, streams, constant(8.0))
    some = report.cohort_size > 0
    np.testing.assert_allclose(after.params[some, 0], 8.0, rtol=1e-6)
    assert after.params[~some].eq(0).all()


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


def test_pooled_training_refuses_rules_and_vectors_refuse_shifts(federation):
    model = build("mlp", federation, hidden=(4,))
    mechanism = Bagging(rounds=1, sampling=FIXED, pooled=True)
    parts = {"federation": federation, "model": model, "mechanism": mechanism}
    with pytest.raises(ValueError, match="pooled = True has no updates"):
        Task(**parts, local=LocalTraining(), attack=lambda contributions, state: contributions)
    for asked in ({"shift": 1}, {"flip": True}, {"stretch": 0.1}, {"bend": 1.5}, {"shift": 1, "bend": 1.5}):
        said = " and ".join(f"{key} = {value}" for key, value in asked.items())
        with pytest.raises(ValueError, match=f"^{said} must have images, random has inputs of shape"):
            Task(**parts, local=LocalTraining(**asked))


@pytest.mark.parametrize("solver", ["ridge", "logistic"])
@pytest.mark.parametrize("unit", ["user", "instance"])
def test_a_solver_fits_the_pooled_instances_of_a_replica(federation, solver, unit):
    local = LocalTraining(solver=solver, penalty=0.5, balanced=True)
    for mechanism in (
        Partition(groups=4, pooled=True, unit=unit),
        Bagging(rounds=1, sampling=Poisson(probability=0.4), pooled=True, unit=unit),
    ):
        task = Task(
            federation=federation, model=build("linear", federation), mechanism=mechanism, local=local
        )
        trained = train_replicas(task, range(4))
        chosen = cohorts_of(mechanism, task.units.who, task.seed, range(4))[:, 0]
        test_inputs = np.hstack([federation.test_features, np.ones((len(federation.test_labels), 1))])
        for replica in range(4):
            rows = np.flatnonzero(chosen[replica].repeat(task.units.sizes))
            parts = federation.features[rows], federation.labels[rows], np.array([0, len(rows)])
            head = heads(*parts, 3, solver=solver, penalty=0.5, balanced=True)[0].float()
            own = trained.params[replica]
            assert own.equal(torch.cat([head[:, :-1].flatten(), head[:, -1]]))
            logits = test_inputs @ head.double().numpy().T
            expected = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True)
            np.testing.assert_allclose(trained.scores[replica], expected, atol=1e-5)


def test_a_solver_is_refused_where_nothing_can_be_fitted(federation):
    ridge, pooled = LocalTraining(solver="ridge"), Partition(groups=4, pooled=True)
    for mechanism, model, said in (
        (Partition(groups=4), "linear", "pooled = false must be true for solver = 'ridge'"),
        (Partition(groups=4, pooled=True, rounds=2), "linear", "rounds = 2 must be 1 for solver = 'ridge'"),
        (pooled, "mlp", "solver = 'ridge' fits linear models alone: use model = 'linear'"),
        (HYBRID, "linear", "solver = 'ridge' is not used by kind = 'cohort-once'"),
    ):
        with pytest.raises(ValueError, match=said):
            Task(federation=federation, model=build(model, federation), mechanism=mechanism, local=ridge)
    for options, said in (
        ({"solver": "newton"}, "solver = 'newton' must be one of sgd, ridge, logistic"),
        ({"solver": "ridge", "penalty": 0}, "penalty = 0 must be a positive number"),
    ):
        with pytest.raises(ValueError, match=said):
            LocalTraining(**options)


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


@pytest.mark.parametrize("solver", ["ridge", "logistic", "gradient", "sums"])
def test_of_many_in_closed_form_nobody_depends_on_who_else_is_there(solver):
    """More units than one stack has places: others decide the stack, the row and the part of each."""
    rng = np.random.default_rng(0)
    sizes, names = rng.integers(1, 20, 90), np.sort(rng.permutation(300)[:90])
    features = [rng.normal(size=(size, 64)).astype(np.float32) for size in sizes]
    labels = [rng.integers(0, 10, size) for size in sizes]
    asked = rng.normal(size=(1, 64)).astype(np.float32)
    features[3][0, 0], features[7][:] = np.nan, 3e38

    def answers(there, begin):
        federation = Federation(
            features=np.concatenate([features[unit] for unit in there]),
            labels=np.concatenate([labels[unit] for unit in there]),
            offsets=np.cumsum([0, *sizes[there]]),
            test_features=asked,
            test_labels=np.zeros(1, np.int64),
            class_names=tuple("abcdefghij"),
            name="many",
            user_ids=names[there],
        )
        task = Task(
            federation=federation,
            model=build("linear", federation),
            mechanism=Partition(pooled=True),
            local=LocalTraining(solver=solver, penalty=0.1),
        )
        parts = (range(begin), range(begin, len(there)))
        rough = Sizes(stack=32, block=8, cells=7)
        return np.concatenate([train_replicas(task, part, sizes=rough).scores for part in parts])

    everybody = answers(np.arange(90), 50)
    for count in (20, 45, 85):
        some = np.sort(rng.permutation(90)[:count])
        assert answers(some, count // 3).tobytes() == everybody[some].tobytes()
