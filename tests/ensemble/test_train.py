from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproof.ensemble import (
    Sizes,
    drawn_users,
    first_updates,
    memory,
    sizes_for,
    store,
    table_of,
    train,
    train_ensemble,
    train_replicas,
)
from fedproof.mechanisms import (
    Bagging,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.models import build
from fedproof.rounds.stacking import LANES
from fedproof.seeds import draw_cohorts


def assert_same(found, expected, **tolerance):
    for name, value in found.models.items():
        torch.testing.assert_close(value, expected.models[name], **tolerance)
    np.testing.assert_allclose(found.scores, expected.scores, rtol=1e-5, atol=1e-6)


def instance_level(task):
    mechanism = InstanceFedAvg(rounds=2, local_steps=2, noise_multiplier=1.0, batch_probability=1.0)
    return replace(task, mechanism=mechanism)


def quantile(task):
    return replace(task, mechanism=replace(task.mechanism, clipping=Quantile()))


@pytest.mark.parametrize("together", [1, 3, 7, 20, 42, 64, 100])
def test_in_which_shape_a_model_is_scored_does_not_depend_on_its_place(together):
    """Who is there decides the place in a stack of models in closed form, and shapes decide last bits."""
    seen = []

    class Watched:
        num_classes = 2

        def logits(self, params, inputs):
            seen.append(params[:, 0].int().tolist())
            return torch.zeros(len(params), inputs.shape[1], 2)

    train.predict(Watched(), torch.arange(64.0)[:, None], torch.zeros(10, 1), cells=10 * together)
    assert sum(map(len, seen)) == 64
    assert len({len(places) for places in seen}) == 1
    where = {(place % LANES, order % LANES) for places in seen for order, place in enumerate(places)}
    assert len(where) == LANES


KINDS = [lambda task: task, quantile, instance_level]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", [Sizes(stack=1, block=1, cells=1), Sizes(stack=3, block=2, cells=7)])
def test_a_replica_depends_on_neither_stack_nor_block_nor_range(task, kind, sizes):
    work = kind(task)
    expected = train_replicas(work, range(5))
    assert_same(train_replicas(work, range(5), sizes=sizes), expected, rtol=1e-4, atol=1e-6)
    alone = train_replicas(work, range(3, 4), sizes=sizes)
    np.testing.assert_allclose(alone.scores[0], expected.scores[3], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_repeated_runs_are_byte_identical(task, kind):
    first, second = (train_replicas(kind(task), range(4)) for _ in range(2))
    assert first.scores.tobytes() == second.scores.tobytes()
    assert torch.equal(first.params, second.params)


def test_cores_change_nothing(task):
    expected = train_replicas(task, range(6), sizes=Sizes(stack=2, block=3, cells=4))
    torch.set_num_threads(3)
    found = train_replicas(task, range(6), sizes=Sizes(stack=2, block=3, cells=4))
    assert torch.get_num_threads() == 3
    assert torch.equal(found.params, expected.params)


def test_replicas_differ(task):
    found = train_replicas(task, range(3))
    assert not np.allclose(found.scores[0], found.scores[1])
    assert found.scores.dtype == np.float32
    np.testing.assert_allclose(found.scores.sum(2), 1, rtol=1e-5)
    assert {name: value.shape for name, value in found.diagnostics.items()} == {
        "cohort_size": (3, 2),
        "mean_norm": (3, 2),
        "clipped_share": (3, 2),
        "non_finite": (3, 2),
        "clip_norm": (3, 2),
        "accuracy": (3, 2),
    }


def test_round_one_is_shared_by_noise_levels_and_clip_norms(task, monkeypatch):
    shared = first_updates(task)
    louder = replace(task, mechanism=replace(task.mechanism, rounds=1, noise_multiplier=3.0, clip_norm=0.2))
    expected = train_replicas(louder, range(4))
    monkeypatch.setattr(train.user_fedavg, "descent", None)  # nobody may train again
    found = train_replicas(louder, range(4), first_updates=shared)
    assert torch.equal(found.params, expected.params)


@pytest.mark.parametrize("sampling", [Poisson(probability=0.2), FixedSize(cohort=2, users=6)])
def test_only_who_is_drawn_trains_in_round_one(sampling, task, monkeypatch):
    task = replace(task, mechanism=replace(task.mechanism, sampling=sampling))
    every, trained = first_updates(task), []
    original = train.first_updates

    def watched(task, sizes=None, users=None):
        trained.extend(users.tolist())
        return original(task, sizes, users)

    monkeypatch.setattr(train, "first_updates", watched)
    for replicas in (range(3), range(3, 5)):
        drawn = np.flatnonzero(draw_cohorts(sampling, np.arange(6), 2, 5, replicas)[:, 0].any(axis=0))
        trained.clear()
        found = train_replicas(task, replicas)
        assert len(trained) < 6
        assert set(trained) == {0, *drawn}  # the first, in case nobody is drawn
        assert torch.equal(found.params, train_replicas(task, replicas, first_updates=every).params)
    few = drawn_users(task, range(2))
    known = table_of(task, few, original(task, users=few))
    others = drawn_users(task, range(5), known)
    assert len(others)
    assert not set(few) & set(others)
    more = table_of(task, others, original(task, users=others), known)
    there = ~more[:, 0].isnan()
    assert set(np.flatnonzero(there.numpy())) == {*few, *others}
    assert torch.equal(more[there], every[there])


def test_where_nobody_is_drawn_or_nobody_knows_who_will_be(task, monkeypatch):
    rarely = replace(task, mechanism=replace(task.mechanism, sampling=Poisson(probability=1e-9)))
    alone = train_replicas(rarely, range(2))
    assert torch.equal(
        alone.params, train_replicas(rarely, range(2), first_updates=first_updates(task)).params
    )
    assert alone.params.isfinite().all()
    assert not alone.diagnostics["cohort_size"].any()
    assert drawn_users(replace(rarely, secure_noise=True), range(2)).tolist() == list(range(6))


def test_first_updates_of_another_task_are_refused(task):
    with pytest.raises(
        ValueError, match=r"first_updates has shape \(6, 3\), but \(users, dim\) is \(6, 23\)"
    ):
        train_replicas(task, range(1), first_updates=torch.zeros(6, 3))


def test_first_updates_stay_on_the_host_if_the_device_is_small(task, monkeypatch):
    expected = train_replicas(task, range(4))
    monkeypatch.setattr(memory, "memory_budget", lambda device: 1000)
    assert not memory.shared_fits(task)
    assert sizes_for(task).block == 1
    assert_same(train_replicas(task, range(4)), expected, rtol=1e-4, atol=1e-6)


def test_running_out_of_memory_halves_the_stack(task, monkeypatch):
    expected = train_replicas(task, range(4))
    train_block, tried = train._train_block, []

    def greedy(task, setting, *rest):
        tried.append(setting.stacking.size)
        if setting.stacking.size > 2:
            raise torch.cuda.OutOfMemoryError("no memory")
        return train_block(task, setting, *rest)

    monkeypatch.setattr(train, "_train_block", greedy)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: None)
    found = train_replicas(task, range(4), sizes=Sizes(stack=8, block=4, cells=8))
    assert tried[:3] == [8, 4, 2]
    assert_same(found, expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("replicas", [range(0), range(3, 2), range(0, 4, 2), range(-1, 2)])
def test_replicas_are_neighbouring_indices(task, replicas):
    with pytest.raises(ValueError, match="must be a range of neighbouring indices"):
        train_replicas(task, replicas)


def test_a_model_too_large_for_the_device_says_so():
    with pytest.raises(MemoryError, match="a single model does not fit"):
        memory.halved(Sizes(stack=1, block=1, cells=1))


def test_a_damaged_part_is_done_again_and_nothing_else(task, tmp_path, monkeypatch):
    told = []
    expected = train_ensemble(task, 10, tmp_path, part_size=4, progress=lambda *done: told.append(done))
    assert told == [(0, 10), (4, 10), (8, 10), (10, 10)]
    scores = expected.scores()
    (tmp_path / "private" / "parts" / "part-00001.npz").write_bytes(b"damaged")
    trained = []

    def watch(part, replicas):
        trained.append(part.index)
        return encode(part, replicas)

    encode = store.encode
    monkeypatch.setattr(store, "encode", watch)
    found = train_ensemble(task, 10, tmp_path)  # the part size is that of the stored parts
    assert trained == [1]
    assert found.scores().tobytes() == scores.tobytes()
    assert found.num_replicas == 10
    assert found.models(2)["fc0.weight"].shape == (2, 3, 4)
    assert found.diagnostics()["cohort_size"].shape == (10, 2)


def test_another_task_does_not_use_the_parts(task, tmp_path):
    bare = replace(task, mechanism=Bagging(rounds=2, sampling=Poisson(probability=0.5)))
    for free, one in ((True, bare), (False, task)):
        folder = tmp_path / str(free)
        before = train_ensemble(one, 4, folder, part_size=2).scores()
        again = replace(one, seed=6)
        if free:
            assert not np.allclose(before, train_ensemble(again, 4, folder, part_size=2).scores())
        else:  # what was counted is not thrown away
            with pytest.raises(ValueError, match="made of something else"):
                train_ensemble(again, 4, folder, part_size=2)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda task: {"device": "cuda"}, "torch sees no CUDA device"),
        (
            lambda task: {"mechanism": replace(task.mechanism, sampling=FixedSize(cohort=2, users=9))},
            r"sampling.users = 9 must be the number of users = 6",
        ),
        (
            lambda task: {"mechanism": replace(task.mechanism, clipping=PerLayer(num_layers=3))},
            "num_layers = 3 must be the model's number of layers = 2",
        ),
        (
            lambda task: {
                "mechanism": InstanceFedAvg(
                    rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=0.1, by_size=True
                )
            },
            "batch_probability = 0.1 must be at least",
        ),
        (
            lambda task: {"model": build("linear", replace(task.federation, class_names=("a", "b", "c")))},
            "model has 3 classes, but random has 2",
        ),
    ],
)
def test_a_task_that_cannot_be_trained_is_refused_at_once(task, change, message):
    if "CUDA" in message and torch.cuda.is_available():
        pytest.skip("there is a CUDA device")
    with pytest.raises(ValueError, match=message):
        replace(task, **change(task))


@pytest.mark.parametrize("device", ["gpu", "", "cuda", "cuda:1", "cuda:x"])
def test_a_task_on_a_device_that_is_not_there_is_refused(task, device, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: device == "cuda:1")
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    with pytest.raises(ValueError, match=f"device = '{device}'"):
        replace(task, device=device)


def test_products_have_all_digits_whatever_the_process_asked_for(task):
    """TensorFloat-32 would round factors that clip to three digits."""
    seen = []

    def watch(contributions, state):
        seen.append(torch.get_float32_matmul_precision())
        return contributions

    before = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision("medium")
        train_replicas(replace(task, attack=watch), range(2))
        after = torch.get_float32_matmul_precision()
    finally:
        torch.set_float32_matmul_precision(before)
    assert set(seen) == {"highest"}
    assert after == "medium"


@pytest.mark.parametrize("value", [1e-44, 1e38])
@pytest.mark.parametrize("kind", [InstanceFedSGD, InstanceFedAvg, UserFedAvg])
def test_a_clip_norm_that_float32_cannot_keep_is_refused_before_training(kind, value, task):
    steps = {"batch_probability": 0.5} if kind is not UserFedAvg else {}
    steps |= {"local_steps": 2} if kind is InstanceFedAvg else {}
    users = FixedSize(cohort=2, users=task.federation.num_users)
    extreme = kind(rounds=1, noise_multiplier=1.0, sampling=users, clip_norm=value, **steps)
    with pytest.raises(ValueError, match=r"clip_norm = 1e[-+]\d\d must be from 1e-30 to 1e\+30: float32"):
        replace(task, mechanism=extreme, local=LocalTraining())
    loud = extreme.altered(clip_norm=1e20, noise_multiplier=1e20)
    with pytest.raises(ValueError, match=r"clip_norm \* noise_multiplier = 1e\+40 must be from"):
        replace(task, mechanism=loud, local=LocalTraining())
