"""A folder of experiments so small that every kind of measurement takes a second."""

import shutil
from pathlib import Path

import pytest

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

TINY = """
[data]
name = "digits"
classes = [0, 1]
users = 12
[model]
name = "linear"
[mechanism]
kind = "user-fedavg"
rounds = 1
sampling = "poisson"
cohort = 6
clip_norm = 1.0
noise_multiplier = 1.0
delta = 0.01
[ensemble]
seed = 0
replicas = 40
"""

STUDY = """
title = "Everything, small"
order = 1
shows = "what a test needs"
[[panel]]
name = "certified"
title = "Certified accuracy"
measure = "certified"
experiment = "tiny"
vary = ["mechanism.noise_multiplier=1.0,2.0"]
baseline = ["mechanism.kind=fedavg"]
[[panel]]
name = "again"
title = "The same rows"
measure = "certified"
rows_of = "small/certified"
[[panel]]
name = "attacked"
title = "Label flips"
measure = "attacked"
experiment = "tiny"
set = ["attack.target=0", "attack.scale=10"]
attacks = ["label-flip"]
sizes = [1, 2]
[[panel]]
name = "needed"
title = "Needed"
measure = "needed"
experiment = "tiny"
set = ["attack.target=0"]
vary = ["mechanism.noise_multiplier=2.0"]
attacks = ["label-flip"]
taus = [1.5, 4]
[[panel]]
name = "seconds"
title = "Seconds"
measure = "run-time"
experiment = "tiny"
[[panel]]
name = "rounds"
title = "Dopamine"
measure = "dopamine"
"""


@pytest.fixture(scope="session")
def experiments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("experiments")
    (folder / "paper").mkdir()
    (folder / "tiny.toml").write_text(TINY)
    (folder / "paper" / "small.toml").write_text(STUDY)
    shutil.copy(EXPERIMENTS / "paper_values.json", folder)
    return folder
