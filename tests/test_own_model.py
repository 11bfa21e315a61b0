"""A model of the user's, from the configuration to predictions, on machines with one core and with more."""

import os
import re
import shlex
import sys
from importlib.util import find_spec

import numpy as np
import pytest
import torch
from torch import nn

from fedproof.config import parse_config
from fedproof.ensemble import fingerprint
from fedproof.experiment import make_task, run
from fedproof.serving import predict
from tests.guide import ROOT, blocks, run_command
from tests.patience import finished

CONFIG = f"""
[data]
name = "digits"
classes = [0, 1]
users = 24
[model]
name = "{__name__}:random_features"
[mechanism]
rounds = 2
cohort = 8
noise_multiplier = 3.0
local_epochs = 2
learning_rate = 0.5
[ensemble]
replicas = 12
part_size = 4
seed = 1
"""


def random_features(federation):
    """A layer that is drawn and never trained, and a head."""
    first = nn.Linear(64, 100).requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, nn.ReLU(), nn.Linear(100, federation.num_classes))


def test_a_run_is_predicted_from_with_the_layers_it_was_trained_with(tmp_path):
    """They are drawn again in the process that predicts."""
    config = parse_config(CONFIG, "own", ())
    torch.manual_seed(1)
    finished = run(config, tmp_path / "run")
    torch.manual_seed(2)
    found = predict(tmp_path / "run", make_task(config, "cpu").federation.test_features)
    assert found.prediction == finished.certificate.prediction
    assert found.certified_size == finished.certificate.certified_size


def test_runs_and_predictions_are_the_same_bytes_on_any_number_of_threads(tmp_path):
    config, found = parse_config(CONFIG, "own", ("ensemble.replicas=40", "ensemble.part_size=20")), []
    inputs = np.random.default_rng(0).random((50, 64), dtype=np.float32)
    for number in (1, 2, 4):
        torch.set_num_threads(number)
        folder = run(config, tmp_path / str(number)).folder
        files = [file for file in folder.rglob("*") if file.suffix in (".npz", ".npy", ".safetensors")]
        found.append(
            {str(file.relative_to(folder)): file.read_bytes() for file in files}
            | {"certificate": (folder / "certificate.json").read_bytes()}
            | {"predictions": predict(tmp_path / "1", inputs)}
        )
    assert found[0] == found[1] == found[2]


def test_parts_of_a_model_with_other_frozen_layers_are_not_resumed():
    task = make_task(parse_config(CONFIG, "own", ()), "cpu")
    before = fingerprint(task)
    assert fingerprint(task) == before
    next(iter(task.model.frozen.values())).view(-1)[3].add_(1e-3)
    assert fingerprint(task) != before


@pytest.mark.slow
def test_the_example_of_the_guide_on_several_cores(tmp_path):
    """Two parts of 90 replicas with 25 users each, hence five stacks of 512 that are trained side by side."""
    for _, text in blocks(ROOT / "docs" / "extending.md"):
        name = re.match(r"# ([\w/]+\.\w+)\n", text)
        if name:
            path = tmp_path / name[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
    found = set()
    keys = (
        "ensemble.replicas=180",
        "ensemble.part_size=90",
        "mechanism.rounds=2",
        "mechanism.local_epochs=1",
    )
    for number, engine in ((1, "local"), (4, "local"), (2, "ray")):
        if engine == "ray" and not find_spec("ray"):
            continue
        folder = tmp_path / "runs" / f"{number}-{engine}"
        command = ["fedproof", "run", "experiment.toml", "--out", str(folder), "--engine", engine]
        for key in (*keys, "ensemble.seed=1"):
            command += ["--set", key]
        if engine == "local":  # in this process, which need not be started
            torch.set_num_threads(number)
            done = run_command(shlex.join(command), tmp_path)
        else:
            environment = os.environ | {"OMP_NUM_THREADS": str(number)}
            done = finished([sys.executable, "-m", *command], cwd=tmp_path, env=environment)
        assert done.returncode == 0, done.stderr
        found.add((folder / "scores.npy").read_bytes() + (folder / "certificate.json").read_bytes())
    assert len(found) == 1


def test_what_a_module_of_ones_own_does_not_use_is_refused():
    for change in ("model.hidden=[3]", "model.weights=x.npz"):
        with pytest.raises(ValueError, match=r"model\.(hidden|weights) = .* not "):
            parse_config(CONFIG, "own", [change])
