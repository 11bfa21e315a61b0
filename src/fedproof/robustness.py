"""Attacks on an experiment, beside what is certified for it: one row for each attack and number of units."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedproof.attacks import Attack, Row, build_series, evaluate_all
from fedproof.certificates import Certificate
from fedproof.config import Config
from fedproof.ensemble import Task
from fedproof.experiment import certify_scores, ensemble_size, make_task
from fedproof.mechanisms import FedAvg
from fedproof.progress import Progress, silent

_OPTIONS = (
    "poison_fraction",
    "source",
    "target",
    "trigger_size",
    "direction",
    "values",
    "gain",
    "spread",
    "user_instances",
)


def attack(
    config: Config,
    kinds: Sequence[str],
    sizes: Sequence[int],
    *,
    device: str = "cpu",
    task: Task | None = None,
    first: Tensor | None = None,
    progress: Progress = silent,
) -> list[Row]:
    """Rows of every attack of `kinds` with each number of `sizes` of poisoned units.

    The clean ensemble is trained once; honest users' first updates are shared with the attacked ones.
    Attackers are chosen by `attack.seed`, those of a smaller size among those of a larger one; where
    `threat.relation` is join they are new units. Who has the task and its first updates already can give
    them; `device` is then the task's.
    """
    task = task or make_task(config, device)
    attacks = [one for kind in kinds for one in series(config, kind, sizes, task)]

    def certifier(scores: NDArray[np.float32]) -> Certificate | None:
        if isinstance(task.mechanism, FedAvg):
            return None
        return certify_scores(config, task, scores, task.federation.test_labels)

    return evaluate_all(
        task,
        attacks,
        num_replicas=ensemble_size(config, task),
        certifier=certifier,
        cost_bound=config.attack.cost_bound,
        delta=config.mechanism.delta,
        first=first,
        progress=progress,
    )


def series(config: Config, kind: str, sizes: Sequence[int], task: Task) -> list[tuple[str, Attack]]:
    """The attack with each number of poisoned units, with the options the configuration gives it."""
    section = config.attack
    options: dict[str, Any] = {
        name: getattr(section, name) for name in _OPTIONS if getattr(section, name) is not None
    }
    return build_series(
        kind,
        sizes,
        num_users=task.federation.num_users,
        unit=config.threat.unit,
        relation=config.threat.relation,
        by_data=getattr(task.mechanism, "pooled", False),
        seed=section.seed,
        scale=section.scale,
        **options,
    )
