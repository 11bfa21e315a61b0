"""A release answers by itself, and nothing else answers under its certificate."""

import json
import sys
from dataclasses import replace

import numpy as np
import pytest

from fedproof.certificates import certify, dumps
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.mechanisms import OneRound
from fedproof.mechanisms.uploads import Anchors, Rows
from fedproof.projection import View
from fedproof.release import Release, load_release
from fedproof.serving import predict
from tests.commands import fedproof
from tests.patience import finished

DATA = """
import numpy as np
from fedproof.data import Arrays
rows = np.load({file!r})
def data():
    features, labels = rows[:, :-1].astype(np.float32), rows[:, -1].astype(np.int64)
    return Arrays(features=features[40:], labels=labels[40:], test_features=features[:40],
        test_labels=labels[:40], class_names=("ham", "spam"), name="file")
"""

CONFIG = """
[data]
name = "{module}:data"
users = 40
partition = "iid"
public = 100
project = 6
projection = "{projection}"
[mechanism]
kind = "one-round"
noise_multiplier = 1.0
anchors = 30
solver = "ridge"
[certificate]
max_size = 30
"""


@pytest.fixture
def own_data(tmp_path, monkeypatch):
    """A file of 500 instances, and the name of a module that reads it: called again, it reads it again."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 500)
    features = rng.normal(size=(500, 12)) + 1.5 * labels[:, None] * np.linspace(0, 1, 12)
    file = tmp_path / "rows.npy"
    np.save(file, np.column_stack([features, labels]))
    (tmp_path / "own_data_of_test.py").write_text(DATA.format(file=str(file)))
    monkeypatch.syspath_prepend(tmp_path)
    yield "own_data_of_test", file
    sys.modules.pop("own_data_of_test", None)


@pytest.mark.parametrize("projection", ["principal", "spectral", "both"])
def test_labels_do_not_change_with_the_data_file(own_data, projection, tmp_path):
    """One instance more moves the draw of public ones: a map of these would come from users' instances."""
    module, file = own_data
    config = parse_config(CONFIG.format(module=module, projection=projection), "test")
    result = run(config, tmp_path / "run")
    inputs = np.load(file)[:40, :-1].astype(np.float32)
    before = predict(tmp_path / "run", inputs)
    assert before.prediction == result.certificate.prediction
    assert before.certified_size == result.certificate.certified_size
    rows = np.load(file)
    np.save(file, np.concatenate([rows, rows[-1:]]))
    sys.modules.pop(module)
    assert predict(tmp_path / "run", inputs) == before
    file.unlink()
    assert predict(tmp_path / "run", inputs) == before
    seen = predict(tmp_path / "run", result.federation.test_features)
    assert seen.scores_sha256 == result.certificate.scores_sha256


# --- a small release by itself ------------------------------------------------------------------------------

INPUTS = np.random.default_rng(1).uniform(-1, 1, size=(9, 4)).astype(np.float32)


def small(**changes):
    """A release of three heads' worth of weights on four features."""
    view = View(shape=(2, 2), range=(-1.0, 1.0), class_names=("ham", "spam", "eggs"))
    mechanism = OneRound(upload=Rows(features=4, classes=3), noise_multiplier=1.0)
    units = np.random.default_rng(0).uniform(-16, 16, size=(4, 3))
    total = np.rint(units / mechanism.grid.step).astype(np.int64)
    return replace(Release(mechanism=mechanism, total=total, view=view), **changes)


def written(folder, release, inputs=INPUTS, labels=None):
    """A folder with a release and its certificate."""
    folder.mkdir(exist_ok=True)
    release.save(folder / "release.npz")
    scores = release.scores(inputs)[None]
    certificate = certify(scores, labels, mechanism=release.mechanism, method="exact")
    certificate = replace(certificate, models_sha256=release.sha256)
    (folder / "certificate.json").write_text(dumps(certificate))
    np.save(folder / "scores.npy", scores)
    np.save(folder / "inputs.npy", inputs.reshape(-1, 2, 2))
    return certificate


def test_a_release_that_is_read_again_is_the_same(own_data, tmp_path):
    release = small()
    release.save(tmp_path / "release.npz")
    again = load_release(tmp_path / "release.npz")
    assert again.sha256 == release.sha256
    assert again.view == release.view
    config = parse_config(CONFIG.format(module=own_data[0], projection="both"), "test")
    run(config, tmp_path / "run")
    made = load_release(tmp_path / "run" / "release.npz")
    made.save(tmp_path / "again.npz")
    assert load_release(tmp_path / "again.npz").sha256 == made.sha256
    assert made.view.class_names == ("ham", "spam")
    assert made.view.shape == (12,)


@pytest.mark.parametrize(
    "change",
    [
        {"total": np.ones((4, 3), dtype=np.int64)},
        {"mechanism": OneRound(upload=Rows(features=4, classes=3), noise_multiplier=2.0)},
        {"view": View(shape=(2, 2), range=(-1.0, 1.0), class_names=("spam", "ham", "eggs"))},
        {"view": View(shape=(2, 2), range=(-9.0, 1.0), class_names=("ham", "spam", "eggs"))},
        {"view": View(shape=(4,), range=(-1.0, 1.0), class_names=("ham", "spam", "eggs"))},
        {"view": View(shape=(2, 2), encoder="hog", version="1")},
    ],
    ids=["total", "mechanism", "class order", "range", "shape", "encoder"],
)
def test_the_digest_is_of_all_that_an_answer_depends_on(change, tmp_path):
    written(tmp_path, small())
    assert predict(tmp_path, INPUTS.reshape(-1, 2, 2)).sound
    other = small(**change)
    assert other.sha256 != small().sha256
    other.save(tmp_path / "release.npz")
    with pytest.raises(
        ValueError, match=r"release\.npz has the digest \w+…, certificate\.json is about \w+…"
    ):
        predict(tmp_path, INPUTS.reshape(-1, 2, 2))
    refused = fedproof("verify", tmp_path / "certificate.json", status=1)
    assert "release.npz has the digest" in refused.stdout


def test_nothing_is_served_under_a_certificate_of_scores_alone(tmp_path):
    certificate = written(tmp_path, small())
    (tmp_path / "certificate.json").write_text(dumps(replace(certificate, models_sha256=None)))
    with pytest.raises(ValueError, match=r"certificate\.json names no models"):
        predict(tmp_path, INPUTS.reshape(-1, 2, 2))


def test_inputs_of_another_shape_are_refused_and_those_out_of_range_are_marked(tmp_path):
    written(tmp_path, small())
    for wrong in (INPUTS, INPUTS.reshape(-1, 2, 2, 1), INPUTS[0].reshape(2, 2), INPUTS[:0].reshape(-1, 2, 2)):
        with pytest.raises(ValueError, match=r"inputs have shape .*, must be \(inputs, 2, 2\)"):
            predict(tmp_path, wrong)
    far = INPUTS.copy().reshape(-1, 2, 2)
    far[[2, 5], 0, 0] = 200, -1.5
    np.save(tmp_path / "far.npy", far)
    told = fedproof("predict", tmp_path, "--inputs", tmp_path / "far.npy").stdout
    assert "2 of 9 inputs hold numbers outside -1 to 1, the range of public inputs: 2, 5" in told
    found = fedproof("predict", tmp_path, "--inputs", tmp_path / "inputs.npy", "--json").stdout
    assert json.loads(found)["remarks"] == []


def test_heads_public_queries_and_linear_models_answer_without_torch(tmp_path):
    written(tmp_path / "head", small())
    anchored = OneRound(upload=Anchors(anchors=5, classes=3), noise_multiplier=1.0)
    votes = np.random.default_rng(2).uniform(0, 20, size=(5, 3))
    total = np.rint(votes / anchored.grid.step).astype(np.int64)
    written(
        tmp_path / "anchors",
        Release(mechanism=anchored, total=total, anchors=INPUTS[:5], view=View(shape=(2, 2))),
    )
    for name in ("head", "anchors"):
        arguments = [
            "fedproof",
            "predict",
            str(tmp_path / name),
            "--inputs",
            str(tmp_path / name / "inputs.npy"),
        ]
        code = f"""
import sys
from fedproof.cli import main
sys.argv = {arguments!r}
try:
    main()
except SystemExit as end:
    assert not end.code
assert "torch" not in sys.modules
"""
        done = finished([sys.executable, "-c", code])
        assert done.returncode == 0, done.stderr
        assert "sound" in done.stdout


# --- verify computes scores again ---------------------------------------------------------------------------


def test_scores_that_the_release_does_not_give_are_found(tmp_path):
    """Three times the scores are three times the size, and the certificate follows from them."""
    release = small()
    certificate = written(tmp_path, release)
    command = ["verify", tmp_path / "certificate.json", "--inputs", tmp_path / "inputs.npy"]
    assert "every number holds (9 inputs)" in fedproof(*command).stdout
    tripled = 3 * np.load(tmp_path / "scores.npy")
    np.save(tmp_path / "scores.npy", tripled)
    forged = certify(tripled, mechanism=release.mechanism, method="exact")
    assert max(forged.certified_size) > 2 * max(certificate.certified_size)
    (tmp_path / "certificate.json").write_text(dumps(replace(forged, models_sha256=release.sha256)))
    assert "every number holds" in fedproof("verify", tmp_path / "certificate.json").stdout
    for more in ([], ["--release", tmp_path / "release.npz"]):
        refused = fedproof(*command, *more, status=1).stdout
        assert "does not hold" in refused
        assert "scores: the file says" in refused
    other = small(total=np.ones((4, 3), dtype=np.int64))
    other.save(tmp_path / "other.npz")
    refused = fedproof(*command, "--release", tmp_path / "other.npz", status=1)
    assert "other.npz has the digest" in refused.stderr
    refused = fedproof(
        "verify", tmp_path / "certificate.json", "--release", tmp_path / "release.npz", status=1
    )
    assert "--release needs --inputs" in refused.stderr
