"""What every mechanism answers, kind by kind, in all rooms; a toy shows that one file and one line do."""

import json
import math
import pickle
from dataclasses import FrozenInstanceError, fields, replace

import pytest
from dp_accounting import NonPrivateDpEvent, UnsupportedEventError

from fedproof.accounting import account, event_of, tradeoff
from fedproof.certificates import dumps, loads, verify
from fedproof.config import parse_config
from fedproof.experiment import make_task, run
from fedproof.mechanisms import Mechanism, Releases, codec, is_certified, is_private
from fedproof.report.run_page import write_report
from fedproof.statements import Statement
from fedproof.summary import read_summary
from fedproof.threat import Relation, ThreatModel, Unit
from tests.mechanisms.toy import Halved

BASE = """
[data]
name = "digits"
classes = [0, 1]
users = 12
public = 30
test_limit = 20
[ensemble]
replicas = 6
seed = 3
[certificate]
max_size = 3
[mechanism]
kind = "{kind}"
{keys}
[threat]
unit = "{unit}"
"""
KEYS = {
    "user-fedavg": "cohort = 4\nrounds = 2",
    "instance-fedsgd": "cohort = 4\nsampling = 'fixed'\nbatch_probability = 0.5",
    "instance-fedavg": "sampling = 'none'\nlocal_steps = 2\nbatch_probability = 0.5",
    "cohort-once": "cohort = 4\nnoise_multiplier = 2.0",
    "bagging": "cohort = 4\nsampling = 'fixed'",
    "partition": "groups = 3",
    "noisy-partition": "groups = 3\nnoise_multiplier = 2.0\nrounds = 2",
    "one-round": "noise_multiplier = 2.0\nanchors = 20\nsolver = 'ridge'",
    "local": "noise_multiplier = 2.0\nanchors = 20\nsolver = 'ridge'",
    "smoothed": "noise_multiplier = 2.0\nsmoothing = 3.0",
    "fedavg": "cohort = 4",
    "halved": "rounds = 2\nnoise_multiplier = 3.0",
}


@pytest.fixture(autouse=True)
def _one_line(monkeypatch):
    """All that a toy needs beyond its file, undone after the test."""
    monkeypatch.setattr(codec, "KINDS", dict(codec.KINDS))
    codec.register(Halved)


def config_of(kind):
    unit = codec.KINDS[kind].unit
    text = BASE.format(kind=kind, keys=KEYS[kind], unit=unit)
    # Forgiving: the base says more than some of them use.
    return parse_config(
        text, kind, ["certificate.method=vote"] if "partition" in kind else [], forgiving=True
    )


def described(kind) -> Mechanism:
    return make_task(config_of(kind), "cpu").mechanism


def test_every_kind_is_tried():
    assert set(KEYS) == set(codec.trainable_kinds())


@pytest.mark.parametrize("kind", KEYS)
def test_a_description_is_a_frozen_value_that_files_hold(kind):
    mechanism = described(kind)
    assert mechanism.kind == kind
    with pytest.raises(FrozenInstanceError):
        mechanism.rounds = 7
    written = json.loads(json.dumps(codec.describe(mechanism)))
    assert codec.restore(written, name="mechanism") == mechanism
    assert pickle.loads(pickle.dumps(mechanism)) == mechanism
    assert {field.name for field in fields(mechanism)} >= set(written) - {"kind"}


@pytest.mark.parametrize("kind", KEYS)
def test_a_number_alone_does_not_say_who_is_drawn(kind):
    mechanism = described(kind)
    drawing = [mechanism] if "sampling" in {field.name for field in fields(mechanism)} else []
    for one in (*drawing, *mechanism.queries):
        with pytest.raises(ValueError, match=r"sampling = 0\.1 must be Poisson\(probability=\.\.\.\)"):
            replace(one, sampling=0.1)


@pytest.mark.parametrize("kind", KEYS)
def test_it_answers_for_itself(kind):
    mechanism = described(kind)
    assert isinstance(mechanism.unit, Unit)
    assert isinstance(mechanism.draws, Unit)
    assert mechanism.rounds >= 1
    assert mechanism.divisor(12) > 0
    assert all(mechanism.in_words())
    assert all(mechanism.assumptions)
    noisy = bool(mechanism.queries) and all(query.noise_multiplier for query in mechanism.queries)
    assert is_private(mechanism) == noisy == (mechanism.noise_multiplier > 0)
    for relation in Relation:
        assert all(isinstance(one, Statement) and one.sentence for one in mechanism.unmet(relation))
    assert (mechanism.models(12) is None) == (mechanism.releases is Releases.REPLICAS)


@pytest.mark.parametrize("kind", KEYS)
def test_accounting_asks_it_alone(kind):
    mechanism = described(kind)
    if is_private(mechanism):
        assert 0 < account(mechanism, 1e-3)["pld"] < math.inf
    else:
        with pytest.raises(UnsupportedEventError, match=mechanism.unaccounted[:20]):
            account(mechanism, 1e-3)
        assert event_of(mechanism) == NonPrivateDpEvent()
    if mechanism.queries:
        curve = tradeoff(mechanism, ThreatModel(unit=mechanism.unit), 1)
        assert 0 <= float(curve.lower(0.9)) <= 0.9 <= float(curve.upper(0.9)) <= 1


@pytest.mark.parametrize("kind", KEYS)
def test_engine_certificate_file_and_report_ask_it_alone(kind, tmp_path):
    result = run(config_of(kind), tmp_path / "run")
    assert result.summary.replicas == (described(kind).models(12) or 6)
    assert read_summary(tmp_path / "run") == result.summary
    assert write_report(tmp_path / "run").exists()
    if not is_certified(described(kind)):
        assert result.certificate is None
        return
    text = (tmp_path / "run" / "certificate.json").read_text()
    assert loads(text) == result.certificate
    assert dumps(loads(text)) == text
    assert verify(text, tmp_path / "run" / "scores.npy") == ()
    assert result.certificate.mechanism == described(kind)


def test_a_key_that_a_kind_does_not_have_is_refused_in_one_line():
    for key, value in (("groups", 4), ("noise_multiplier", 1.0)):
        with pytest.raises(ValueError, match=f"mechanism.{key} = {value}.* kind = 'bagging'|not 'bagging'"):
            parse_config(BASE.format(kind="bagging", keys=f"cohort = 4\n{key} = {value}", unit="user"), "x")
