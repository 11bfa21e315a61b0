"""A folder of experiments so small that every kind of measurement takes a second."""

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from paper import Rows, load_studies, reproduce
from paper.page import page
from paper.results import AttackCell, Attacked, Clean, LargestSize
from paper.rows import MeasuredRow
from paper.study import points_of

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
name = "costs"
title = "Backdoors by four costs"
measure = "costs"
experiment = "tiny"
set = ["attack.target=0", "attack.scale=10", "attack.cost_bound=0.05"]
attacks = ["backdoor"]
sizes = [1, 2]
[[panel]]
name = "sizes"
title = "K alone"
measure = "sizes"
experiment = "tiny"
set = ["ensemble.replicas=600"]
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


@pytest.fixture(scope="session")
def measured(experiments, tmp_path_factory):
    """The rows of that folder, for all tests: none may change them."""
    return reproduce(load_studies(experiments), experiments, tmp_path_factory.mktemp("rows"))


@pytest.fixture(scope="session")
def committed():
    """What is published: the studies, their points and rows, and the page, which takes a second to write."""
    studies, rows = load_studies(EXPERIMENTS), Rows(EXPERIMENTS / "results" / "rows.jsonl")
    points = [point for study in studies for point in points_of(study, EXPERIMENTS)]
    return SimpleNamespace(studies=studies, points=points, rows=rows, text=page(studies, EXPERIMENTS, rows))


@pytest.fixture(scope="session")
def measured_row():
    """A whole row around a result."""

    def build(result, key="study/panel", values=None):
        return MeasuredRow(
            key=key,
            settings_sha256="0" * 64,
            values=values or {},
            replicas=40,
            rounds=1,
            version="0.1.0",
            hardware="CPU",
            jobs=1,
            seconds=1.0,
            wall=1.0,
            result=result,
        )

    return build


@pytest.fixture(scope="session")
def attacked():
    """A result of attacks from what matters of each."""

    def build(*attacks, epsilon=None):
        common = dict.fromkeys(
            ("clean_replica_accuracy", "clean_accuracy", "clean_cost", "clipped_share"), 0.5
        )
        common |= dict.fromkeys(("certified_inputs", "kept_on_certified", "holds_on_certified"))
        common |= dict.fromkeys(("certified_accuracy", "certified_lower", "certified_upper"))
        common |= dict.fromkeys(("paper_lower", "paper_upper", "holds_on_cost"))
        common |= {"accuracy": 0.5, "cost": 0.5, "replicas": 40, "sound": True, "reasons": ()}
        cells = tuple(AttackCell(**(common | one)) for one in attacks)
        return Attacked(accuracy=0.5, attacks=cells, cost_bound=1.0, epsilon=epsilon or {})

    return build


@pytest.fixture(scope="session")
def sized_row(measured_row):
    """A row of a certified ensemble: `(chance, K of the whole, K of its parts)` at one ε, and its curves."""

    def build(key, values, epsilon, sizes, curves=()):
        found = tuple(
            LargestSize(epsilon=epsilon, failure_probability=chance, all=whole, parts=tuple(parts))
            for chance, whole, parts in sizes
        )
        result = Clean(
            accuracy=0.97,
            accuracy_std=0.0,
            ensemble_accuracy=0.97,
            epsilon={"paper": epsilon},
            delta=0.01,
            curves=curves,
            sizes=found,
        )
        return measured_row(result, key, values)

    return build
