"""A run on encoded features, from the command line to its certificate."""

import json

import numpy as np
import pytest

from fedproof import encoders
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.report import run_data, sections
from fedproof.statements import Statement
from tests.commands import fedproof

EXPERIMENT = """
[data]
name = "my_encoders:images"
users = 9
encoder = "hog"
public = 12
project = 4
[mechanism]
kind = "partition"
groups = 9
[certificate]
method = "vote"
[ensemble]
seed = 0
"""


@pytest.fixture
def experiment(module, folder):
    path = folder / "experiment.toml"
    path.write_text(EXPERIMENT)
    return path


def test_the_certificate_says_what_must_not_be_poisoned(experiment, folder):
    def assumed(changes, name):
        result = run(parse_config(EXPERIMENT, "test", changes), folder / name)
        assert result.certificate.sound
        return [one for one in result.certificate.assumptions if "not poisoned" in one.sentence]

    made = {"count": 12, "source": "no user", "project": 4, "projection": "principal"}
    public = Statement.of("public-map", **made)
    assert public.told
    assert assumed([], "projected") == [public]
    encoder, *others = assumed(["data.encoder=my_encoders:network"], "own")
    assert (encoder.code, others) == ("encoder-weights", [public])
    assert encoder.arguments["name"] == "my_encoders:network"


def test_where_nothing_was_learned_nothing_is_assumed(experiment, folder):
    config = EXPERIMENT.replace("public = 12\nproject = 4\n", "")
    result = run(parse_config(config, "test"), folder / "run")
    assert not any("poisoned:" in one.sentence for one in result.certificate.assumptions)


def test_data_encode_says_where_features_are(experiment, folder):
    said = fedproof("data", "encode", experiment, columns=300).stdout
    assert said.startswith(
        "my_encoders:images: 392 features of hog for 30 training and 10 test inputs, kept in "
    )
    assert said.endswith(f" {folder}/encoded\n")
    files = {path: path.stat().st_mtime_ns for path in (folder / "encoded").iterdir()}
    assert len(files) == 2
    found = json.loads(fedproof("data", "encode", experiment, "--set", "data.project=3", "--json").stdout)
    assert found == {
        "name": "my_encoders:images",
        "encoder": "hog",
        "weights_sha256": None,
        "features": 392,
        "training_inputs": 30,
        "test_inputs": 10,
        "folder": f"{folder}/encoded",
    }
    assert {path: path.stat().st_mtime_ns for path in files} == files
    assert all(np.load(path).shape[1] == 392 for path in files)


def test_there_must_be_something_to_encode(experiment):
    experiment.write_text(EXPERIMENT.replace('encoder = "hog"\n', ""))
    told = fedproof("data", "encode", experiment, status=1, columns=300).stderr
    assert told == f"error: {experiment}: data.encoder is missing, there is nothing to encode\n"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.encoder=resnet", "encoder = 'resnet' must be one of"),
        ("data.encoder=my_encoders:random", "gives other features when asked again"),
        ("data.encoder=efficientnet-lite0", "needs images"),
        ("data.public=30", "public = 30 must be below 30"),
        ("data.public=25", "public = 25 leaves 5 instances, too few for users = 9"),
        ("data.public=4", "project = 4 must be below public = 4"),
        ("data.project=0", "data.project = 0: input should be greater than or equal to 1"),
    ],
)
def test_a_run_is_refused_in_one_line_before_anything_is_trained(experiment, folder, change, message):
    experiment.write_text(EXPERIMENT.replace("my_encoders:images", "my_encoders:small"))
    told = fedproof("run", experiment, "--out", folder / "run", "--set", change, status=1, columns=300).stderr
    assert message in told
    assert told.count("\n") == 1
    assert not (folder / "run" / "parts").exists() or not list((folder / "run" / "parts").iterdir())


def test_pages_show_inputs_as_people_see_them_and_call_nobodys_function(folder):
    config = parse_config(EXPERIMENT, "test", ["data.name=digits", "data.encoder=none:function"])
    features = config.data.model_dump(exclude={"encoder"}) | {"project": 8}
    encoded = encoders.load(**features)
    assert encoded.encoded
    assert sections._shower(encoded) is None  # eight numbers are no picture
    assert run_data._load(config).test_features.shape[1:] == (64,)
