"""On several threads all comes out as on one, bit for bit: own and built-in models, attacks, scores."""

import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier

import numpy as np
import pytest
import torch

from fedproof.attacks import Backdoor, ModelReplacement, WorstCase
from fedproof.ensemble import Sizes, Task, predict, sizes_for, train_ensemble, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.federation import Federation
from fedproof.mechanisms import (
    CohortOnce,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    Partition,
    Poisson,
    UserFedAvg,
)
from fedproof.models import build
from fedproof.models.module import from_module
from fedproof.robustness.outcome import run_attack
from fedproof.rounds import user_fedavg
from fedproof.rounds.stacking import free_cores
from tests.models.brought import CLASSES, MODULES, SHAPE

SIZES = Sizes(stack=3, block=3, cells=17)
OFTEN = Poisson(probability=0.6)
MECHANISMS = {
    "user-fedavg": UserFedAvg(rounds=2, noise_multiplier=0.5, sampling=OFTEN),
    "instance-fedavg": InstanceFedAvg(rounds=2, local_steps=2, noise_multiplier=0.5, batch_probability=1.0),
    "instance-fedsgd": InstanceFedSGD(
        rounds=2, noise_multiplier=0.5, sampling=FixedSize(cohort=7, users=12), batch_probability=0.5
    ),
    "partition": Partition(groups=6, rounds=2),
    "partition-pooled": Partition(groups=6, rounds=2, pooled=True),
    "cohort-once": CohortOnce(rounds=2, sampling=OFTEN, noise_multiplier=0.5),
}
BUILT_IN = {"mlp": SHAPE, "lenet": (1, 28, 28)}


def federation(shape):
    rng = np.random.default_rng(0)
    sizes = rng.integers(2, 7, 12)
    offsets = np.concatenate([[0], np.cumsum(sizes)])

    def make(count):
        return rng.normal(size=(count, *shape)).astype(np.float32), rng.integers(0, CLASSES, count)

    (features, labels), (test_features, test_labels) = make(int(offsets[-1])), make(20)
    return Federation(
        features=features,
        labels=labels,
        offsets=offsets,
        test_features=test_features,
        test_labels=test_labels,
        class_names=("a", "b", "c"),
        name="random",
    )


def task_of(name, kind):
    data = federation(BUILT_IN.get(name, SHAPE))
    torch.manual_seed(0)
    model = build(name, data) if name in BUILT_IN else from_module(MODULES[name](), CLASSES)
    local = LocalTraining(epochs=1, batch_size=3, learning_rate=0.1, momentum=0.9)
    return Task(federation=data, model=model, mechanism=MECHANISMS[kind], local=local, seed=3)


def on_threads(work):
    """What comes out on two threads and on four that give way all the time, each beside that of one."""
    torch.set_num_threads(1)
    expected = work()
    interval = sys.getswitchinterval()
    for number in (2, 4):
        torch.set_num_threads(number)
        sys.setswitchinterval(1e-5)
        try:
            found = work()
            assert torch.get_num_threads() == number
        finally:
            torch.set_num_threads(1)
            sys.setswitchinterval(interval)
        yield found, expected


def assert_same_bits(found, expected):
    assert torch.equal(found.params, expected.params)
    assert found.scores.tobytes() == expected.scores.tobytes()
    for name, values in expected.diagnostics.items():
        assert found.diagnostics[name].tobytes() == values.tobytes()


CASES = [(name, kind) for name in ("cnn", "mlp") for kind in MECHANISMS]
CASES += [(name, kind) for name in ("tied", "buffers") for kind in ("user-fedavg", "instance-fedavg")]
CASES += [("counts", "user-fedavg"), ("lenet", "user-fedavg")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_training_is_the_same_on_any_number_of_threads(name, kind):
    task = task_of(name, kind)
    for found, expected in on_threads(lambda: train_replicas(task, range(4), sizes=SIZES)):
        assert_same_bits(found, expected)


@pytest.mark.parametrize("name", ["cnn", "mlp"])
@pytest.mark.parametrize(
    "attack",
    [
        WorstCase(adversaries=(0, 1)),
        ModelReplacement(base=WorstCase(adversaries=(1, 4), target=1)),
        Backdoor(adversaries=(0, 2), target=0),
    ],
    ids=lambda attack: type(attack).__name__,
)
def test_attacks_are_the_same_on_any_number_of_threads(monkeypatch, name, attack):
    monkeypatch.setattr("fedproof.ensemble.train.sizes_for", lambda task: SIZES)
    monkeypatch.setattr("fedproof.robustness.outcome.sizes_for", lambda task: SIZES)
    task = task_of(name, "user-fedavg")
    for found, expected in on_threads(lambda: run_attack(task, attack, 4)):
        assert found.scores.tobytes() == expected.scores.tobytes()
        assert found.losses[0].tobytes() == expected.losses[0].tobytes()


@pytest.mark.parametrize("name", ["cnn", "tied", "buffers", "mlp"])
def test_scores_are_the_same_on_any_number_of_threads(name):
    task = task_of(name, "user-fedavg")
    rng = np.random.default_rng(1)
    params = torch.stack([start_of(task, 0)] * 20)
    params = params + 0.1 * torch.from_numpy(rng.normal(size=params.shape).astype(np.float32))
    inputs = torch.from_numpy(rng.normal(size=(600, *task.federation.features.shape[1:])).astype(np.float32))
    for found, expected in on_threads(lambda: predict(task.model, params, inputs, cells=2000)):
        assert found.tobytes() == expected.tobytes()


def test_predicting_uses_all_threads(monkeypatch):
    """Also where nobody trains: a finished run's ensemble on new inputs."""
    task, seen = task_of("mlp", "user-fedavg"), set()
    plain = type(task.model).logits

    def logits(model, params, inputs):
        seen.add((torch.get_num_threads(), len(params)))
        return plain(model, params, inputs)

    monkeypatch.setattr(type(task.model), "logits", logits)
    torch.set_num_threads(3)
    predict(task.model, start_of(task, 0).expand(8, -1), torch.zeros(5, *SHAPE), cells=10)
    assert torch.get_num_threads() == 3
    assert seen == {(1, 2)}


def test_the_shared_first_round_uses_all_threads(monkeypatch):
    """It is computed inside the training of the first part, which has the cores already."""
    task, cores = task_of("mlp", "user-fedavg"), []
    plain = user_fedavg.first_updates

    def watched(setting, *rest):
        cores.append(setting.cores)
        return plain(setting, *rest)

    monkeypatch.setattr(user_fedavg, "first_updates", watched)
    torch.set_num_threads(3)
    train_replicas(task, range(2))
    assert cores == [3]


def test_two_trainings_in_one_process_do_not_see_each_other():
    """Neither of the other's model, nor of its seed, nor of the number of threads it asked for."""
    names = ("cnn", "tied", "buffers", "mlp")
    tasks = [replace(task_of(name, "user-fedavg"), own_start=True) for name in names]
    expected = [train_replicas(task, range(4), sizes=SIZES) for task in tasks]
    torch.set_num_threads(2)
    barrier = Barrier(len(tasks))

    def train(task):
        barrier.wait()
        return train_replicas(task, range(4), sizes=SIZES)

    with ThreadPoolExecutor(len(tasks)) as pool:
        for found, one in zip(pool.map(train, tasks), expected, strict=True):
            assert_same_bits(found, one)
    assert torch.get_num_threads() == 2


def own_module(data):
    """With a layer that is drawn and never trained."""
    return MODULES["buffers"]()


def test_starts_that_are_drawn_at_once_follow_their_own_seeds():
    """Torch has one generator for all threads, and modules draw from it."""
    data = federation(SHAPE)
    models = {"mlp": build("mlp", data), "own": build(f"{__name__}:own_module", data)}
    wanted = [(model, seed) for seed in range(40) for model in models.values()]
    expected = [model.initial(seed) for model, seed in wanted]
    torch.manual_seed(5)
    before, interval = torch.get_rng_state(), sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(4) as pool:
            found = list(pool.map(lambda pair: pair[0].initial(pair[1]), wanted))
    finally:
        sys.setswitchinterval(interval)
    assert all(map(torch.equal, found, expected))
    assert torch.equal(torch.get_rng_state(), before)


def test_what_is_drawn_and_never_trained_is_the_same_in_every_process():
    """A later process predicts with the models of a run: random layers must be those of the run."""
    data = federation(SHAPE)
    torch.manual_seed(1)
    first = build(f"{__name__}:own_module", data)
    state = torch.get_rng_state()
    second = build(f"{__name__}:own_module", data)
    assert first.frozen.keys() == {"mean", "scale", "encoder.weight", "encoder.bias"}
    assert all(torch.equal(value, second.frozen[name]) for name, value in first.frozen.items())
    assert torch.equal(torch.get_rng_state(), state)


def test_the_number_of_threads_is_put_back_by_whoever_leaves_last():
    torch.set_num_threads(3)
    entered, leave = Barrier(2), Barrier(2)

    def other():
        with free_cores(torch.device("cpu")) as cores:
            entered.wait()
            leave.wait()
            inside = torch.get_num_threads()
        return cores, inside, torch.get_num_threads()

    with ThreadPoolExecutor(1) as pool:
        with free_cores(torch.device("cpu")) as cores:
            running = pool.submit(other)
            entered.wait()
            assert (cores, torch.get_num_threads()) == (3, 1)
        leave.wait()
        assert running.result() == (3, 1, 3)
    assert torch.get_num_threads() == 3
    with ThreadPoolExecutor(1) as pool:
        assert pool.submit(torch.get_num_threads).result() == 3  # of a thread that is new
    with pytest.raises(KeyError), free_cores(torch.device("cpu")):
        raise KeyError
    assert torch.get_num_threads() == 3


@pytest.mark.parametrize("name", ["cnn", "tied"])
def test_parts_of_an_ensemble_are_the_same_on_any_number_of_threads(tmp_path, name):
    task = task_of(name, "user-fedavg")
    runs = iter(("one", "two", "four"))
    for found, expected in on_threads(lambda: train_ensemble(task, 8, tmp_path / next(runs), part_size=4)):
        assert found.scores().tobytes() == expected.scores().tobytes()
        for part in found.parts:
            for end in ("private/parts/NAME.npz", "parts/NAME.safetensors", "private/parts/NAME.json"):
                name = end.replace("NAME", f"part-{part.index:05d}")
                one, other = (run.folder / name for run in (found, expected))
                assert one.read_bytes() == other.read_bytes()
    assert sizes_for(task).stack > 1
