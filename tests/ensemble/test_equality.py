"""A stack of models equals separately trained plain modules, for every mechanism, clip and model."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.naive import score_one, train_one
from fedproof.ensemble import Sizes, Task, train_replicas
from fedproof.ensemble.fingerprints import fingerprint
from fedproof.ensemble.task import shares_first_round, start_of
from fedproof.federation import Federation
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FedAvg,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    Median,
    Partition,
    PerLayer,
    PerLayerMedian,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.models import Model, build
from fedproof.models.module import from_module
from fedproof.rounds.randomness import initial_seed
from fedproof.threat import Unit

REPLICAS = 2
SIZES = (1, 4, 7, 3, 5)  # unequal, smaller and larger than a batch of 3
FEW = (1, 4, 2, 3, 2)  # for the largest network


def federation(shape: tuple[int, ...], *, tokens: bool = False, sizes: tuple[int, ...] = SIZES) -> Federation:
    rng = np.random.default_rng(0)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    make = (lambda n: rng.integers(0, 9, (n, *shape))) if tokens else (lambda n: rng.normal(size=(n, *shape)))
    return Federation(
        features=make(int(offsets[-1])) if tokens else make(int(offsets[-1])).astype(np.float32),
        labels=rng.integers(0, 3, int(offsets[-1])),
        offsets=offsets,
        test_features=make(6) if tokens else make(6).astype(np.float32),
        test_labels=rng.integers(0, 3, 6),
        class_names=("a", "b", "c"),
        name="random",
        vectors=rng.normal(size=(9, 4)).astype(np.float32) if tokens else None,
    )


def brought(data: Federation) -> Model:
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(1, 3, 3), nn.GroupNorm(1, 3), nn.Tanh(), nn.Flatten(), nn.Linear(48, 3))
    return from_module(module, data.num_classes)


DATA = {
    "linear": federation((2, 3)),
    "mlp": federation((2, 3)),
    "mnist-cnn": federation((1, 28, 28)),
    "lenet": federation((28, 28)),
    "cifar-cnn": federation((3, 32, 32), sizes=FEW),
    "lstm": federation((5,), tokens=True),
    "brought": federation((1, 6, 6)),
}
HIDDEN = {"mlp": (5, 4), "lstm": (3,)}
MODELS = {
    name: brought(data) if name == "brought" else build(name, data, hidden=HIDDEN.get(name, ()))
    for name, data in DATA.items()
}


def layers(name: str) -> int:
    return MODELS[name].layout.num_layers


def mechanisms(name: str) -> dict[str, object]:
    poisson = Poisson(probability=0.6)
    fixed = FixedSize(cohort=3, users=len(SIZES))
    clips = {
        "flat": Flat(),
        "per-layer": PerLayer(num_layers=layers(name)),
        "median": Median(),
        "per-layer-median": PerLayerMedian(num_layers=layers(name)),
        "quantile": Quantile(count_noise_std=0.5),
    }
    found: dict[str, object] = {
        key: UserFedAvg(rounds=2, noise_multiplier=0.05, sampling=poisson, clip_norm=0.1, clipping=clip)
        for key, clip in clips.items()
    }
    found["fedavg"] = FedAvg(rounds=2, sampling=fixed)
    found["everyone"] = UserFedAvg(rounds=2, noise_multiplier=0.05, sampling=Everyone(), clip_norm=0.1)
    often = Poisson(probability=0.9)
    found["cohort-once"] = Bagging(rounds=2, sampling=often)
    found["cohort-once-pooled"] = Bagging(rounds=2, sampling=often, pooled=True)
    found["cohort-once-noise"] = CohortOnce(rounds=2, sampling=fixed, noise_multiplier=0.05, clip_norm=0.1)
    found["partition"] = Partition(groups=3, rounds=2)
    found["partition-pooled"] = Partition(groups=3, rounds=2, pooled=True)
    bag = FixedSize(cohort=7, users=len(DATA[name].labels))
    found["bagging"] = Bagging(rounds=2, sampling=bag, pooled=True, unit=Unit.INSTANCE)
    for key, drawn, noise in (
        ("fixed", bag, 0.05),
        ("poisson", often, 0.5),
    ):  # more than a batch of 3 is drawn
        found[f"hybrid-instances-{key}"] = CohortOnce(
            rounds=2, sampling=drawn, noise_multiplier=noise, clip_norm=0.5, pooled=True, unit=Unit.INSTANCE
        )
    found["deep-partition"] = Partition(groups=3, rounds=2, pooled=True, unit=Unit.INSTANCE)
    found["instance-fedsgd"] = InstanceFedSGD(
        rounds=2, noise_multiplier=0.05, sampling=fixed, batch_probability=0.5, clip_norm=0.5
    )
    found["instance-fedavg"] = InstanceFedAvg(
        rounds=2, local_steps=2, noise_multiplier=0.05, batch_probability=1.0, sampling=poisson, clip_norm=0.5
    )
    # Users of 1 to 3 batches a pass, so that passes begin at different steps.
    found["instance-shuffled"] = replace(found["instance-fedavg"], local_steps=4, shuffled=True)
    found["instance-momentum"] = replace(
        found["instance-fedavg"], sampling=Everyone(), keep_momentum=True, rounds=3
    )
    return found


KINDS = tuple(mechanisms("linear"))
LOCAL = LocalTraining(epochs=2, batch_size=3, learning_rate=0.1, momentum=0.9, weight_decay=0.01)
SHORT = replace(LOCAL, epochs=1)  # for the largest network: what a second pass does, the others show
# Round-one sharing, splits of the cohort and of the block are all exercised by sizes this small.
SMALL = Sizes(stack=4, block=2, cells=4)


def task(name: str, kind: str, dtype: torch.dtype) -> Task:
    return Task(
        federation=DATA[name],
        model=MODELS[name],
        mechanism=mechanisms(name)[kind],
        local=SHORT if name == "cifar-cnn" else LOCAL,
        seed=3,
        dtype=dtype,
    )


def relative_error(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


# These ask of a network what others ask as well, so the largest need not answer them.
ALIKE = ("median", "per-layer-median", "quantile", "everyone", "cohort-once-noise", "partition-pooled")
ALIKE += ("deep-partition", "instance-momentum")
PAIRS = [(name, kind) for name in MODELS for kind in KINDS if name != "cifar-cnn" or kind not in ALIKE]


@pytest.mark.parametrize(("name", "kind"), [pair for pair in PAIRS if pair[0] != "lenet"])
def test_a_stack_equals_plain_modules(name, kind):
    assert_equal(name, kind, torch.float64, 1e-10)


# The same code in half the digits: every mechanism with the quick models, every model with a few mechanisms.
QUICK, FEW_KINDS = ("linear", "mlp", "brought"), ("flat", "cohort-once-pooled", "instance-shuffled")


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", QUICK)
def test_a_stack_equals_plain_modules_in_single_precision(name, kind):
    assert_equal(name, kind, torch.float32, 1e-5)


@pytest.mark.parametrize("kind", FEW_KINDS)
@pytest.mark.parametrize("name", sorted({*MODELS} - {*QUICK, "lenet"}))
def test_a_large_stack_equals_plain_modules_in_single_precision(name, kind):
    assert_equal(name, kind, torch.float32, 1e-5)


def assert_equal(name, kind, dtype, tolerance):
    work = task(name, kind, dtype)
    found = train_replicas(work, range(1, 1 + REPLICAS), sizes=SMALL)
    for row, replica in enumerate(found.indices):
        expected = train_one(work, replica)
        models = torch.cat([value[row].flatten() for value in found.models.values()])
        # Relative to what training changed, not to the parameters it started from.
        start = work.model.initial(initial_seed(work.seed)).to(dtype)
        assert relative_error(models - start, expected - start) < tolerance
        scores = score_one(work, expected)
        np.testing.assert_allclose(found.scores[row], scores, atol=max(20 * tolerance, 1e-6))


@pytest.mark.parametrize("kind", ["flat", "cohort-once", "cohort-once-pooled"])
def test_augmented_training_with_a_schedule_equals_plain_modules(kind):
    local = replace(LOCAL, epochs=3, shift=3, flip=True, stretch=0.2, bend=1.0, cosine=True, balanced=True)
    work = replace(task("mnist-cnn", kind, torch.float64), local=local)
    found = train_replicas(work, range(REPLICAS), sizes=SMALL)
    plain = train_replicas(replace(work, local=LOCAL), range(REPLICAS), sizes=SMALL)
    for row in range(REPLICAS):
        assert relative_error(found.params[row], train_one(work, row)) < 1e-10
        assert relative_error(found.params[row], plain.params[row]) > 1e-6


@pytest.mark.parametrize("kind", ["flat", "cohort-once-pooled", "instance-fedavg", "hybrid-instances-fixed"])
def test_lenet_equals_plain_modules(kind):
    work = task("lenet", kind, torch.float64)
    found = train_replicas(work, range(1, 1 + REPLICAS), sizes=SMALL)
    start = work.model.initial(initial_seed(work.seed)).double()
    for row, replica in enumerate(found.indices):
        assert relative_error(found.params[row] - start, train_one(work, replica) - start) < 1e-8


@pytest.mark.parametrize(
    "kind", ["flat", "fedavg", "cohort-once", "partition", "instance-fedavg", "hybrid-instances-poisson"]
)
def test_replicas_with_a_start_of_their_own_equal_plain_modules(kind):
    work = replace(task("mlp", kind, torch.float64), own_start=True)
    found = train_replicas(work, range(1, 1 + REPLICAS), sizes=SMALL)
    shared = train_replicas(replace(work, own_start=False), range(1, 1 + REPLICAS), sizes=SMALL)
    starts = [start_of(work, replica) for replica in found.indices]
    assert relative_error(*starts) > 0.1
    for row, replica in enumerate(found.indices):
        expected = train_one(work, replica)
        assert relative_error(found.params[row] - starts[row], expected - starts[row]) < 1e-10
        assert relative_error(found.params[row], shared.params[row]) > 0.1


def test_parts_of_replicas_with_a_start_of_their_own_are_told_apart():
    work = task("mlp", "flat", torch.float64)
    assert fingerprint(work) != fingerprint(replace(work, own_start=True))
    assert not shares_first_round(replace(work, own_start=True))
