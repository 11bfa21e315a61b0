"""A newcomer's mistakes with her own data, model and machine: one line each, and no directory is left."""

import shlex
import sys

import pytest
import typer.main
from click.testing import CliRunner

from fedproof.cli import app

MAIN = typer.main.get_command(app)
OWN = """
import fedproof as fp, numpy as np, torch
from torch import nn
rng = np.random.default_rng(0)
X, XT = (rng.normal(size=(count, 8)).astype(np.float32) for count in (200, 40))
y, yT = ((part[:, 0] > 0).astype(np.int64) for part in (X, XT))
BAD = X.copy()
BAD[3, 2] = np.nan
good = lambda: (X, y, XT, yT)
nan = lambda: (BAD, y, XT, yT)
shapes = lambda: (X, y, XT[:, :5], yT)
lengths = lambda: (X, y[:-3], XT, yT)
halves = lambda: (X, y + 0.5, XT, yT)
onehot = lambda: (X, np.eye(2)[y], XT, np.eye(2)[yT])
negative = lambda: (X, y - 1, XT, yT)
strings = lambda: (X, np.array(["a", "b"])[y], XT, np.array(["a", "b"])[yT])
prices = lambda: (X, y * 10**9, XT, yT)
empty = lambda: (X[:0], y[:0], XT, yT)
ragged = lambda: (np.array([[1, 2], [3]], dtype=object), y, XT, yT)
nothing = lambda: None
def burning():
    raise RuntimeError("disk on fire")
tensors = lambda: tuple(map(torch.tensor, (X, y, XT, yT)))
floats = lambda: (X, y.astype(float), XT, yT.astype(np.uint8))
grey = lambda part: (part * 20 + 128).clip(0, 255).astype(np.uint8)
pixels = lambda: (grey(X), y, grey(XT), yT)
mixed = lambda: (X, y, grey(XT), yT)
metres = lambda: (X * 1e6, y, XT * 1e6, yT)
def bytewise():
    offsets = np.arange(0, 201, 20)
    return fp.Federation(features=grey(X), labels=y, offsets=offsets, test_features=XT,
        test_labels=yT, class_names=("a", "b"), name="bytes")
net = lambda data: nn.Sequential(nn.Flatten(), nn.Linear(8, 2))
wide = lambda data: nn.Sequential(nn.Flatten(), nn.Linear(9, 2))
three = lambda data: nn.Sequential(nn.Flatten(), nn.Linear(8, 3))
normed = lambda data: nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 2))
number = lambda data: 3
still = lambda data: nn.Flatten()
"""
DATA, MODEL = "--set data.name=own:", "--set data.name=own:good --set model.name=own:"
MISTAKES = [
    # data
    (f"{DATA}nan", "own:nan: features must be finite numbers, one row for each instance"),
    (f"{DATA}shapes", "test inputs have shape (5,), but training instances (8,): they must agree"),
    (f"{DATA}lengths", "own:lengths: 200 features but 197 labels"),
    (f"{DATA}halves", "own:halves: labels must be one row of integers from 0, found float64 (200,)"),
    (f"{DATA}onehot", "own:onehot: labels must be one row of integers from 0, found float64 (200, 2)"),
    (f"{DATA}negative", "own:negative: labels must be integers from 0, the smallest is -1"),
    (f"{DATA}strings", "own:strings: labels must be one row of integers from 0, found <U1 (200,)"),
    (f"{DATA}prices", "own:prices: label 1000000000 is no class; number the classes from 0"),
    (f"{DATA}empty", "users = 10 with at least 1 instances each need 10 instances, there are 0"),
    (f"{DATA}ragged", "own:ragged: features must be an array of numbers, one row for each instance"),
    (f"{DATA}mixed", "own:mixed: training features are float32, test features uint8"),
    (f"{DATA}bytewise", "bytes: features are uint8, must be float32 or token ids"),
    (f"{DATA}nothing", "own:nothing returned NoneType; it must return"),
    (f"{DATA}burning", "own:burning failed with RuntimeError: disk on fire"),
    (f"{DATA}missing", "name = 'own:missing': module 'own' has no function 'missing'"),
    (
        "--set data.name=nowhere:good",
        "name = 'nowhere:good' cannot be imported: module 'nowhere' is not found",
    ),
    ("--set data.name=nope", "name = 'nope' is no data set; known: digits, mnist"),
    ("--set data.classes=[1,99]", "classes: 99 is no class of digits; it has 0 to 9"),
    ("--set data.partition=natural", "partition = 'natural': digits comes without users; use iid or dir"),
    ("--set data.name=mnist --set data.data_dir=/nowhere", "data_dir = '/nowhere' is no folder"),
    (f"{DATA}good --set data.users=500", "users = 500 with at least 1 instances each need 500 instances"),
    (f"{DATA}good --set data.encoder=hog", "encoder = 'hog' needs grey images"),
    ("--set data.most_instances=2", "more than most_instances = 2"),
    # model
    (f"{MODEL}wide", "own:wide does not take inputs of shape (8,): "),
    (f"{MODEL}three", "own:three gives (3,) numbers for an input, must give one for each of 2 classes"),
    (f"{MODEL}normed", "1 (BatchNorm1d) mixes the instances of a batch"),
    (f"{MODEL}number", "own:number returned int; it must return a torch.nn.Module"),
    (f"{MODEL}still", "the module has no parameter with requires_grad = True: nothing to train"),
    (f"{MODEL}missing", "model = 'own:missing': module 'own' has no function 'missing'"),
    ("--set model.name=resnet", "model = 'resnet' must be one of linear, logistic"),
    (f"{DATA}good --set model.name=lenet", "lenet needs inputs of shape (28, 28) or (1, 28, 28), not (8,)"),
    ("--set model.hidden=[3]", "model.hidden = [3] belongs to name = 'mlp' or 'lstm', not 'linear'"),
    ("--set model.weights=w.npz", "w.npz"),
    # machine
    ("--device gpu", "device = 'gpu' must be cpu, cuda or cuda:N"),
    ("--device mps", "device = 'mps' must be cpu, cuda or cuda:N"),
    ("--engine spark", "engine = 'spark' must be local or ray"),
    # mechanism
    (
        "--set mechanism.groups=4",
        "groups = 4 belongs to kind = 'partition' or 'noisy-partition', not 'user-fedavg'",
    ),
    ("--set mechanism.kind=partition", "cohort = 3 is not used by kind = 'partition'"),
    ("--set mechanism.pooled=true", "pooled = true is not used by kind = 'user-fedavg'"),
    ("--set mechanism.cohort=30", "mechanism.cohort = 30 must be at most data.users = 10"),
    ("--set mechanism.clip=none", "mechanism.clip = 'none': input should be 'flat', 'per-layer'"),
    ("--set mechanism.noise=2", "mechanism.noise is not a known key; did you mean noise_multiplier?"),
    ("--set mechanism.noise_multiplier=0", "noise_multiplier = 0 must be positive for kind = 'user-fedavg'"),
    ("--set threat.unit=instance", "threat.unit = 'instance' must be 'user' for mechanism.kind"),
    (
        "--set aggregation.rule=krum --set mechanism.sampling=fixed --set mechanism.cohort=2",
        "rule = 'krum' against num_adversaries = 0 needs cohorts of at least 3 users, not 2",
    ),
    ("--set aggregation.rule=best", "rule = 'best' must be one of mean, krum"),
    ("--set ensemble.max_epsilon=0.0001", "ensemble.max_epsilon = 0.0001 pays for 0 replicas"),
    ("--set certificate.bound=levels --set certificate.method=mean", "bound = 'levels' belongs to method"),
    ("--set attack.kind=backdoor", "attack.kind: a run trains honest users"),
]
BASE = "run x.toml --out run --set ensemble.replicas=4 --set data.users=10 --set mechanism.cohort=3"


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    (tmp_path / "own.py").write_text(OWN)
    (tmp_path / "x.toml").write_text("")
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "own", raising=False)


def said(line):
    done = CliRunner().invoke(MAIN, shlex.split(f"{BASE} {line}"))
    assert isinstance(done.exception, ValueError), repr(done.exception)
    return str(done.exception)


@pytest.mark.parametrize(("line", "answer"), MISTAKES, ids=[line for line, _ in MISTAKES])
def test_a_mistake_is_answered_by_one_line_and_claims_nothing(line, answer, tmp_path):
    found = said(line)
    assert answer in found
    assert "\n" not in found
    assert not (tmp_path / "run").exists()


COMMANDS_WITH_A_DEVICE = {
    "demo": "demo --out run",
    "run": "run x.toml --out run",
    "sweep": "sweep x.toml --out run --vary mechanism.rounds=1,2",
    "compare": "compare x.toml --out run",
    "attack": "attack x.toml --attack backdoor --out run",
    "predict": "predict run --inputs new.npy",
    "plan": "plan --find mechanism --pilot x.toml --size 3",
    "reproduce": "reproduce privacy-budgets --out run",
    "records": "records users-mnist --out run",
    "pretrain": "pretrain x.toml --out run/w.npz",
    "distil": "distil run --out run/w.npz",
    "bench": "bench",
    "data encode": "data encode x.toml",
}
DEVICES = {
    "gpu": "device = 'gpu' must be cpu, cuda or cuda:N",
    "cuda:x": "device = 'cuda:x' must be cpu, cuda or cuda:N",
    "": "device = '' must be cpu, cuda or cuda:N",
    "cuda": "device = 'cuda': torch sees no CUDA device; use device = 'cpu'",
    "cuda:1": "device = 'cuda:1': torch sees no CUDA device; use device = 'cpu'",
}


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("command", COMMANDS_WITH_A_DEVICE)
def test_a_device_that_is_not_there_is_refused_before_anything_is_read(
    command, device, tmp_path, monkeypatch
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    there = sorted(tmp_path.iterdir())
    (tmp_path / "x.toml").write_text("[nonsense")  # said first if it were read
    done = CliRunner().invoke(MAIN, [*shlex.split(COMMANDS_WITH_A_DEVICE[command]), "--device", device])
    assert isinstance(done.exception, ValueError), repr(done.exception)
    assert str(done.exception) == DEVICES[device]
    assert (done.stdout, sorted(tmp_path.iterdir())) == ("", there)


def test_every_command_with_a_device_is_asked_for_one_that_is_not_there():
    groups = {"": MAIN, "data ": MAIN.commands["data"]}
    asked = {
        f"{group}{name}"
        for group, commands in groups.items()
        for name, command in commands.commands.items()
        if any(option.name == "device" for option in command.params)
    }
    assert asked == COMMANDS_WITH_A_DEVICE.keys()


def test_what_was_there_before_stays(tmp_path):
    (tmp_path / "run").mkdir()
    said("--device gpu")
    assert list((tmp_path / "run").iterdir()) == []


def test_a_run_that_trained_is_gone_on_with_after_a_refusal(tmp_path):
    assert CliRunner().invoke(MAIN, shlex.split(BASE)).exit_code == 0
    kept = sorted(path.name for path in (tmp_path / "run").iterdir())
    assert "continue with --resume" in said("")
    said("--resume --device gpu")
    assert sorted(path.name for path in (tmp_path / "run").iterdir()) == kept


def test_bytes_are_read_as_pixels_with_a_line(caplog):
    line = f"{BASE} {DATA}pixels --set model.name=own:net"
    assert CliRunner().invoke(MAIN, shlex.split(line)).exit_code == 0
    assert caplog.messages == ["own:pixels: uint8 features are read as pixels, and divided by 255"]


@pytest.mark.parametrize("way", ["tensors", "floats"])
def test_tensors_and_labels_of_any_type_are_welcome(way):
    line = f"{BASE} {DATA}{way} --set model.name=own:net"
    assert CliRunner().invoke(MAIN, shlex.split(line)).exit_code == 0


@pytest.mark.parametrize("way", ["good", "metres"])
def test_features_that_nobody_scaled_are_doubted(way):
    done = CliRunner().invoke(MAIN, shlex.split(f"{BASE} {DATA}{way}"))
    assert done.exit_code == 0
    assert ("features reach beyond 1000" in done.stdout) == (way == "metres")
