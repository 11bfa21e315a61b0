"""How much faster a network of the user's trains on several cores than on one.

`python -m benchmarks.cores [CORES] [PAIRS]`, one JSON object. Runs on one and on several cores
take turns, so that whatever else the machine does meets both alike; `ratio` is that of the medians. On a busy
machine it says little: a process with two threads may get no more of it than one with one. `idle` is computed
from processor time instead.
"""

import heapq
import json
import sys
import time
from collections.abc import Callable, Iterable
from statistics import median
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import nn

from fedproof.ensemble import Task, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Poisson, UserFedAvg
from fedproof.models.module import from_module


def own_cnn() -> nn.Module:
    """Ordinary: two convolutions with normalisation between them, for images of 28 by 28."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.GroupNorm(4, 16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(1568, 10),
    )


def task() -> Task:
    """Sixty users with twenty images each, drawn at random: speed does not depend on what they show."""
    rng = np.random.default_rng(0)
    users, each, inputs = 60, 20, 200
    data = Federation(
        features=rng.random((users * each, 1, 28, 28), dtype=np.float32),
        labels=rng.integers(0, 10, users * each),
        offsets=np.arange(users + 1) * each,
        test_features=rng.random((inputs, 1, 28, 28), dtype=np.float32),
        test_labels=rng.integers(0, 10, inputs),
        class_names=tuple("0123456789"),
        name="random",
    )
    return Task(
        federation=data,
        model=from_module(own_cnn(), 10),
        mechanism=UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=Poisson(probability=0.2)),
        local=LocalTraining(epochs=1, batch_size=10),
    )


def speed_up(work: Task, cores: int, pairs: int, replicas: int = 8) -> dict[str, float]:
    """Seconds of `replicas` on one core and on `cores`, medians of alternating runs, and their ratio."""
    seconds: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(pairs + 1):
        for number, taken in seconds.items():
            torch.set_num_threads(number)
            begin = time.perf_counter()
            train_replicas(work, range(replicas))
            taken.append(time.perf_counter() - begin)
    one, several = (median(taken[1:]) for taken in seconds.values())  # the first pair warms up
    return {"cores": cores, "pairs": pairs, "one": one, "several": several, "ratio": one / several}


def idle_ratio(work: Task, cores: int, replicas: int = 8) -> float:
    """How much faster `cores` idle cores are than one, by the processor time of one thread.

    What is done outside of pieces counts once; pieces are dealt out to cores in their order, as they are in
    training. That threads wait for each other's locks is not in it.
    """
    apart: list[list[float]] = []

    def measured(piece: Callable[[Any], None], items: Iterable[Any], cores: int) -> None:
        apart.append([])
        for item in items:
            begin = time.thread_time()
            piece(item)
            apart[-1].append(time.thread_time() - begin)

    rooms = ("fedproof.rounds.local.on_cores", "fedproof.ensemble.train.on_cores")
    with patch(rooms[0], measured), patch(rooms[1], measured):
        train_replicas(work, range(replicas))  # warms up
        apart.clear()
        begin = time.thread_time()
        train_replicas(work, range(replicas))
        whole = time.thread_time() - begin
    together = whole - sum(map(sum, apart))
    return whole / (together + sum(_longest(pieces, cores) for pieces in apart))


def _longest(pieces: list[float], cores: int) -> float:
    """Seconds until the last piece is done, each begun by the first core that is free."""
    busy = [0.0] * cores
    for piece in pieces:
        heapq.heappush(busy, heapq.heappop(busy) + piece)
    return max(busy)


if __name__ == "__main__":
    numbers = [int(given) for given in sys.argv[1:]]
    cores, pairs = (*numbers, *(2, 5)[len(numbers) :])
    print(json.dumps(speed_up(task(), cores, pairs) | {"idle": idle_ratio(task(), cores)}))
