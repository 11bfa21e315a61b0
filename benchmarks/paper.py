"""Seconds for the paper's experiments, from the publishers' files in a folder.

`python -m benchmarks.paper FOLDER [cuda|cpu] [REPLICAS]`, one JSON object for each experiment.
"""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

from benchmarks.federations import cifar, mnist
from fedproof.ensemble import Task, first_updates, shares_first_round, train_replicas
from fedproof.mechanisms import Everyone, InstanceFedAvg, LocalTraining, Poisson, UserFedAvg
from fedproof.models import build


def mnist_task(folder: Path) -> Task:
    """User level, three rounds."""
    data = mnist(folder, users=200)
    return Task(
        federation=data,
        model=build("mnist-cnn", data),
        mechanism=UserFedAvg(
            rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1), clip_norm=0.7
        ),
        local=LocalTraining(epochs=10, batch_size=60, learning_rate=0.02, momentum=0.9, weight_decay=5e-4),
    )


def cifar_task(folder: Path) -> Task:
    """User level, one round on pretrained weights."""
    data = cifar(folder, users=200)
    return Task(
        federation=data,
        model=build("cifar-cnn", data, weights=folder / "cifar100_pretrained_cnn.npz"),
        mechanism=UserFedAvg(
            rounds=1, noise_multiplier=4.0, sampling=Poisson(probability=0.2), clip_norm=1.0
        ),
        local=LocalTraining(epochs=5, batch_size=50, learning_rate=0.05, momentum=0.9, weight_decay=5e-4),
    )


def instance_task(folder: Path) -> Task:
    """Instance level, three rounds."""
    data = mnist(folder, users=10)
    return Task(
        federation=data,
        model=build("mnist-cnn", data),
        mechanism=InstanceFedAvg(
            rounds=3,
            local_steps=26,
            noise_multiplier=5.0,
            batch_probability=50 / int(data.sizes.min()),
            sampling=Everyone(),
            clip_norm=0.7,
        ),
        local=LocalTraining(batch_size=50, learning_rate=0.02, momentum=0.9, weight_decay=5e-4),
    )


def measure(name: str, tasks: list[Task], count: int) -> dict[str, str | int | float]:
    """Seconds for `count` replicas of all tasks, which share their first round, with scores and models."""
    train_replicas(tasks[0], range(20))  # warm up
    begin = time.perf_counter()
    shared = first_updates(tasks[0]) if shares_first_round(tasks[0]) else None
    for task in tasks:
        found = train_replicas(task, range(count), first_updates=shared)
    seconds = time.perf_counter() - begin
    right = float((found.scores.argmax(-1) == tasks[-1].federation.test_labels).mean())
    return {"name": name, "tasks": len(tasks), "replicas": count, "seconds": seconds, "accuracy": right}


def main(folder: Path, device: str, count: int) -> None:
    """Print a line for each experiment."""
    mnist_, cifar_, instance = (
        replace(make(folder), device=device) for make in (mnist_task, cifar_task, instance_task)
    )
    assert isinstance(cifar_.mechanism, UserFedAvg)
    levels = [
        replace(cifar_, mechanism=replace(cifar_.mechanism, noise_multiplier=float(level)))
        for level in (2, 3, 4, 5, 7, 8, 10, 6)
    ]
    for name, tasks in {
        "mnist, T=3": [mnist_],
        "cifar, T=1, eight noise levels": levels,
        "mnist instance level, T=3": [instance],
    }.items():
        print(json.dumps(measure(name, tasks, count)), flush=True)


if __name__ == "__main__":
    main(
        Path(sys.argv[1]),
        sys.argv[2] if len(sys.argv) > 2 else "cuda",
        int(sys.argv[3]) if len(sys.argv) > 3 else 1000,
    )
