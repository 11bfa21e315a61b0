"""Engine `ray`: the missing parts of an ensemble as tasks of a Ray cluster.

The task travels once; a worker sends the bytes of a finished part, which the driver writes and forgets, so no
shared disk is needed and the driver's memory does not grow with the number of replicas. If a worker dies, Ray
runs its part again elsewhere; randomness belongs to the replica, so the result is the same. Secure noise
comes from the machine that trains: the part that is run again is another one, and one of the two is kept.
"""

import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from fedproof.ensemble import store
from fedproof.ensemble.local import Ensemble, Progress, plan_for
from fedproof.ensemble.task import Task, shares_first_round
from fedproof.ensemble.train import first_updates as compute_first_updates
from fedproof.ensemble.train import train_replicas

_RETRIES = 3
_PATIENCE = 5.0  # seconds


def train_on_cluster(
    task: Task,
    num_replicas: int,
    folder: Path,
    *,
    first_updates: Tensor | None = None,
    part_size: int | None = None,
    progress: Progress | None = None,
    address: str | None = None,
) -> Ensemble:
    """Like `train_ensemble`, on the Ray cluster at `address`, or on one started here if there is none.

    Args:
        task: what is trained.
        num_replicas: how many replicas.
        folder: where the driver keeps the parts.
        first_updates: from `first_updates(task)`, to share round one between the ensembles of a sweep.
        part_size: replicas in a part; None takes that of the stored parts, or chooses from the memory.
        progress: told after every part.
        address: of a running cluster, `host:port`; None uses the one this process is connected to, else
            that of RAY_ADDRESS, else starts one here.
    """
    ray = _import_ray()
    parts = plan_for(task, num_replicas, folder, part_size)
    missing = [part for part in parts if not store.is_finished(folder, part)]
    done = num_replicas - sum(len(part.replicas) for part in missing)
    if progress is not None:
        progress(done, num_replicas)
    if missing and first_updates is None and shares_first_round(task):
        first_updates = compute_first_updates(task)
    started = not ray.is_initialized()
    if started:
        # "local": a cluster of our own, not whichever one this machine remembers.
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        check_reachable(where)
        ray.init(address=where, include_dashboard=False, log_to_driver=False)
    try:
        for part, files in _finished(ray, task, missing, first_updates):
            store.write_part(folder, part, files)
            done += len(part.replicas)
            if progress is not None:
                progress(done, num_replicas)
    finally:
        if started:
            ray.shutdown()
    return Ensemble(folder=folder, parts=parts)


def check_reachable(address: str) -> None:
    """Raise ValueError in seconds where Ray itself would wait for minutes.

    >>> check_reachable("local")
    """
    host, colon, port = address.rpartition("/")[2].rpartition(":")
    if not colon or not port.isdigit():
        return  # "local" or "auto": Ray knows what is meant
    try:
        socket.create_connection((host, int(port)), timeout=_PATIENCE).close()
    except OSError as error:
        raise ValueError(
            f"Ray at {address} cannot be reached ({error}): start it with `ray start --head`, or unset "
            "RAY_ADDRESS to use this machine; finished parts are kept"
        ) from error


def _finished(
    ray: Any, task: Task, parts: list[store.Part], first_updates: Tensor | None
) -> Iterator[tuple[store.Part, store.PartFiles]]:
    """Parts in the order in which they are done, no more of them under way than the cluster can hold."""
    on_gpu = task.device.startswith("cuda")
    worker = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_retries=_RETRIES)(_train_part)
    inputs = ray.put((task, None if first_updates is None else first_updates.cpu()))
    waiting = list(reversed(parts))
    most = 2 * max(1, int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1)))
    running: dict[Any, store.Part] = {}
    while waiting or running:
        while waiting and len(running) < most:
            part = waiting.pop()
            running[worker.remote(inputs, part)] = part
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        yield running.pop(done), ray.get(done)


def _train_part(inputs: tuple[Task, Tensor | None], part: store.Part) -> store.PartFiles:
    """What a worker does: one part, on one core."""
    torch.set_num_threads(1)
    task, first_updates = inputs
    replicas = train_replicas(task, part.replicas, first_updates=first_updates)
    return store.encode(part, replicas)


def _import_ray() -> Any:
    # Usage statistics are off unless the user turned them on: nothing leaves the machine unasked.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # tasks on a CPU leave GPUs visible
    try:
        import ray
    except ImportError as error:
        raise ValueError("engine = 'ray' needs Ray: pip install 'fedproof[ray]'") from error
    return ray
