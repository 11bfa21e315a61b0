"""Engines that do what is missing of a task: `local` on this machine, `ray` on a cluster.

On a cluster the task travels once; a worker sends the replicas of a part, which the driver writes and
forgets, so no shared disk is needed and the driver's memory does not grow with the number of replicas. If a
worker dies, Ray runs its part again elsewhere; randomness belongs to the replica, so the result is the same.
Secure noise comes from the machine that trains: the part that is run again is another one, and one of the two
is kept.
"""

import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.digests import of_all
from fedproof.ensemble import store
from fedproof.ensemble.fingerprints import engine_version, fingerprint
from fedproof.ensemble.memory import part_size_for
from fedproof.ensemble.task import Task
from fedproof.ensemble.train import shared_by_replicas, train_replicas
from fedproof.mechanisms import Mechanism
from fedproof.mechanisms.codec import describe
from fedproof.progress import Tally
from fedproof.vault import Vault

_RETRIES = 3
_PATIENCE = 5.0  # seconds

Job = TypeVar("Job")
Done = TypeVar("Done")


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Finished replicas on disk.

    Attributes:
        folder: the vault that holds the parts.
        parts: all of them, in order.
    """

    folder: Path
    parts: tuple[store.Part, ...]

    @property
    def num_replicas(self) -> int:
        """Number of replicas."""
        return self.parts[-1].replicas.stop

    def scores(self) -> NDArray[np.float32]:
        """Scores `(replicas, inputs, classes)` of all replicas."""
        return np.concatenate(list(self.score_parts()))

    def score_parts(self) -> Iterator[NDArray[np.float32]]:
        """Scores `(replicas, inputs, classes)`, part by part."""
        return (store.read_scores(self.folder, part) for part in self.parts)

    def diagnostics(self) -> dict[str, NDArray[np.float64]]:
        """Diagnostics `(replicas, rounds)` of all replicas, see `RoundReport`."""
        found = [store.read_diagnostics(self.folder, part) for part in self.parts]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def sha256(self, mechanism: Mechanism) -> str:
        """The digest of all models, in their order, and of what made them."""
        each = chain.from_iterable(store.digests_of(self.folder, part) for part in self.parts)
        return of_all(describe(mechanism), each)

    def round_rows(self) -> list[dict[str, Any]]:
        """Mean over the replicas of what happened in each round."""
        means = {name: values.mean(axis=0) for name, values in self.diagnostics().items()}
        rounds = len(next(iter(means.values())))
        return [
            {"round": i + 1} | {name: float(values[i]) for name, values in means.items()}
            for i in range(rounds)
        ]

    def models(self, part: int) -> dict[str, Tensor]:
        """Named parameters `(replicas, ...)` of one part."""
        return store.read_models(self.folder, self.parts[part])


def train_ensemble(
    task: Task,
    num_replicas: int,
    folder: Path,
    *,
    engine: str = "local",
    first_updates: Tensor | None = None,
    part_size: int | None = None,
    progress: Tally | None = None,
    address: str | None = None,
    count: Callable[[int], object] | None = None,
    counted: int = 0,
) -> Ensemble:
    """Train what is missing of replicas `0 … num_replicas - 1` and keep it in the vault of `folder`.

    A part that is whole and belongs to this task is kept; a truncated or altered one is done again.

    Guarantee: models are shown after `count` was told how many there are, and noise is used for one model of
    each replica: a part that was made is made again only if it becomes the same, digit for digit.

    Args:
        task: what is trained.
        num_replicas: how many replicas.
        folder: where the parts are kept; nobody else may be at work there.
        engine: `local`, or `ray` for a cluster.
        first_updates: see `train_replicas`, to share round one between the ensembles of a sweep.
        part_size: replicas in a part; None takes that of the stored parts, or chooses from the memory.
        progress: told after every part.
        address: of a running cluster, `host:port`; None uses the one this process is connected to, else
            that of RAY_ADDRESS, else starts one here.
        count: told how many replicas there are, before any of them can be seen.
        counted: what it was told before.

    Raises:
        ValueError: the folder's noise belongs to another task, or models that were made are gone.
    """
    check_engine(engine)
    vault, tell, spend = Vault(folder), progress or (lambda done, total: None), count or (lambda made: None)
    parts = plan_for(task, num_replicas, folder, part_size)
    free = not task.mechanism.noise_multiplier or task.mechanism.one_release
    if not free:
        store.check_noise(vault, parts, counted, repeatable=not task.secure_noise)
    made = sum(len(part.replicas) for part in parts if store.is_kept(vault, part))
    missing = [part for part in parts if not store.publish_part(vault, part, lambda: spend(made))]
    done = num_replicas - sum(len(part.replicas) for part in missing)
    tell(done, num_replicas)
    if missing and first_updates is None:
        first_updates = shared_by_replicas(task, chain.from_iterable(part.replicas for part in missing))
    if engine != "local" and first_updates is not None:
        first_updates = first_updates.cpu()
    train = partial(train_replicas, task, first_updates=first_updates)
    by_range = {part.replicas: part for part in missing}
    on_gpu = task.device.startswith("cuda")
    with on_engine(engine, train, list(by_range), on_gpu=on_gpu, address=address) as finished:
        for replicas, trained in finished:  # a part is kept as soon as it is there
            part = by_range[replicas]
            again = store.is_kept(vault, part)
            store.keep_part(vault, part, store.encode(part, trained), free=free)
            made += 0 if again else len(replicas)
            store.publish_part(vault, part, partial(spend, made))
            done += len(replicas)
            tell(done, num_replicas)
    return Ensemble(folder=folder, parts=parts)


def check_engine(name: str) -> None:
    """Raise ValueError unless there is an engine of that name."""
    if name not in ("local", "ray"):
        raise ValueError(f"engine = {name!r} must be local or ray")


@contextmanager
def on_engine(
    name: str,
    work: Callable[[Job], Done],
    jobs: Sequence[Job],
    *,
    on_gpu: bool = False,
    address: str | None = None,
) -> Iterator[Iterator[tuple[Job, Done]]]:
    """Each job and what `work` makes of it, as they are done.

    The local engine does one after the other, a cluster as many as it has cores (`on_gpu`: GPUs) and again
    where a worker dies: what `work` returns must follow from the job alone. `work` travels once, with all
    that is bound to it. `address` as for `train_ensemble`; a cluster that is started here ends here.
    """
    check_engine(name)
    if name == "local":
        yield zip(jobs, map(work, jobs), strict=True)
        return
    ray = _import_ray()
    started = not ray.is_initialized()
    if started:
        # "local": a cluster of our own, not whichever one this machine remembers.
        where = address or os.environ.get("RAY_ADDRESS") or "local"
        check_reachable(where)
        ray.init(address=where, include_dashboard=False, log_to_driver=False)
    try:
        yield _on_workers(ray, work, jobs, on_gpu=on_gpu)
    finally:
        if started:
            ray.shutdown()


def plan_for(
    task: Task, num_replicas: int, folder: Path, part_size: int | None, *, any_engine: bool = False
) -> tuple[store.Part, ...]:
    """The parts of the ensemble, as large as those that `folder` already holds of it.

    Who goes on with a training needs parts of this version of the engine; who reads models takes those of
    `any_engine`.
    """
    check.count(num_replicas=num_replicas)
    mark = fingerprint(task)
    size = part_size or store.stored_part_size(folder, mark) or part_size_for(task)
    check.count(part_size=size)
    return tuple(store.plan(num_replicas, size, mark, None if any_engine else engine_version()))


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


def _on_workers(
    ray: Any, work: Callable[[Job], Done], jobs: Sequence[Job], *, on_gpu: bool
) -> Iterator[tuple[Job, Done]]:
    """Jobs in the order in which they are done, no more of them under way than the cluster can hold."""
    worker = ray.remote(num_cpus=1, num_gpus=int(on_gpu), max_retries=_RETRIES)(_on_one_core)
    kept = ray.put(work)
    waiting = list(reversed(jobs))
    most = 2 * max(1, int(ray.cluster_resources().get("GPU" if on_gpu else "CPU", 1)))
    running: dict[Any, Job] = {}
    while waiting or running:
        while waiting and len(running) < most:
            job = waiting.pop()
            running[worker.remote(kept, job)] = job
        (done, *_), _ = ray.wait(list(running), num_returns=1)
        yield running.pop(done), ray.get(done)


def _on_one_core(work: Callable[[Job], Done], job: Job) -> Done:
    """What a worker does."""
    torch.set_num_threads(1)
    return work(job)


def _import_ray() -> Any:
    # Usage statistics are off unless the user turned them on: nothing leaves the machine unasked.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # tasks on a CPU leave GPUs visible
    try:
        import ray
    except ImportError as error:
        raise ValueError("engine = 'ray' needs Ray: pip install 'fedproof[ray]'") from error
    return ray
