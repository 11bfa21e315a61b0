"""The figures of the paper's experiments on a GPU: `PYTHONPATH=src python benchmarks/gpu.py carry`."""

import time
from collections.abc import Callable
from pathlib import Path

import torch
from federations import cifar, mnist

from fedproof.ensemble import Replicas, Sizes, Task, train_replicas
from fedproof.models import build
from fedproof.protocol import Everyone, InstanceFedAvg, LocalTraining, Poisson, UserFedAvg

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"


def timed(work: Callable[[], object]) -> tuple[float, object]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    begin = time.perf_counter()
    result = work()
    torch.cuda.synchronize()
    return time.perf_counter() - begin, result


def mnist_task(folder: Path) -> Task:
    data = mnist(folder, users=200)
    return Task(
        federation=data,
        model=build("mnist-cnn", data),
        mechanism=UserFedAvg(
            rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1), clip_norm=0.7
        ),
        local=LocalTraining(epochs=10, batch_size=60, learning_rate=0.02, momentum=0.9, weight_decay=5e-4),
        device=DEVICE,
    )


def cifar_task(folder: Path) -> Task:
    data = cifar(folder, users=200)
    return Task(
        federation=data,
        model=build("cifar-cnn", data, weights=folder / "cifar100_pretrained_cnn.npz"),
        mechanism=UserFedAvg(
            rounds=1, noise_multiplier=4.0, sampling=Poisson(probability=0.2), clip_norm=1.0
        ),
        local=LocalTraining(epochs=5, batch_size=50, learning_rate=0.05, momentum=0.9, weight_decay=5e-4),
        device=DEVICE,
    )


def instance_task(folder: Path) -> Task:
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
        device=DEVICE,
    )


def accuracy(task: Task, found: Replicas) -> float:
    return float((found.scores.argmax(-1) == task.federation.test_labels).mean())


def show(name: str, task: Task, count: int, sizes: Sizes, **extra: object) -> None:
    seconds, found = timed(lambda: train_replicas(task, range(count), sizes=sizes, **extra))
    peak = torch.cuda.max_memory_allocated() / 2**30
    reached = f"accuracy {accuracy(task, found):.4f}, peak {peak:.1f} GiB"
    print(f"{name}: {count} replicas {seconds:.2f} s, {reached}, {sizes}", flush=True)


def profile(name: str, work: Callable[[], object]) -> None:
    activities = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
    with torch.profiler.profile(activities=activities) as seen:
        work()
        torch.cuda.synchronize()
    table = seen.key_averages().table(sort_by="self_cuda_time_total", row_limit=16, max_name_column_width=70)
    print(name, "\n".join(line.replace("   ", " ") for line in table.splitlines()), flush=True)
