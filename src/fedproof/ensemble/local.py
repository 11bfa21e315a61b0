"""Engine `local`: the missing parts of an ensemble, one after the other on this machine."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.ensemble import store
from fedproof.ensemble.memory import part_size_for
from fedproof.ensemble.task import Task, engine_version, fingerprint, shares_first_round
from fedproof.ensemble.train import first_updates as compute_first_updates
from fedproof.ensemble.train import train_replicas

Progress = Callable[[int, int], None]
"""Called with the number of replicas done and of all."""


@dataclass(frozen=True, kw_only=True)
class Ensemble:
    """Finished replicas on disk.

    Attributes:
        folder: where the parts lie.
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
        return np.concatenate([store.read_scores(self.folder, part) for part in self.parts])

    def diagnostics(self) -> dict[str, NDArray[np.float64]]:
        """Diagnostics `(replicas, rounds)` of all replicas, see `RoundReport`."""
        found = [store.read_diagnostics(self.folder, part) for part in self.parts]
        return {name: np.concatenate([part[name] for part in found]) for name in found[0]}

    def models(self, part: int) -> dict[str, Tensor]:
        """Named parameters `(replicas, ...)` of one part."""
        return store.read_models(self.folder, self.parts[part])


def train_ensemble(
    task: Task,
    num_replicas: int,
    folder: Path,
    *,
    first_updates: Tensor | None = None,
    part_size: int | None = None,
    progress: Progress | None = None,
) -> Ensemble:
    """Train what is missing of replicas `0 … num_replicas - 1` and keep it in `folder`.

    A part that is whole and belongs to this task is kept; a truncated, altered or foreign one is done again.

    Args:
        task: what is trained.
        num_replicas: how many replicas.
        folder: where the parts are kept.
        first_updates: from `first_updates(task)`, to share round one between the ensembles of a sweep.
        part_size: replicas in a part; None takes that of the stored parts, or chooses from the memory.
        progress: told after every part.
    """
    parts = plan_for(task, num_replicas, folder, part_size)
    missing = tuple(part for part in parts if not store.is_finished(folder, part))
    done = num_replicas - sum(len(part.replicas) for part in missing)
    if progress is not None:
        progress(done, num_replicas)
    if missing and first_updates is None and shares_first_round(task):
        first_updates = compute_first_updates(task)
    for part in missing:
        replicas = train_replicas(task, part.replicas, first_updates=first_updates)
        store.write_part(folder, part, store.encode(part, replicas))
        done += len(part.replicas)
        if progress is not None:
            progress(done, num_replicas)
    return Ensemble(folder=folder, parts=parts)


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
