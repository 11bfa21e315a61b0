"""How fast the engine is, with the naive loop over ordinary modules beside it in the same run.

`python -m benchmarks.engine [cpu|cuda] [case ...]`, one JSON object; `fedproof bench` runs all cases.
The data are random numbers of the right shape: speed does not depend on what they show.
"""

import json
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, replace
from typing import TypeVar

import numpy as np
import torch

from benchmarks.naive import score_one, train_one
from fedproof.ensemble.memory import Sizes, sizes_for
from fedproof.ensemble.task import Task, shares_first_round
from fedproof.ensemble.train import first_updates, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import Everyone, InstanceFedAvg, LocalTraining, Poisson, UserFedAvg
from fedproof.models import build

_Result = TypeVar("_Result")
_ENSEMBLE = 1000  # replicas over which the shared first round is spread


@dataclass(frozen=True, kw_only=True)
class Row:
    """One measurement.

    Attributes:
        name: of the case.
        device: `cpu` or `cuda`.
        stack: models trained at once.
        seconds_per_replica: of an ensemble of 1000, training and scores.
        naive_seconds_per_replica: of ordinary modules one after the other; on a CPU as if a process ran on
            each core and none disturbed another.
        ratio: how many times faster the engine is.
    """

    name: str
    device: str
    stack: int
    seconds_per_replica: float
    naive_seconds_per_replica: float
    ratio: float


def bench(device: str = "cpu", names: Iterable[str] | None = None) -> list[dict[str, str | int | float]]:
    """Rows of all cases, or of those called `names`, each at the chosen stack size and at a quarter of it.

    On a CPU the cases train one local epoch where the paper trains ten: the naive loop ends in seconds.
    """
    chosen = list(names) if names is not None else list(CASES)
    unknown = sorted(set(chosen) - set(CASES))
    if unknown:
        raise ValueError(f"names = {unknown} must be among {', '.join(CASES)}")
    return [asdict(row) for name in chosen for row in _rows(name, device)]


def _rows(name: str, device: str) -> Iterable[Row]:
    task = replace(CASES[name](device == "cpu"), device=device)
    naive = _naive_seconds(task)
    sizes = sizes_for(task)
    for stack in dict.fromkeys((sizes.stack, max(1, sizes.stack // 4))):
        seconds = _engine_seconds(task, replace(sizes, stack=stack))
        yield Row(
            name=name,
            device=device,
            stack=stack,
            seconds_per_replica=seconds,
            naive_seconds_per_replica=naive,
            ratio=naive / seconds,
        )


def _engine_seconds(task: Task, sizes: Sizes) -> float:
    count = 4 if task.device == "cpu" else 200
    count = max(count, sizes.stack // 8)
    once, shared = 0.0, None
    train_replicas(task, range(1), sizes=sizes)
    if shares_first_round(task):
        once, shared = _timed(task, lambda: first_updates(task, sizes))
    seconds, _ = _timed(task, lambda: train_replicas(task, range(count), first_updates=shared, sizes=sizes))
    return once / _ENSEMBLE + seconds / count


def _naive_seconds(task: Task) -> float:
    threads = torch.get_num_threads()
    one_round = replace(task, mechanism=task.mechanism.altered(rounds=1))
    try:
        if task.device == "cpu":
            torch.set_num_threads(1)
        score_one(task, train_one(one_round, 0))
        seconds, _ = _timed(task, lambda: score_one(task, train_one(task, 0)))
    finally:
        torch.set_num_threads(threads)
    return seconds / threads if task.device == "cpu" else seconds


def _timed(task: Task, work: Callable[[], _Result]) -> tuple[float, _Result]:
    if task.device != "cpu":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    result = work()
    if task.device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def _random(shape: tuple[int, ...], *, users: int, each: int, classes: int, inputs: int) -> Federation:
    rng = np.random.default_rng(0)
    return Federation(
        features=rng.random((users * each, *shape), dtype=np.float32),
        labels=rng.integers(0, classes, users * each),
        offsets=np.arange(users + 1) * each,
        test_features=rng.random((inputs, *shape), dtype=np.float32),
        test_labels=rng.integers(0, classes, inputs),
        class_names=tuple(str(label) for label in range(classes)),
        name="random",
    )


def _digits(brief: bool) -> Task:
    data = _random((8, 8), users=96, each=3, classes=10, inputs=1509)
    return Task(
        federation=data,
        model=build("linear", data),
        mechanism=UserFedAvg(rounds=3, noise_multiplier=1.0, sampling=Poisson(probability=0.2)),
        local=LocalTraining(epochs=5, batch_size=3),
    )


def _mnist(brief: bool) -> Task:
    data = _random((1, 28, 28), users=200, each=63, classes=2, inputs=2115)
    return Task(
        federation=data,
        model=build("mnist-cnn", data),
        mechanism=UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1)),
        local=LocalTraining(epochs=1 if brief else 10, batch_size=60, learning_rate=0.02, momentum=0.9),
    )


def _cifar(brief: bool) -> Task:
    data = _random((3, 32, 32), users=20 if brief else 200, each=50, classes=2, inputs=100 if brief else 2000)
    return Task(
        federation=data,
        model=build("cifar-cnn", data),
        mechanism=UserFedAvg(rounds=1, noise_multiplier=4.0, sampling=Poisson(probability=0.2)),
        local=LocalTraining(epochs=1 if brief else 5, batch_size=50, learning_rate=0.05, momentum=0.9),
    )


def _instance(brief: bool) -> Task:
    data = _random((1, 28, 28), users=2 if brief else 10, each=1266, classes=2, inputs=2115)
    mechanism = InstanceFedAvg(
        rounds=1 if brief else 3,
        local_steps=4 if brief else 26,
        noise_multiplier=5.0,
        batch_probability=50 / 1266,
        sampling=Everyone(),
    )
    local = LocalTraining(batch_size=50, learning_rate=0.02, momentum=0.9)
    return Task(federation=data, model=build("mnist-cnn", data), mechanism=mechanism, local=local)


def _lstm(brief: bool) -> Task:
    data = _random((25,), users=50, each=20, classes=2, inputs=400)
    words = 1000
    data = replace(
        data,
        features=(data.features * words).astype(np.int64),
        test_features=(data.test_features * words).astype(np.int64),
        vectors=np.random.default_rng(1).random((words, 100), dtype=np.float32),
    )
    return Task(
        federation=data,
        model=build("lstm", data, hidden=(32,)),
        mechanism=UserFedAvg(rounds=2, noise_multiplier=2.0, sampling=Poisson(probability=0.2)),
        local=LocalTraining(epochs=1 if brief else 5, batch_size=10),
    )


CASES: dict[str, Callable[[bool], Task]] = {
    "digits-linear": _digits,
    "mnist-cnn": _mnist,
    "cifar-cnn": _cifar,
    "mnist-cnn-instance": _instance,
    "lstm": _lstm,
}


if __name__ == "__main__":
    device = sys.argv[1] if len(sys.argv) > 1 else "cpu"
    print(json.dumps({"rows": bench(device, sys.argv[2:] or None)}, indent=1))
