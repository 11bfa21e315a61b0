"""Secure noise: what privacy rests on comes from the operating system, everything else from the seed."""

import hashlib
from dataclasses import replace

import numpy as np
import pytest
import torch

from benchmarks.naive import train_one
from fedproof.ensemble import fingerprint, first_updates, store, train, train_ensemble, train_replicas
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Partition,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.rounds.randomness import Stream
from fedproof.seeds import Purpose, cohorts_of

CPU = torch.device("cpu")
POISSON, FIXED = Poisson(probability=0.5), FixedSize(cohort=3, users=6)
MECHANISMS = [
    UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=POISSON),
    UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=FIXED, clipping=Quantile()),
    InstanceFedAvg(rounds=1, local_steps=2, noise_multiplier=1.0, batch_probability=1.0),
    InstanceFedSGD(rounds=2, noise_multiplier=1.0, sampling=FIXED, batch_probability=0.5),
    Bagging(rounds=1, sampling=POISSON, pooled=True),
    CohortOnce(rounds=2, sampling=POISSON, noise_multiplier=1.0, pooled=True, unit="instance"),
]


@pytest.fixture(params=MECHANISMS, ids=lambda mechanism: type(mechanism).__name__)
def secure_task(task, request):
    return replace(task, mechanism=request.param, secure_noise=True)


def test_two_trainings_of_one_seed_differ(secure_task):
    # Pooled training adds no noise: two cohorts that agree, one time in 64, give one model. Not twenty times.
    first, second = (train_replicas(secure_task, range(20)).params for _ in range(2))
    assert len({row.numpy().tobytes() for row in torch.cat([first, second])}) > 20


def test_all_that_differs_comes_from_the_operating_system(secure_task, known_bits):
    found = []
    for key in ("a", "a", "b"):
        known_bits(key)
        found.append(train_replicas(secure_task, range(3)).params)
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])


def test_what_is_secret_does_not_follow_from_the_seed(secure_task, known_bits):
    known_bits("a")
    streams = train._streams(secure_task, range(3))
    known_bits("a")
    others = train._streams(replace(secure_task, seed=6), range(3))
    assert (streams.cohorts == others.cohorts).all()
    for first, second in zip(streams.noise + streams.batches, others.noise + others.batches, strict=True):
        numbers, again = torch.empty(50, dtype=torch.int64), torch.empty(50, dtype=torch.int64)
        known_bits("b")
        first.words_(numbers)
        known_bits("b")
        second.words_(again)
        assert torch.equal(numbers, again)


def test_what_is_public_follows_from_the_seed(task):
    assert torch.equal(first_updates(task), first_updates(replace(task, secure_noise=True)))
    partition = Partition(groups=3, rounds=1)
    groups = [cohorts_of(partition, np.arange(6), 0, range(3), secure=secure) for secure in (False, True)]
    assert (groups[0] == groups[1]).all()


def test_cohorts_differ_and_have_the_stated_probability(task):
    drawn = [cohorts_of(task.mechanism, np.arange(400), 0, range(20), secure=True) for _ in range(2)]
    assert not (drawn[0] == drawn[1]).all()
    assert abs(np.mean(drawn) - 0.5) < 5 * 0.5 / np.sqrt(drawn[0].size * 2)


def test_global_generators_are_neither_read_nor_moved(secure_task):
    before = torch.get_rng_state()
    found = []
    for _ in range(2):
        torch.manual_seed(1)
        found.append(train_replicas(secure_task, range(20)).params)
        assert torch.equal(torch.get_rng_state(), torch.Generator().manual_seed(1).get_state())
    torch.set_rng_state(before)
    assert not torch.equal(*found)


def test_the_plain_loop_takes_it_too(task):
    secure = replace(task, secure_noise=True)
    assert not torch.equal(train_one(secure, 0), train_one(secure, 0))


def test_seeded_numbers_are_those_they_always_were(task):
    # The definition, written out: whoever changes it changes every stored result.
    numbers = torch.empty(1000, dtype=torch.int64)
    Stream(5, Purpose.NOISE, 7, CPU).words_(numbers)
    generator = np.random.PCG64(np.random.SeedSequence(5, spawn_key=(3, 7)))
    np.testing.assert_array_equal(numbers.numpy().view(np.uint64), generator.random_raw(1000))
    digest = hashlib.sha256(cohorts_of(task.mechanism, np.arange(50), 5, range(4)).tobytes()).hexdigest()
    assert digest.startswith("b0c2951ae695362f")
    assert hashlib.sha256(numbers.numpy().tobytes()).hexdigest().startswith("07bddc6da5065142")


def test_a_resumed_training_keeps_what_is_finished_and_draws_the_rest_anew(task, tmp_path):
    secure = replace(task, secure_noise=True)
    before = train_ensemble(secure, 6, tmp_path, part_size=2)
    kept = before.scores()
    for path in tmp_path.rglob("part-00001.*"):  # as if the training had been killed before it was made
        path.unlink()
    after = train_ensemble(secure, 6, tmp_path, part_size=2).scores()
    np.testing.assert_array_equal(after[[0, 1, 4, 5]], kept[[0, 1, 4, 5]])
    assert not np.allclose(after[2:4], kept[2:4])


def test_parts_of_the_one_kind_are_not_taken_for_the_other(task, tmp_path):
    secure = replace(task, secure_noise=True)
    assert fingerprint(secure) != fingerprint(task)
    train_ensemble(task, 2, tmp_path, part_size=2)
    assert not store.is_finished(tmp_path, store.plan(2, 2, fingerprint(secure))[0])


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_numbers_are_drawn_on_the_host_and_copied(known_bits):
    found = []
    for device in ("cpu", "cuda"):
        known_bits("a")
        numbers = torch.empty((3, 500), device=device, dtype=torch.int64)
        stream = Stream(0, Purpose.NOISE, 0, torch.device(device), secure=True)
        for row in numbers:
            stream.words_(row)
        found.append(numbers.cpu())
    assert torch.equal(*found)
