"""A few models on a few users each, to plan with: how often they vote right, input by input."""

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from fedproof import encoders
from fedproof.config import Config, validated
from fedproof.ensemble import train_replicas
from fedproof.experiment import make_task
from fedproof.federation import Federation
from fedproof.progress import Progress, silent
from fedproof.seeds import derived_seed, fresh_seed

COHORTS = (1, 2, 3, 5, 10, 20)
_INPUTS = 1000


def pilot(
    config: Config,
    *,
    cohorts: Iterable[int] = COHORTS,
    replicas: int = 24,
    device: str = "cpu",
    progress: Progress = silent,
) -> tuple[Federation, dict[int, NDArray[np.float64]]]:
    """The federation, and for each cohort the share of right votes of each test input, without noise.

    Model and local training are those of `config`; of its mechanism only rounds and pooling are kept. At
    most a thousand test inputs are looked at, and cohorts that would leave one group alone are left out.

    Guarantee: no replica of a run of `config` is trained here. What is chosen after looking at these models
    is chosen independently of those that are then certified.
    """
    named = config.ensemble.seed
    seed = fresh_seed() if named is None else derived_seed(named, "pilot")
    limit = min(config.data.test_limit or _INPUTS, _INPUTS)
    section = config.data.model_copy(update={"test_limit": limit})
    federation = encoders.load(**section.model_dump(), device=device, progress=progress)
    units = len(federation.labels) if config.draws_instances else federation.num_users
    wanted = [cohort for cohort in cohorts if 2 * cohort <= units]
    found = {}
    for index, cohort in enumerate(wanted):
        progress("pilot", index, len(wanted))
        task = make_task(drawing(config, cohort), device, federation, seed=seed)
        votes = train_replicas(task, range(replicas)).scores.argmax(axis=2)
        found[cohort] = np.asarray((votes == federation.test_labels).mean(axis=0))
    progress("pilot", len(wanted), len(wanted))
    return federation, found


def drawing(config: Config, cohort: int) -> Config:
    """The configuration with cohorts of so many units drawn once, and no noise."""
    document = config.model_dump(mode="json", exclude_none=True)
    unused = ("groups", "local_steps", "upload", "anchors", "sharpness")
    kept = {key: value for key, value in document["mechanism"].items() if key not in unused}
    changed = {"kind": "cohort-once", "sampling": "fixed", "cohort": cohort, "noise_multiplier": 0.0}
    document["mechanism"] = kept | changed | {"clip": "flat", "pooled": config.mechanism.pools}
    document["certificate"]["method"] = "vote"
    document["certificate"].pop("bound", None)
    del document["aggregation"], document["attack"]
    if not config.draws_instances:
        document["threat"]["unit"] = "user"
    return validated(Config, document, "pilot")
