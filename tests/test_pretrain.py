"""Pretraining on public classes: weights that load, repeat by seed, and help."""

import json

import numpy as np
import pytest
import torch

from fedproof import data
from fedproof.certificates import dumps, verify
from fedproof.config import parse_config
from fedproof.ensemble import Task
from fedproof.experiment import run
from fedproof.mechanisms import Bagging, FixedSize, LocalTraining
from fedproof.models import build
from fedproof.pretrain import distil, load_pretrain_config, pretrain
from fedproof.statements import sentences
from fedproof.training import train
from tests.commands import fedproof

CONFIG = """
[data]
name = "digits"
classes = [2, 3, 4, 5, 6, 7, 8, 9]
[model]
name = "mlp"
hidden = [16]
[pretrain]
epochs = 5
batch_size = 32
learning_rate = 0.1
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pretrain.toml"
    path.write_text(CONFIG)
    return load_pretrain_config(path)


def test_weights_of_public_classes_start_a_two_class_model(config, tmp_path):
    result = pretrain(config, tmp_path / "weights.npz")
    assert result.accuracy > 0.8
    private = data.load("digits", classes=[0, 1], users=96)
    model = build("mlp", private, hidden=(16,), weights=result.path)
    start = model.layout.views(model.initial(0).unsqueeze(0))
    with np.load(result.path, allow_pickle=False) as file:
        names = list(model.layout.names)
        np.testing.assert_array_equal(start[names[0]][0].numpy(), file[names[0]])
    assert not start[names[-1]].any()  # the head has other classes: it starts at zero


def test_a_device_that_is_not_there_is_refused_before_data_are_read(config, tmp_path):
    with pytest.raises(ValueError, match="device = 'gpu' must be cpu, cuda or cuda:N"):
        pretrain(config, tmp_path / "weights.npz", device="gpu")


def test_a_full_disk_leaves_the_weights_that_were_there(config, tmp_path, monkeypatch):
    def full(file, **arrays):
        file.write(b"PK half of a file")
        raise OSError(28, "No space left on device")

    (tmp_path / "weights.npz").write_bytes(b"old")
    monkeypatch.setattr("fedproof.pretrain._train", lambda *told: None)
    monkeypatch.setattr(np, "savez", full)
    with pytest.raises(OSError, match="cannot be written"):
        pretrain(config, tmp_path / "weights.npz")
    assert (tmp_path / "weights.npz").read_bytes() == b"old"


def test_where_no_file_can_be_is_said_before_training(tmp_path, monkeypatch):
    monkeypatch.setattr("fedproof.pretrain.pretrain", lambda *told, **how: pytest.fail("was trained"))
    (tmp_path / "pretrain.toml").write_text(CONFIG)
    (tmp_path / "w.npz").mkdir()
    for out, message in (("pretrain.toml/w.npz", "is a file, must be a folder"), ("w.npz", "is no file")):
        said = fedproof("pretrain", tmp_path / "pretrain.toml", "--out", tmp_path / out, status=1).stderr
        assert message in said.replace("\n", "")


def test_the_same_seed_gives_the_same_weights(config, tmp_path):
    first, second = (pretrain(config, tmp_path / f"{name}.npz").path for name in "ab")
    with np.load(first) as one, np.load(second) as two:
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nnme = 'digits'", "data.nme is not a known key; did you mean name?"),
        ("[pretrain]\nepochs = 0\n[data]\nname = 'digits'", "pretrain.epochs = 0"),
        ("", "data is missing"),
    ],
)
def test_a_wrong_configuration_is_one_line(tmp_path, text, message):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.toml: ") as caught:
        load_pretrain_config(path)
    assert message in str(caught.value)


# --- a model that a release teaches -------------------------------------------------------------------------

RELEASED = """
[data]
name = "digits"
users = 40
public = 300
project = 16
[mechanism]
kind = "one-round"
noise_multiplier = 0.5
anchors = 100
solver = "ridge"
[ensemble]
seed = 1
"""


def test_a_release_teaches_a_model_of_another_shape_and_it_claims_nothing(tmp_path):
    result = run(parse_config(RELEASED, "test"), tmp_path / "run")
    before = {path: path.read_bytes() for path in (tmp_path / "run").rglob("*") if path.is_file()}
    out = tmp_path / "new" / "small.npz"
    told = fedproof("distil", tmp_path / "run", "--model", "mlp", "--hidden", 24, "--out", out)
    assert "it costs no more privacy, and has no certificate of its own" in told.stdout
    taught = json.loads(fedproof("distil", tmp_path / "run", "--out", out, "--json").stdout)
    assert taught["accuracy"] > result.summary.accuracy - 0.15
    assert set(np.load(out)) == set(build("mlp", result.federation).layout.names)
    linear = distil(tmp_path / "run", "linear", out)
    assert linear.accuracy > result.summary.accuracy - 0.1
    release = tmp_path / "run" / "release.npz"
    said = fedproof("distil", tmp_path / "run", "--out", release, status=1).stderr
    assert f"--out {release} is a file of the run, must be a new one" in said.replace("\n", "")
    assert before == {path: path.read_bytes() for path in before}


def test_what_teaches_nothing(tmp_path):
    rows = parse_config(RELEASED.replace("anchors = 100", "upload = 'rows'"), "test")
    run(rows, tmp_path / "rows")
    for folder, message in ((tmp_path / "rows", "released no votes on anchors"), (tmp_path, "no such file")):
        told = fedproof("distil", folder, "--out", tmp_path / "x.npz", status=1)
        assert message in told.stderr
    assert (
        "--out model.txt: must end in .npz"
        in fedproof("distil", tmp_path, "--out", "model.txt", status=1).stderr
    )
    run(parse_config(RELEASED, "test"), tmp_path / "run")
    config = tmp_path / "run" / "config.toml"
    config.write_text(config.read_text().replace("seed = 0", "seed = 5"))
    with pytest.raises(ValueError, match="the public inputs are not those that the release was made with"):
        distil(tmp_path / "run", "linear", tmp_path / "x.npz")


def test_a_certificate_takes_it_for_granted_that_what_it_starts_from_is_not_poisoned(tmp_path):
    """Whoever had a part in the weights is in every replica, drawn or not."""
    federation = data.load("digits", classes=[0, 1], users=24)
    bagged = Bagging(rounds=1, sampling=FixedSize(cohort=4, users=24))
    plain = build("logistic", federation)
    named = zip(plain.layout.names, plain.layout.shapes, strict=True)
    arrays = {name: np.ones(shape, np.float32) for name, shape in named}
    np.savez(tmp_path / "start.npz", **arrays)
    begun = build("logistic", federation, weights=tmp_path / "start.npz")
    own = torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))
    weights, module = "the weights that training starts from", "the module, and all that it starts from"
    for model, said in ((plain, None), (begun, weights), (own, module)):
        task = Task(federation=federation, model=model, mechanism=bagged, local=LocalTraining())
        trained = train(task, 20)
        found = trained.certify(method="vote")
        stated = [sentence for sentence in sentences(found.assumptions) if "not poisoned" in sentence]
        assert len(stated) == (said is not None)
        assert all(f"stated by whoever trained, not derived: {said}" in sentence for sentence in stated)
        assert verify(dumps(found), trained.scores) == ()
