"""The certificate file: exact round trip, and no field can be changed unnoticed."""

import copy
import json
from dataclasses import fields, replace
from importlib import resources

import dp_accounting as dp
import numpy as np
import pytest

from fedproof import mechanisms
from fedproof.certificates import (
    ApproximateDP,
    Bound,
    CostMethod,
    Group,
    Method,
    Rule,
    Spending,
    certify,
    certify_means,
    dumps,
    inefficacy,
    loads,
    verify,
)
from fedproof.certificates.document import checksum
from fedproof.mechanisms import (
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    OneRound,
    Poisson,
    UserFedAvg,
    codec,
)
from fedproof.mechanisms.codec import describe, restore
from fedproof.mechanisms.uploads import UPLOADS, Ball
from fedproof.threat import ThreatModel

LABELS = [0] * 10 + [1, 2]
CLIPPINGS = [
    mechanisms.Flat(),
    mechanisms.PerLayer(num_layers=4),
    mechanisms.Median(),
    mechanisms.PerLayerMedian(num_layers=2),
    mechanisms.Quantile(target=0.4),
]
VALUES = [
    *[
        UserFedAvg(
            rounds=2, noise_multiplier=0.1 + 0.2, sampling=Poisson(probability=1 / 3), clipping=clipping
        )
        for clipping in CLIPPINGS
    ],
    UserFedAvg(rounds=2, noise_multiplier=2, sampling=FixedSize(cohort=20, users=200)),
    UserFedAvg(rounds=2, noise_multiplier=2, sampling=Everyone()),
    InstanceFedSGD(
        rounds=5, noise_multiplier=1.5, sampling=FixedSize(cohort=3, users=9), batch_probability=0.1
    ),
    InstanceFedAvg(rounds=5, local_steps=7, noise_multiplier=1.5, batch_probability=0.1),
    mechanisms.Bagging(rounds=2, sampling=FixedSize(cohort=3, users=9), pooled=True),
    mechanisms.CohortOnce(rounds=2, sampling=FixedSize(cohort=3, users=9), noise_multiplier=2.0),
    mechanisms.Partition(groups=5),
    mechanisms.Partition(pooled=True),
    mechanisms.NoisyPartition(groups=5, noise_multiplier=2.0, rounds=3),
    *[
        mechanisms.OneRound(upload=kind(**{field.name: 3 for field in fields(kind)}), noise_multiplier=2.0)
        for kind in UPLOADS.values()
    ],
    *[kind(**{field.name: 3 for field in fields(kind)}) for kind in UPLOADS.values()],
    mechanisms.Local(upload=UPLOADS["rows"](features=3, classes=3), noise_multiplier=2.0, honest=7),
    mechanisms.Smoothed(noise_multiplier=2.0, smoothing=3.0, population=50),
    mechanisms.FedAvg(rounds=2, sampling=Everyone()),
    ApproximateDP(epsilon=0.63, delta=0.0029, relation="replace"),
    ThreatModel(unit="instance", relation="join"),
    mechanisms.Queries(queries=(mechanisms.Query(noise_multiplier=1.0, sampling=Everyone(), count=3),)),
]


@pytest.mark.parametrize("value", VALUES, ids=lambda value: type(value).__name__)
def test_descriptions_come_back_exactly(value):
    assert restore(json.loads(json.dumps(describe(value))), name="value") == value


def test_every_mechanism_can_be_written():
    parts = {Poisson, FixedSize, Everyone, mechanisms.Query}
    assert {type(value) for value in (*VALUES, *CLIPPINGS)} | parts == set(codec.KINDS.values())
    assert {type(clipping) for clipping in CLIPPINGS} == set(mechanisms.Clipping.__args__)


def test_numpy_numbers_are_written_as_numbers():
    mechanism = UserFedAvg(
        rounds=np.int64(3), noise_multiplier=np.float64(1.8), sampling=Poisson(probability=0.1)
    )
    assert json.dumps(describe(mechanism))


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"kind": "laplace"}, "value.kind = 'laplace' must be one of"),
        ({"kind": "poisson"}, "probability"),
        ({"kind": "poisson", "probability": 0.1, "extra": 1}, "extra"),
        ({"kind": "poisson", "probability": 2.0}, "probability"),
        ({"kind": "poisson", "probability": "x"}, "probability"),
    ],
)
def test_damaged_descriptions_are_refused(document, message):
    with pytest.raises(ValueError, match=message):
        restore(document, name="value")


def scored(method, scores):
    """What a certificate of this method is made from: the scores of a release count units."""
    return scores if method != Method.EXACT else 40 * scores[:1].astype(np.float64)


def make(method, scores, **settings):
    if method == Method.EXACT:
        rows = UPLOADS["rows"](features=4, classes=scores.shape[2])
        mechanism = mechanisms.OneRound(upload=rows, noise_multiplier=2.0)
        return certify(scored(method, scores), LABELS, mechanism=mechanism, method=method, **settings)
    mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    return certify(scores, LABELS, mechanism=mechanism, method=method, delta=0.0029, **settings)


@pytest.mark.parametrize("method", Method)
def test_round_trip_and_verification(method, scores):
    certificate = make(method, scores)
    text = dumps(certificate)
    assert loads(text) == certificate
    assert dumps(loads(text)) == text
    assert verify(text, scored(method, scores)) == ()


def test_a_certificate_from_another_librarys_event(scores):
    event = dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(1.8)), 3)
    certificate = certify(scores, LABELS, mechanism=event, threat=ThreatModel(), method="mean")
    assert certificate.certified_size == make("mean", scores).certified_size
    assert verify(dumps(certificate), scores) == ()


def test_certificates_from_means_verify(scores):
    means = scores.astype(np.float64).mean(axis=0)
    means /= means.sum(axis=1, keepdims=True)
    certificate = certify_means(
        means, LABELS, privacy=ApproximateDP(epsilon=0.1, delta=1e-5, relation="replace")
    )
    text = dumps(certificate)
    assert loads(text) == certificate
    assert verify(text, means) == ()
    with pytest.raises(ValueError, match="shape"):
        verify(text, scores)


def leaves(value, path=()):
    """Paths of every number, text, truth value and null in a document."""
    if isinstance(value, dict):
        for key, part in value.items():
            yield from leaves(part, (*path, key))
    elif isinstance(value, list):
        for index, part in enumerate(value):
            yield from leaves(part, (*path, index))
    else:
        yield path


def altered(value):
    """Values that differ from `value` as little as possible."""
    if value is None:
        return [0]
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1, float(value)]
    if isinstance(value, float):
        return [float(np.nextafter(value, 2)), value * 0.5 + 0.1]
    return [value + "x", value[:-1] + ("0" if value[-1] != "0" else "1")]


def put(document, path, value):
    changed = copy.deepcopy(document)
    inner = changed
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    return changed


def refusal(document, scores):
    """What verify, or reading, says about a document."""
    try:
        return " ".join(verify(json.dumps(document), scores))
    except ValueError as error:
        return str(error)


@pytest.mark.parametrize("method", ["paper", "margin"])
def test_no_field_can_be_changed(method, scores):
    document = json.loads(dumps(make(method, scores[:60])))
    tried = 0
    for path in leaves(document):
        if len(path) == 2 and isinstance(path[1], int) and path[1] not in (0, 11):
            continue  # of a long list the first and the last entry
        original = document
        for key in path:
            original = original[key]
        for value in altered(original):
            answer = refusal(put(document, path, value), scores[:60])
            named = path[0] if path[0] != "checksums" else path[1]
            assert named in answer, (path, value, answer)
            tried += 1
    assert tried > 100


def test_a_forger_who_renews_the_checksum_is_found_by_the_numbers(scores):
    document = json.loads(dumps(make("mean", scores)))
    for name, index, change in (
        ("certified_size", 0, 1),
        ("prediction", 0, 1),
        ("top_lower", 3, 0.01),
        ("rival_upper", 3, -0.01),
    ):
        forged = copy.deepcopy(document)
        forged[name][index] += change
        forged["checksums"][name] = checksum(forged[name])
        found = verify(json.dumps(forged), scores)
        assert len(found) == 1
        assert found[0].startswith(f"{name}: the file says")
        assert f"index {index}" in found[0]
    for name, value in (("accuracy", 1.0), ("sound", False), ("unmet", ["x"]), ("num_replicas", 201)):
        forged = document | {name: value}
        forged["checksums"] = document["checksums"] | {name: checksum(value)}
        assert any(line.startswith(name) for line in verify(json.dumps(forged), scores))


def test_entries_and_fields_cannot_be_removed_or_added(scores):
    document = json.loads(dumps(make("mean", scores)))
    for name in document:
        left = {key: value for key, value in document.items() if key != name}
        assert name in refusal(left, scores)
    assert "extra" in refusal(document | {"extra": 1}, scores)
    assert "certified_size" in refusal(document | {"certified_size": document["certified_size"][1:]}, scores)
    text = dumps(make("mean", scores)).replace('"version": 3,', '"version": 3,\n"accuracy": 1.0,')
    with pytest.raises(ValueError, match="the field 'accuracy' twice"):
        loads(text)


def test_other_scores_are_noticed(scores):
    text = dumps(make("mean", scores))
    other = scores.copy()
    other[0, 0] = other[0, 0][::-1]
    assert verify(text, other)[0].startswith("scores_sha256")
    with pytest.raises(ValueError, match="sum to"):
        verify(text, scores * 0.5)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "not a JSON document"),
        ("[1, 2]", "schema"),
        ('{"schema": "other"}', "schema"),
        ('{"schema": "fedproof/certificate", "version": 2}', "version = 2 must be 3"),
        ('{"schema": "fedproof/certificate", "version": true}', "version = True must be 3"),
        ('{"schema": "fedproof/certificate", "version": 3}', "missing or unknown"),
        ('{"schema": NaN}', "NaN"),
        (b"\xff\xfe\x00", "not a JSON document"),
    ],
)
def test_what_is_no_certificate(text, message):
    with pytest.raises(ValueError, match=message):
        loads(text)


def test_an_altered_file_is_not_loaded(scores):
    text = dumps(make("mean", scores)).replace('"max_size": 100', '"max_size": 101')
    with pytest.raises(ValueError, match="altered: max_size"):
        loads(text)


def test_certified_accuracy(scores):
    certificate = make("mean", scores)
    sizes = [-1 if size is None else size for size in certificate.certified_size]
    correct = [p == y for p, y in zip(certificate.prediction, LABELS, strict=True)]
    for k, found in zip((0, 3, 7, 200), certificate.certified_accuracy([0, 3, 7, 200]), strict=True):
        assert found == np.mean([ok and size >= k for ok, size in zip(correct, sizes, strict=True)])
    curve = certificate.curve
    assert curve[0] == certificate.certified_accuracy([0])[0]
    assert list(curve) == sorted(curve, reverse=True)
    with pytest.raises(ValueError, match="size"):
        certificate.certified_accuracy([-1])
    with pytest.raises(ValueError, match="labels"):
        replace(certificate, labels=None).certified_accuracy([1])


def test_the_certificate_is_a_value(scores):
    certificate = make("mean", scores)
    assert hash(certificate) == hash(loads(dumps(certificate)))
    assert all(not isinstance(getattr(certificate, f.name), list | dict) for f in fields(certificate))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"clipping": True}, "mechanism.clipping = True is not what user-fedavg has there"),
        ({"sampling": [0.1]}, "mechanism.sampling"),
        ({"sampling": {"kind": "flat"}}, "mechanism.sampling"),
        ({"rounds": {"kind": "flat"}}, "mechanism.rounds"),
        ({"kind": "queries", "queries": [3]}, "mechanism of kind queries has missing or unknown fields"),
    ],
)
def test_a_description_of_another_kind_is_refused(change, message):
    document = describe(VALUES[0]) | change
    with pytest.raises(ValueError, match=message):
        restore(document, name="mechanism")


def test_queries_hold_queries():
    document = describe(VALUES[-1]) | {"queries": [{"kind": "flat"}]}
    with pytest.raises(ValueError, match=r"mechanism\.queries = \(Flat\(\),\) is not what queries has there"):
        restore(document, name="mechanism")


KINDS = {
    "object": dict,
    "array": list,
    "string": str,
    "integer": int,
    "boolean": bool,
    "number": (int, float),
    "null": type(None),
}


def fits(value, rule):
    """The part of JSON Schema that the shipped schema uses."""
    if "const" in rule:
        return value == rule["const"]
    if "enum" in rule:
        return value in rule["enum"]
    names = rule["type"] if isinstance(rule["type"], list) else [rule["type"]]
    typed = any(isinstance(value, KINDS[name]) for name in names)
    return typed and (not isinstance(value, list) or all(fits(item, rule["items"]) for item in value))


TOOK_PART = {"declared": 9, "asked": 8, "replied": 7}


def check_schema(name, document, **kinds):
    schema = json.loads(resources.files("fedproof.certificates").joinpath(name).read_text())
    assert set(schema["required"]) == set(schema["properties"]) == set(document)
    for field, value in document.items():
        assert fits(value, schema["properties"][field]), field
    for field, kind in kinds.items():
        assert set(schema["properties"][field]["enum"]) == set(kind)


@pytest.mark.parametrize("method", Method)
def test_files_fit_the_shipped_schema(method, scores):
    kinds = {"method": Method, "bound": Bound, "spending": Spending, "group": Group, "rule": Rule}
    check_schema("certificate.schema.json", json.loads(dumps(make(method, scores))), **kinds)


ONCE = OneRound(upload=Ball(features=2, classes=2), noise_multiplier=1.0)


def test_who_took_part_in_one_release_stands_in_its_file():
    scores = np.array([[[3.5, 0.0], [0.0, 1.5]]])
    told, silent = (certify(scores, mechanism=ONCE, method="exact", **more) for more in (TOOK_PART, {}))
    document = json.loads(dumps(told))
    assert {name: document[name] for name in TOOK_PART} == TOOK_PART
    check_schema("certificate.schema.json", document)
    assert loads(dumps(told)) == told
    assert not verify(dumps(told), scores)
    assert told.certified_size == silent.certified_size


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"replied": 9}, "must not rise"),
        ({"asked": 10}, "must not rise"),
        ({"replied": -1}, "replied = -1 must be a whole number"),
        ({"replied": None}, "replied = None must be a whole number"),
        ({"mechanism": replace(ONCE, unit="instance")}, "declared, asked, replied must be left out"),
        ({"mechanism": VALUES[0], "method": "vote"}, "declared, asked, replied must be left out"),
    ],
)
def test_numbers_of_users_that_cannot_be(more, message):
    asked = {"mechanism": ONCE, "method": "exact"} | TOOK_PART | more
    threat = ThreatModel(unit=asked["mechanism"].unit)
    with pytest.raises(ValueError, match=message):
        certify(np.array([[[3.5, 0.0]]]), threat=threat, **asked)


@pytest.mark.parametrize("method", CostMethod)
def test_bounds_on_costs_fit_the_shipped_schema(method):
    bounds = inefficacy([0.1, 0.2], cost_bound=0.5, mechanism=VALUES[0], method=method, delta=1e-3, tau=2)
    kinds = {"method": CostMethod, "bound": Bound}
    check_schema("inefficacy.schema.json", json.loads(dumps(bounds)), **kinds)
