"""Sweeps: every combination, shared work done once, finished runs kept, the same as runs by themselves."""

import json
from dataclasses import replace

import pytest
import torch

from fedproof import encoders
from fedproof.config import parse_config
from fedproof.ensemble import train
from fedproof.experiment import SharedWork, run
from fedproof.sweep import points, sweep

TINY = """
[data]
classes = [0, 1]
users = 24
[mechanism]
rounds = 1
cohort = 8
noise_multiplier = 3.0
delta = 0.01
local_epochs = 2
batch_size = 4
learning_rate = 0.5
[ensemble]
seed = 0
replicas = 20
[certificate]
method = "mean"
"""
VARY = ("mechanism.noise_multiplier=2,4", "mechanism.clip_norm=0.5,1.0")


@pytest.fixture
def config():
    return parse_config(TINY, "tiny")


def test_every_combination_is_a_run(config):
    runs = points(config, VARY)
    assert [point.name for point in runs] == [
        "noise_multiplier=2,clip_norm=0.5",
        "noise_multiplier=2,clip_norm=1.0",
        "noise_multiplier=4,clip_norm=0.5",
        "noise_multiplier=4,clip_norm=1.0",
    ]
    assert runs[3].config.mechanism.noise_multiplier == 4.0


def test_first_updates_are_computed_once_and_change_nothing(config, tmp_path, first_trained):
    runs = points(config, VARY)
    rows = sweep(runs, tmp_path / "sweep")
    assert first_trained
    assert len(first_trained) == len(set(first_trained))
    assert len(rows) == 4
    alone = run(runs[2].config, tmp_path / "alone")
    together = tmp_path / "sweep" / runs[2].name
    assert (together / "scores.npy").read_bytes() == (alone.folder / "scores.npy").read_bytes()
    assert (together / "certificate.json").read_bytes() == (alone.folder / "certificate.json").read_bytes()


@pytest.mark.parametrize("key", ["learning_rate=0.1,0.2", "shift=0,1", "stretch=0,0.2", "bend=0,1"])
def test_another_local_training_has_first_updates_of_its_own(key, config):
    flat = encoders.load(**config.data.model_dump())
    rows, inputs = (each.reshape(-1, 1, 8, 8) for each in (flat.features, flat.test_features))
    images = replace(flat, features=rows, test_features=inputs)
    shared = SharedWork(wanted=True, federations={repr(config.data): images})
    for point in points(config, [f"mechanism.{key}"]):
        task = shared.task(point.config, "cpu")
        found = shared.first_updates(point.config, task)
        drawn = ~found[:, 0].isnan()
        assert torch.equal(found[drawn], train.first_updates(task)[drawn])


def test_a_sweep_goes_on_where_it_stopped(config, tmp_path):
    runs = points(config, VARY)
    sweep(runs[:2], tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/private/parts/*.json")}
    rows = sweep(runs, tmp_path)
    assert all(path.stat().st_mtime_ns == moment for path, moment in times.items())
    assert json.loads((tmp_path / "sweep.json").read_text()) == {"rows": [row.document() for row in rows]}


def test_a_summary_that_is_not_what_was_certified_is_written_again(config, tmp_path):
    honest = sweep(points(config, VARY)[:1], tmp_path)
    (path,) = tmp_path.glob("*/summary.json")
    path.write_text(json.dumps(json.loads(path.read_text()) | {"certified_accuracy": {"0": 1.0, "99": 1.0}}))
    (again,) = sweep(points(config, VARY)[:1], tmp_path)
    assert again.certified_accuracy == honest[0].certified_accuracy


def test_more_noise_costs_less_privacy(config, tmp_path):
    low, high = sweep(points(config, ["mechanism.noise_multiplier=1,8"]), tmp_path)
    assert low.spent.epsilon > high.spent.epsilon
    # In this order they stand in sweep.json.
    keys = "values folder spent accuracy certified_accuracy certified_size sound seconds unmet tests_of_users"
    assert list(low.document()) == keys.split()


@pytest.mark.parametrize("variation", ["rounds=1,2", "mechanism.rounds", "mechanism.rounds=1,,2"])
def test_variations_must_look_like_variations(config, variation):
    with pytest.raises(ValueError, match=r"must look like section\.key=value1,value2"):
        points(config, [variation])


def test_a_sweep_keeps_why_a_run_proves_nothing(config, tmp_path):
    """The paper's ε of cohorts of fixed size is too small by half, and a median is taken from the data."""
    drawn, clipped = "mechanism.sampling=poisson,fixed", 'mechanism.clip="median"'
    quiet = parse_config(TINY.replace("replicas = 20", "replicas = 2"), "tiny", [clipped])
    poisson, fixed = sweep(points(quiet, [drawn]), tmp_path)
    for row in (poisson, fixed):
        assert not row.sound
        assert row.unmet[0].code == "clip-norm"
        assert not row.spent.holds
    assert [one.code for one in poisson.spent.unmet] == ["clip-norm"]
    assert [one.code for one in fixed.spent.unmet] == ["clip-norm", "one-clip-norm"]
    kept = json.loads((tmp_path / "sweep.json").read_text())["rows"]
    assert kept[1]["spent"]["unmet"] == [one.document() for one in fixed.spent.unmet]


def test_a_sweep_must_vary_something(config):
    with pytest.raises(ValueError, match="--vary is missing"):
        points(config, [])


def test_the_same_run_twice_is_refused(config, tmp_path):
    with pytest.raises(ValueError, match="two runs would have the same directory"):
        sweep(points(config, ["mechanism.rounds=1,1"]), tmp_path)


def test_two_keys_may_take_the_same_values(config):
    runs = points(config, ["ensemble.seed+data.seed=3,4"])
    assert [(point.config.ensemble.seed, point.config.data.seed) for point in runs] == [(3, 3), (4, 4)]
    assert [point.name for point in runs] == ["seed=3", "seed=4"]
    with pytest.raises(ValueError, match=r"must look like section\.key=value1,value2"):
        points(config, ["ensemble.seed+seed=1,2"])


def test_a_sweep_over_choices_leaves_behind_what_goes_with_another():
    text = TINY.replace("users = 24", "users = 24\npartition = 'dirichlet'\ndirichlet_alpha = 0.1")
    runs = points(parse_config(text, "tiny"), ["data.partition=iid,dirichlet"])
    assert [run.config.data.dirichlet_alpha for run in runs] == [0.5, 0.1]
    with pytest.raises(ValueError, match=r"sweep: data\.degree = 0\.1 belongs to partition = 'degree'"):
        points(parse_config(text, "tiny"), ["data.degree=0.1,0.2"])
