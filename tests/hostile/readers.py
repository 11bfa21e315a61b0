"""Every reader of the package with small valid files of its format."""

import csv
import gzip
import io
import json
import struct
import tarfile
import zipfile
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from fedproof.accounting.ledger import Ledger, load_ledger, load_site_ledger, save_ledger, save_site_ledger
from fedproof.accounting.spent import spent_by
from fedproof.certificates import certify, dumps, inefficacy, loads, loads_inefficacy, verify
from fedproof.certificates.document import checksum
from fedproof.certificates.scores import check_scores, read_array
from fedproof.config import load_config, parse_config
from fedproof.data import cifar, files, leaf, mnist, sent140, text
from fedproof.ensemble import store
from fedproof.mechanisms import FixedSize, OneRound, Poisson, Quantile, Smoothed, UserFedAvg
from fedproof.mechanisms.uploads import Anchors
from fedproof.models import with_weights
from fedproof.models.networks import linear
from fedproof.release import Centre, Release, load_centre, load_release
from fedproof.summary import read_summary
from fedproof.vault import Vault
from tests.hostile.mutate import mutate, mutate_json

MECHANISM = UserFedAvg(
    rounds=2, noise_multiplier=1.5, sampling=Poisson(probability=0.2), clipping=Quantile(target=0.4)
)
SCORES = np.random.default_rng(0).dirichlet(np.ones(3), size=(6, 4)).astype(np.float32)
COSTS = np.random.default_rng(1).uniform(0.0, 0.6, size=20)


@dataclass(frozen=True, kw_only=True)
class Reader:
    """One way into the package.

    Attributes:
        read: called with a folder and the bytes of a hostile file.
        valid: what `read` accepts.
        mutations: functions of bytes and a number.
    """

    read: object
    valid: tuple
    mutations: tuple = field(default=(mutate,))


def _write(path, content):
    """A new file each time: file systems wait for the disk when an old one is written over."""
    path.unlink(missing_ok=True)
    path.write_bytes(content)


def _at(name, read):
    """Reader of a file called `name`."""

    def write_and_read(folder, content):
        path = folder / name
        _write(path, content)
        return read(path)

    return write_and_read


def _npy(array):
    buffer = io.BytesIO()
    np.save(buffer, array)
    return buffer.getvalue()


def _npz(compressed=False, **arrays):
    buffer = io.BytesIO()
    (np.savez_compressed if compressed else np.savez)(buffer, **arrays)
    return buffer.getvalue()


def _idx(shape):
    body = np.arange(np.prod(shape)).astype(np.uint8).tobytes()
    return bytes([0, 0, 8, len(shape)]) + struct.pack(f">{len(shape)}I", *shape) + body


def _inside_gzip(content, number):
    return gzip.compress(mutate(gzip.decompress(content), number), 1, mtime=0)


def _with_checksums(content, number):
    """A certificate whose checksums agree with what was changed: the rest must not trust them."""
    document = json.loads(mutate_json(content, number))
    if isinstance(document, dict) and isinstance(document.get("checksums"), dict):
        body = {name: value for name, value in document.items() if name != "checksums"}
        document["checksums"] = {name: checksum(value) for name, value in body.items()}
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _certificates():
    fixed = UserFedAvg(rounds=1, noise_multiplier=2.0, sampling=FixedSize(cohort=2, users=9))
    made = [
        certify(SCORES, [0, 1, 2, 0], mechanism=MECHANISM, method="mean", max_size=3),
        certify(SCORES, mechanism=fixed, method="vote", max_size=2),
        certify(SCORES, mechanism=MECHANISM, method="paper", delta=1e-3, max_size=3),
    ]
    return tuple(dumps(certificate).encode() for certificate in made)


def _bounds():
    made = [
        inefficacy(COSTS, cost_bound=0.5, mechanism=MECHANISM, sizes=[0, 2], tau=2.0, max_size=3),
        inefficacy(COSTS, cost_bound=0.5, mechanism=MECHANISM, sizes=[1], method="paper", delta=1e-3),
    ]
    return tuple(dumps(one).encode() for one in made)


def _ledger(folder):
    save_ledger(Ledger.of(MECHANISM, delta=1e-3).spend(7), folder / "ledger.json")
    return (folder / "ledger.json").read_bytes()


def _site_ledger(folder):
    counted = Ledger(queries=(), delta=1e-3).charged(MECHANISM.queries[0])
    save_site_ledger(counted, folder / "ledger.json")
    return (folder / "ledger.json").read_bytes()


def _release(folder):
    total = np.arange(6).reshape(3, 2)
    near = OneRound(upload=Anchors(anchors=3, classes=2), noise_multiplier=1.0)
    Release(mechanism=near, total=total, anchors=np.ones((3, 4), dtype=np.float32)).save(folder / "one.npz")
    return (folder / "one.npz").read_bytes()


def _centre(folder):
    mechanism = Smoothed(noise_multiplier=1.0, smoothing=2.0, population=9)
    Centre(mechanism=mechanism, total=np.linspace(-1, 1, 6)).save(folder / "one.npz")
    return (folder / "one.npz").read_bytes()


def _leaf(first):
    users = {"ann": [first, first], "bob": [first]}
    document = {
        "users": list(users),
        "num_samples": [len(rows) for rows in users.values()],
        "user_data": {user: {"x": rows, "y": [0] * len(rows)} for user, rows in users.items()},
    }
    return json.dumps(document).encode()


def _read_leaf(folder, content):
    for part in ("train", "test"):
        (folder / part).mkdir(exist_ok=True)
        _write(folder / part / "data.json", content)
    return leaf.read(folder, name="leaf", find_encoding=lambda: None, shares=True)


def _tweets(columns):
    buffer = io.StringIO()
    rows = [["0", "1", "date", "query", "ann", 'a "good" day'], ["4", "2", "date", "query", "bob", "x,y\nz"]]
    csv.writer(buffer).writerows(rows if columns == 6 else [["label", "text"], ["0", "bad"], ["1", "good"]])
    return buffer.getvalue().encode()


def _zip():
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("folder/a.txt", b"a" * 100)
        packed.writestr("../../outside.txt", b"evil")
    return buffer.getvalue()


def _tar():
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as packed:
        for name in ("folder/a.txt", "../../outside.txt"):
            entry = tarfile.TarInfo(name)
            entry.size = 100
            packed.addfile(entry, io.BytesIO(b"a" * 100))
    return buffer.getvalue()


def _unpack(name):
    def read(folder, content):
        path = folder / name
        _write(path, content)
        target = folder / "target"
        target.mkdir(exist_ok=True)
        try:
            files.unpack(path, folder=target, members={"a.txt": 1000})
        finally:
            assert {entry.name for entry in target.iterdir()} <= {"a.txt"}
            assert not (folder.parent / "outside.txt").exists()
            (target / "a.txt").unlink(missing_ok=True)

    return read


PART = store.Part(index=0, replicas=range(2), fingerprint="task")


def _part_files():
    from fedproof.ensemble.train import Replicas
    from fedproof.models.model import Layout

    replicas = Replicas(
        indices=range(2),
        scores=SCORES[:2],
        params=torch.zeros(2, 6),
        layout=Layout(names=("a.weight", "a.bias"), shapes=((2, 2), (2,))),
        diagnostics={"cohort_size": np.ones((2, 1))},
    )
    with TemporaryDirectory() as folder:
        store.keep_part(Vault(Path(folder)), PART, store.encode(PART, replicas))
        store.publish_part(Vault(Path(folder)), PART, lambda: None)
        return {name: (Path(folder) / name).read_bytes() for name in _NAMES.values()}


def _read_part(suffix):
    """One of the three files is hostile: the part is refused, or, past the checksum, read or refused."""

    def read(folder, content):
        for name, data in _FILES.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            _write(folder / name, content if name.endswith(suffix) else data)
        whole = all((folder / name).read_bytes() == data for name, data in _FILES.items())
        finished = store.is_finished(folder, PART)
        assert finished is whole or suffix == "json"
        store.stored_part_size(folder, "task")
        for reader in (store.read_scores, store.read_diagnostics, store.read_models):
            reader(folder, PART)
        if not finished:
            raise ValueError("the part is done again")

    return read


_NAMES = {
    "npz": "private/parts/part-00000.npz",
    "safetensors": "parts/part-00000.safetensors",
    "json": "private/parts/part-00000.json",
}
_FILES = _part_files()


CERTIFICATE = _certificates()[0]
SUMMARY = json.dumps(
    {
        "data": "digits",
        "users": 4,
        "inputs": loads(CERTIFICATE).num_inputs,
        "replicas": loads(CERTIFICATE).num_replicas,
        "accuracy": 0.9,
        "replica_accuracy": 0.8,
        "class_names": ["a", "b"],
        "seconds": {"train": 1.5},
        "threat": {"unit": "user", "relation": loads(CERTIFICATE).threat.relation.value},
        "privacy": [asdict(one) for one in spent_by(loads(CERTIFICATE).mechanism, 1e-5)],
        **loads(CERTIFICATE).headline,
    }
).encode()
CONFIG = b"""
[data]
name = "digits"
classes = [0, 1]
users = 96
[model]
name = "mlp"
hidden = [4, 5]
[mechanism]
kind = "user-fedavg"
cohort = 10
clip = "quantile"
noise_multiplier = 1.5
[ensemble]
replicas = 20
[certificate]
method = "margin"
failure_probability = 0.01
"""

VECTORS = b"the 0.1 0.2 0.3\ngood 1 2 3\nbad -1 -2e-3 3\n"


def _overrides(folder, content):
    return parse_config(CONFIG.decode(), "config", [content.decode("utf-8", "replace")])


def all_readers(folder):
    """Readers by name; `folder` is scratch space."""
    certificates, bounds = _certificates(), _bounds()
    weights = _npz(**{"fc0.weight": np.zeros((2, 4)), "fc0.bias": np.zeros(2)})
    return {
        "config": Reader(read=_at("config.toml", load_config), valid=(CONFIG,)),
        "overrides": Reader(read=_overrides, valid=(b"mechanism.rounds=3", b"data.classes=[0, 1]")),
        "scores": Reader(
            read=_at("scores.npy", lambda path: check_scores(read_array(path))),
            valid=(_npy(SCORES), _npz(scores=SCORES), _npz(compressed=True, scores=SCORES)),
        ),
        "certificate": Reader(
            read=lambda folder, content: loads(content),
            valid=certificates,
            mutations=(mutate, mutate_json, _with_checksums, _with_checksums),
        ),
        "verify": Reader(
            read=lambda folder, content: verify(content, SCORES),
            valid=certificates[:2],
            mutations=(_with_checksums,),
        ),
        "bounds on costs": Reader(
            read=lambda folder, content: loads_inefficacy(content),
            valid=bounds,
            mutations=(mutate, mutate_json, _with_checksums, _with_checksums),
        ),
        "verify bounds": Reader(
            read=lambda folder, content: verify(content, COSTS), valid=bounds, mutations=(_with_checksums,)
        ),
        "ledger": Reader(
            read=_at("ledger.json", load_ledger), valid=(_ledger(folder),), mutations=(mutate, mutate_json)
        ),
        "ledger of a site": Reader(
            read=_at("ledger.json", load_site_ledger),
            valid=(_site_ledger(folder),),
            mutations=(mutate, mutate_json),
        ),
        "release": Reader(read=_at("release.npz", load_release), valid=(_release(folder),)),
        "centre": Reader(read=_at("release.npz", load_centre), valid=(_centre(folder),)),
        "idx": Reader(
            read=_at("images.gz", lambda path: mnist.read_idx(path, dimensions=3)),
            valid=(gzip.compress(_idx((2, 4, 5)), mtime=0),),
            mutations=(mutate, _inside_gzip),
        ),
        "cifar": Reader(
            read=_at("data_batch_1.bin", lambda path: cifar.read_batches([path], cifar.CIFAR10)),
            valid=(bytes(2 * cifar.CIFAR10.record),),
        ),
        "leaf": Reader(
            read=_read_leaf,
            valid=(_leaf([0.5, 1]), _leaf("a text"), _leaf(["1", "date", "query", "ann", "a text"])),
            mutations=(mutate, mutate_json),
        ),
        "tweets": Reader(read=_at("tweets.csv", sent140.read_tweets), valid=(_tweets(6), _tweets(2))),
        "packed tweets": Reader(
            read=_at("tweets.csv.gz", sent140.read_tweets),
            valid=(gzip.compress(_tweets(2), mtime=0),),
            mutations=(mutate, _inside_gzip),
        ),
        "glove": Reader(
            read=_at("glove.txt", lambda path: text.read_vectors(path, ["the", "good", "bad"])),
            valid=(VECTORS,),
        ),
        "weights": Reader(
            read=_at("weights.npz", lambda path: with_weights(linear((4,), 2), path, "fc0")), valid=(weights,)
        ),
        "part scores": Reader(read=_read_part("npz"), valid=(_FILES[_NAMES["npz"]],)),
        "part models": Reader(read=_read_part("safetensors"), valid=(_FILES[_NAMES["safetensors"]],)),
        "part record": Reader(
            read=_read_part("json"), valid=(_FILES[_NAMES["json"]],), mutations=(mutate, mutate_json)
        ),
        "summary": Reader(
            read=_at("summary.json", lambda path: read_summary(path.parent)),
            valid=(SUMMARY,),
            mutations=(mutate, mutate_json),
        ),
        "zip": Reader(read=_unpack("archive.zip"), valid=(_zip(),)),
        "tar": Reader(read=_unpack("archive.tar.gz"), valid=(_tar(),), mutations=(mutate, _inside_gzip)),
    }
