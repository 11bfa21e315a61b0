"""A forger's afternoon: whole files, edited, renewed and mixed, and no number that does not follow.

A forger renews every checksum of a file that he edits, and computes a certificate again from what he made. He
edits one kind of file at a time. The inputs come from somebody whom the reader trusts.
Whatever `verify`, `predict` and `report` then show must be what they showed before, or follow from what lies
there. What he gains by editing all files alike is a matter of signatures, see docs/audit.md.

FEDPROOF_FORGER=50 makes so many edits in each class.
"""

import csv
import hashlib
import io
import json
import os
import random
import shutil
import sys
from dataclasses import replace

import numpy as np
import pytest
import tomli_w
from safetensors.numpy import load as load_tensors
from safetensors.numpy import save as save_tensors

from fedproof.accounting.ledger import Ledger, load_ledger, save_ledger
from fedproof.certificates import certify, dumps, loads
from fedproof.certificates.document import checksum
from fedproof.config import parse_config
from fedproof.digests import of_all, of_each
from fedproof.experiment import run
from fedproof.mechanisms import Partition
from fedproof.mechanisms.codec import describe
from fedproof.release import load_release
from tests.commands import fedproof
from tests.tiny import TINY

EDITS = int(os.environ.get("FEDPROOF_FORGER", "3"))  # in each class

RELEASE = """
[data]
name = "forged_data_of_test:data"
users = 30
partition = "iid"
encoder = "forged_data_of_test:encoder"
public = 80
project = 5
projection = "both"
[mechanism]
kind = "one-round"
noise_multiplier = 1.0
anchors = 30
solver = "ridge"
[certificate]
max_size = 30
"""
MODULE = """
import numpy as np
GAIN = 1.0
def data():
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 2, 400)
    rows = rng.normal(size=(400, 9)) + 1.5 * labels[:, None]
    rows = rows.astype(np.float32)
    return rows[40:], labels[40:], rows[:40], labels[:40]
def encoder():
    return lambda rows: np.tanh(rows[:, :8] * GAIN)
"""


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """Finished folders by name, two of each kind; and the inputs that their scores are of."""
    root = tmp_path_factory.mktemp("forger")
    (root / "forged_data_of_test.py").write_text(MODULE)
    sys.path.insert(0, str(root))
    (root / "cache").mkdir()
    os.environ["FEDPROOF_DATA"] = str(root / "cache")
    inputs = {}
    for name, text in (("run", TINY.replace("seed = 0\n", "")), ("release", RELEASE)):
        for number in range(2):
            made = run(parse_config(text, "forger"), root / f"{name}{number}")
            inputs[f"{name}{number}"] = made.federation.test_features
            if name == "release":  # as published
                inputs[f"{name}{number}"] = sys.modules["forged_data_of_test"].data()[2]
    for number in range(2):
        inputs[f"votes{number}"] = _federation(root / f"votes{number}", number)
    for name, rows in inputs.items():
        np.save(root / name / "inputs.npy", rows)
    yield root
    sys.path.remove(str(root))
    sys.modules.pop("forged_data_of_test", None)
    del os.environ["FEDPROOF_DATA"]


def _federation(folder, seed):
    """A folder like that of a federation whose nodes train linear models, with a ledger; and its inputs."""
    rng = np.random.default_rng(seed)
    folder.mkdir()
    rows, labels = rng.normal(size=(12, 6)), rng.integers(0, 3, 12)
    models = {"fc0.weight": rng.normal(size=(15, 3, 6)), "fc0.bias": rng.normal(size=(15, 3))}
    logits = np.einsum("if,mcf->mic", rows, models["fc0.weight"]) + models["fc0.bias"][:, None]
    scores = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    mechanism = Partition(pooled=True)
    certificate = certify(scores, labels, mechanism=mechanism, method="vote")
    sha256 = of_all(describe(mechanism), of_each(models))
    (folder / "certificate.json").write_text(dumps(replace(certificate, models_sha256=sha256)))
    np.save(folder / "scores.npy", scores)
    np.save(folder / "labels.npy", labels)
    np.savez(folder / "models.npz", **models)
    return rows


@pytest.fixture(scope="module")
def shown(whole):
    """What the commands show of each whole folder."""
    found = {name: _shown(whole / name) for name in KINDS}
    assert all(one["verify"] and one["predict"] and one["report"] for one in found.values())
    return found


KINDS = ("run0", "release0", "votes0")


def _shown(folder):
    """What each command shows of a folder; None where it refuses in one line."""
    sys.modules.pop("forged_data_of_test", None)
    sys.path.insert(0, str(folder.parent))
    try:
        return _said(folder)
    finally:
        sys.path.remove(str(folder.parent))


def _said(folder):
    inputs = folder / "inputs.npy"
    (folder / "report.html").unlink(missing_ok=True)
    verified = _told("verify", folder, "--inputs", inputs, "--json")
    found = {"verify": verified and json.loads(verified)["valid"]}
    found["predict"] = _told("predict", folder, "--inputs", inputs, "--json")
    _told("report", folder)
    page = folder / "report.html"
    return found | {"report": page.read_text() if page.exists() else None}


def _told(*words):
    done = fedproof(*words, status=None)
    if done.returncode == 0:
        return done.stdout
    assert done.stdout == "" or done.returncode == 1
    assert "Traceback" not in done.stderr
    assert len(done.stderr.splitlines()) <= 1, done.stderr
    return None


# --- edits: each takes a folder and random numbers, and leaves every file valid -----------------------------


def _document(folder, change):
    """The certificate with other fields, and checksums that agree with them."""
    path = folder / "certificate.json"
    document = json.loads(path.read_text())
    change(document)
    body = {name: value for name, value in document.items() if name != "checksums"}
    path.write_text(json.dumps(body | {"checksums": {name: checksum(value) for name, value in body.items()}}))


def _certified_again(folder, labels=None, scores=None, **changes):
    """The certificate computed again from what lies there, with other settings; it still names its models."""
    path = folder / "certificate.json"
    known = loads(path.read_bytes())
    settings = known.settings
    asked = {
        "mechanism": settings.mechanism,
        "threat": settings.threat,
        "method": settings.method,
        "bound": settings.bound,
        "failure_probability": settings.failure_probability,
        "max_size": settings.max_size,
        "unmet": settings.stated_unmet,
        "unmet_otherwise": settings.unmet_otherwise,
        "assumptions": settings.stated_assumptions,
    }
    if settings.certain:
        del asked["bound"], asked["failure_probability"]
    scores = np.load(folder / "scores.npy") if scores is None else scores
    found = certify(scores, known.labels if labels is None else labels, **asked | changes)
    named = {"models_sha256": known.models_sha256, "config_sha256": known.config_sha256}
    path.write_text(dumps(replace(found, **named)))


def columns(folder, rng):
    def change(document):
        names = ("prediction", "certified_size", "top_lower", "rival_upper", "labels")
        column = document[rng.choice([name for name in names if document.get(name)])]
        place = rng.randrange(len(column))
        known = column[place]
        whole = isinstance(known, int) or known is None
        column[place] = rng.choice([0, 1, 2, 29, None]) if whole else known * rng.uniform(0.5, 1.5)
        if column[place] == known:
            column[place] = 3 if whole else known / 2

    _document(folder, change)


def derived(folder, rng):
    def change(document):
        name = rng.choice(["accuracy", "certified_accuracy", "assumptions", "num_replicas", "num_classes"])
        value = document[name]
        document[name] = {
            "accuracy": lambda: value / 2 + 0.001 * rng.randrange(1, 9),
            "certified_accuracy": lambda: [1.0] * (len(value) + rng.randrange(1, 9)),
            "assumptions": lambda: value[: rng.randrange(len(value))],
        }.get(name, lambda: value + rng.randrange(1, 9))()

    _document(folder, change)


def settings(folder, rng):
    known = loads((folder / "certificate.json").read_bytes()).settings
    if known.certain:
        _certified_again(folder, max_size=known.max_size + rng.randrange(1, 50))
        return
    _certified_again(
        folder,
        **rng.choice(
            [
                {"failure_probability": rng.uniform(0.02, 0.5)},
                {"method": "vote", "bound": None},
                {"method": "margin", "bound": None},
                {"max_size": rng.randrange(11, 99)},
                {"bound": "hoeffding"},
            ]
        ),
    )


def threats(folder, rng):
    known = loads((folder / "certificate.json").read_bytes()).threat
    _certified_again(folder, threat=replace(known, relation="join"), max_size=rng.randrange(5, 90))


def mechanisms(folder, rng):
    known = loads((folder / "certificate.json").read_bytes()).mechanism
    if known.kind == "partition":
        changes = {"pooled": False, "rounds": rng.randrange(1, 60)}
    else:
        changes = {"noise_multiplier": known.noise_multiplier * rng.uniform(1.01, 9)}
    _certified_again(folder, mechanism=replace(known, **changes))


def digests(folder, rng):
    def change(document):
        names = ["models_sha256", "scores_sha256"] + ["config_sha256"] * bool(document["config_sha256"])
        name, number = rng.choice(names), rng.randrange(2**200)
        document[name] = rng.choice([None, hashlib.sha256(str(number).encode()).hexdigest()])
        if name == "scores_sha256":
            document[name] = document[name] or "0" * 64

    _document(folder, change)


def certified_labels(folder, rng):
    known = loads((folder / "certificate.json").read_bytes())
    _certified_again(folder, labels=_turned(np.array(known.labels), known.num_classes, rng))


def labels_file(folder, rng):
    classes = loads((folder / "certificate.json").read_bytes()).num_classes
    np.save(folder / "labels.npy", _turned(np.load(folder / "labels.npy"), classes, rng))


def _turned(labels, classes, rng):
    """Labels of which some are others."""
    found = labels.copy()
    for place in rng.sample(range(len(labels)), rng.randrange(1, len(labels) // 2)):
        found[place] = (found[place] + rng.randrange(1, classes)) % classes
    return found


def scores_file(folder, rng):
    np.save(folder / "scores.npy", _flattered(folder, rng))


def scores_certified(folder, rng):
    """A certificate that follows from scores which no model gave."""
    scores = _flattered(folder, rng)
    np.save(folder / "scores.npy", scores)
    _certified_again(folder, scores=scores)


def _flattered(folder, rng):
    scores = np.load(folder / "scores.npy").copy()
    if len(scores) == 1:
        return scores * rng.uniform(1.1, 9)
    some = rng.sample(range(scores.shape[1]), rng.randrange(1, scores.shape[1]))
    scores[:, some] = np.eye(scores.shape[2], dtype=scores.dtype)[rng.randrange(scores.shape[2])]
    return scores


def _release(folder, change):
    path = folder / "release.npz"
    change(load_release(path)).save(path)


def totals(folder, rng):
    def change(release):
        total = release.total.copy()
        total[rng.randrange(len(total)), rng.randrange(2)] += rng.choice([1, -1]) * rng.randrange(1, 2**40)
        factor = rng.choice([-1, *range(2, 9)])
        return replace(release, total=rng.choice([total, release.total * factor]))

    _release(folder, change)


def anchors(folder, rng):
    def change(release):
        found = release.anchors.copy()
        found[rng.randrange(len(found))] *= np.float32(rng.uniform(-2, 0.9))
        order = rng.sample(range(len(found)), len(found))
        return replace(release, anchors=rng.choice([found, release.anchors[order]]))

    _release(folder, change)


def maps(folder, rng):
    def change(release):
        known = release.view.map
        factor = rng.uniform(0.2, 0.9)
        moved = rng.choice(
            [
                replace(known, directions=replace(known.directions, centre=known.directions.centre + factor)),
                replace(known, places=known.places[::-1].copy()),
                replace(known, coordinates=known.coordinates * factor),
                replace(known, coordinates=np.roll(known.coordinates, rng.randrange(1, 80), 0)),
            ]
        )
        return replace(release, view=replace(release.view, map=moved))

    _release(folder, change)


def views(folder, rng):
    def change(release):
        view = release.view
        return replace(
            release,
            view=rng.choice(
                [
                    replace(view, class_names=view.class_names[::-1]),
                    replace(view, class_names=(f"class {rng.randrange(99)}", "b")),
                    replace(view, range=(view.range[0] - rng.uniform(1, 99), view.range[1] + 1.0)),
                    replace(view, version=f"{rng.randrange(99)}"),
                    replace(view, shape=(2, 4)),
                    replace(view, weights_sha256="0" * 64),
                ]
            ),
        )

    _release(folder, change)


def release_mechanisms(folder, rng):
    def change(release):
        noise = release.mechanism.noise_multiplier * rng.uniform(1.1, 99)
        return replace(release, mechanism=replace(release.mechanism, noise_multiplier=noise))

    _release(folder, change)


def encoders(folder, rng):
    """Other code of the encoder, in the folder's own copy of the module."""
    path = folder.parent / "forged_data_of_test.py"
    path.write_text(MODULE.replace("GAIN = 1.0", f"GAIN = {rng.uniform(-3, 0.9)!r}"))
    (folder / "certificate.json").touch()


def models(folder, rng):
    """Other numbers in the models, and records that agree with them."""
    place, factor = rng.randrange(99), rng.uniform(-2, 0.9)

    def moved(named):
        return {name: _moved(values, place, factor) for name, values in named.items()}

    _models(folder, moved, rng)


def _moved(values, place, factor):
    found = values.copy()
    found[place % len(found)] *= np.asarray(factor, found.dtype)
    return found


def model_sets(folder, rng):
    """The models in another order, or one of them in the place of another."""

    def moved(named):
        count = len(next(iter(named.values())))
        order = rng.choice([list(range(count))[::-1], [1, *range(1, count)], [0, *range(count - 1)]])
        return {name: values[order] for name, values in named.items()}

    _models(folder, moved, rng)


def _models(folder, change, rng):
    if (folder / "models.npz").exists():
        with np.load(folder / "models.npz") as file:
            changed = change(dict(file))
        np.savez(folder / "models.npz", **changed)
        return
    path = rng.choice(sorted((folder / "parts").glob("*.safetensors")))
    content = save_tensors(change(load_tensors(path.read_bytes())))
    path.write_bytes(content)
    kept = folder / "private" / "parts" / f"{path.stem}.json"
    record = json.loads(kept.read_text())
    record["sha256"][f"parts/{path.name}"] = hashlib.sha256(content).hexdigest()
    kept.write_text(json.dumps(record))


def ledgers(folder, rng):
    path = folder / "ledger.json"
    known = load_ledger(path)
    noisier = replace(
        known.queries[0], noise_multiplier=known.queries[0].noise_multiplier * rng.uniform(1.1, 99)
    )
    found = [
        Ledger(queries=(noisier,), delta=known.delta, replicas=known.replicas),
        Ledger(queries=(*known.queries, noisier), delta=known.delta, replicas=known.replicas),
        replace(known, replicas=known.replicas - 1),
        replace(known, delta=rng.uniform(0.1, 0.9)),
        replace(known, parallel=rng.randrange(2, 99)),
    ]
    save_ledger(rng.choice(found), path)


def configs(folder, rng):
    path = folder / "config.toml"
    changes = [
        ("mechanism", "noise_multiplier", rng.uniform(5, 99)),
        ("mechanism", "delta", rng.uniform(0.02, 0.9)),
        ("data", "users", rng.randrange(31, 10**6)),
        ("certificate", "max_size", rng.randrange(31, 99)),
        ("ensemble", "secure_noise", True),
    ]
    section, key, value = rng.choice(changes)
    import tomllib

    document = tomllib.loads(path.read_text())
    document[section][key] = value
    path.write_text(tomli_w.dumps(document))


def mixed(folder, rng):
    """Files of another training of the same kind, each whole; never all of them."""
    other = folder.parent / folder.name.replace("0", "1")
    sets = [
        ("certificate.json",),
        ("certificate.json", "scores.npy"),
        ("certificate.json", "scores.npy", "labels.npy"),
        ("scores.npy",),
        ("release.npz",),
        ("release.npz", "scores.npy"),
        ("parts",),
        ("parts", "scores.npy"),
        ("models.npz",),
        ("models.npz", "scores.npy"),
    ]
    there = [names for names in sets if all((other / name).exists() for name in names)]
    for name in rng.choice(there):
        if (other / name).is_dir():
            shutil.rmtree(folder / name)
            shutil.copytree(other / name, folder / name)
        else:
            shutil.copy(other / name, folder / name)


def summaries(folder, rng):
    path = folder / "summary.json"
    document = json.loads(path.read_text())
    changes = {
        "users": rng.randrange(10**6, 10**7),
        "accuracy": 1.0,
        "replica_accuracy": rng.uniform(0.9, 1),
        "sound": True,
        "certified_accuracy": {str(size): 0.99 for size in range(rng.randrange(20, 90))},
        "privacy": [one | {"epsilon": rng.uniform(0.001, 0.1)} for one in document["privacy"]],
        "class_names": ["wrong", f"names {rng.randrange(99)}"],
        "seconds": {"train": rng.uniform(0, 1)},
        "failure_probability": 1e-9,
    }
    name = rng.choice(list(changes))
    path.write_text(json.dumps(document | {name: changes[name]}))


def tables(folder, rng):
    path = folder / "metrics.csv"
    with path.open(newline="") as file:
        rows = list(csv.DictReader(file))
    for row in rows:
        row["certified_accuracy"] = rng.choice([1.0, rng.random()])
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    path.write_text(text.getvalue())
    with path.with_name("report.html").open("w") as file:  # an old page is no source either
        file.write("<h1>all curves hold with certainty</h1>")


def missing(folder, rng):
    """One file less, or the folder of models; without the others a page claims less, or names fewer files."""
    kept = ("inputs.npy", "certificate.json", "config.toml", "labels.npy")
    path = rng.choice(sorted(path for path in folder.iterdir() if path.name not in kept))
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()


ALL, TRAINED = KINDS, ("run0", "release0")
CLASSES = {
    columns: ALL,
    derived: ALL,
    settings: TRAINED,
    threats: TRAINED,
    mechanisms: ALL,
    digests: ALL,
    certified_labels: ALL,
    labels_file: ALL,
    scores_file: ALL,
    scores_certified: ALL,
    totals: ("release0",),
    anchors: ("release0",),
    maps: ("release0",),
    views: ("release0",),
    release_mechanisms: ("release0",),
    encoders: ("release0",),
    models: ("run0", "votes0"),
    model_sets: ("run0", "votes0"),
    ledgers: TRAINED,
    configs: TRAINED,
    mixed: ALL,
    summaries: TRAINED,
    tables: TRAINED,
    missing: ALL,
}
HARMLESS = (summaries, tables)
"""What no command reads: everything is shown as before."""


@pytest.mark.parametrize("edit", CLASSES, ids=lambda edit: edit.__name__)
def test_no_number_is_shown_that_does_not_follow(edit, whole, shown, tmp_path):
    refused = 0
    for number in range(EDITS):
        rng = random.Random(f"{edit.__name__} {number}")
        name = rng.choice(CLASSES[edit])
        folder = _copied(whole, name, tmp_path / str(number))
        edit(folder, rng)
        found, before = _shown(folder), shown[name]
        told = f"{edit.__name__} {number} of {name}"
        for command in ("predict", "report"):
            assert found[command] in (None, before[command]) or (edit, command) == (
                scores_certified,
                "report",
            ), f"{told}: {command} shows something else"
        if edit in HARMLESS:
            assert found == before, told
        elif edit is not missing:
            assert not found["verify"], f"{told} is verified"
            refused += None in found.values()
        if edit is scores_certified:
            _check_page(folder, found["report"], told)
    assert refused == EDITS or edit in (*HARMLESS, missing)


def _copied(whole, name, root):
    """A copy of a folder, of its twin, and of the module that its data and encoder come from."""
    for one in (name, name.replace("0", "1")):
        shutil.copytree(whole / one, root / one)
    shutil.copy(whole / "forged_data_of_test.py", root)
    return root / name


def _check_page(folder, page, told):
    """A page that is shown has the accuracy of the scores that lie there."""
    if page is None:
        return
    scores, labels = np.load(folder / "scores.npy"), np.load(folder / "labels.npy")
    votes = loads((folder / "certificate.json").read_bytes()).settings.votes
    chosen = np.eye(scores.shape[2])[scores.argmax(axis=2)] if votes else scores
    accuracy = np.mean(chosen.mean(axis=0).argmax(axis=1) == labels)
    assert f"{100 * accuracy:.1f}\u00a0%" in page, told
