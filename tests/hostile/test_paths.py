"""Whatever lies where a file is expected is refused at once, in one line that names it."""

import json
import os
import re
import resource
import signal
from contextlib import contextmanager

import pytest

from fedproof.accounting.ledger import load_ledger, load_site_ledger
from fedproof.certificates.scores import read_array
from fedproof.cli import _in_words
from fedproof.config import load_config
from fedproof.data import cifar, files, leaf, mnist, sent140, text
from fedproof.encoders.encoder import _read as read_features
from fedproof.ensemble import store
from fedproof.files import parse_json
from fedproof.folder import SEED, kept_seed
from fedproof.integrations.site import load_site
from fedproof.models import with_weights
from fedproof.models.networks import linear
from fedproof.pretrain import load_pretrain_config
from fedproof.release import load_centre, load_release
from fedproof.report.run_data import read_certificate
from fedproof.report.run_files import rounds_in
from fedproof.summary import read_summary
from fedproof.vault import Vault
from tests.hostile.readers import SUMMARY

SECONDS, MEBIBYTES = 5, 100  # for one file; most are refused in a millisecond


def leaf_at(path):
    """A folder of LEAF whose training part is that file."""
    return leaf.read(path.parents[1], name="leaf", find_encoding=lambda: None)


READERS = {
    "config.toml": load_config,
    "pretrain.toml": load_pretrain_config,
    "site.toml": load_site,
    "scores.npy": read_array,
    "scores.npz": read_array,
    "release.npz": load_release,
    "centre.npz": load_centre,
    "weights.npz": lambda path: with_weights(linear((4,), 2), path, "fc0"),
    "certificate.json": read_certificate,
    "ledger.json": load_ledger,
    "site-ledger.json": load_site_ledger,
    "summary.json": lambda path: read_summary(path.parent),
    "rounds.csv": rounds_in,
    "train/data.json": leaf_at,
    "images.gz": lambda path: mnist.read_idx(path, dimensions=3),
    "labels.gz": lambda path: mnist.read_idx(path, dimensions=1),
    "data_batch_1.bin": lambda path: cifar.read_batches([path], cifar.CIFAR10),
    "tweets.csv": sent140.read_tweets,
    "tweets.csv.gz": sent140.read_tweets,
    "glove.txt": lambda path: text.read_vectors(path, ["the"]),
    "archive.zip": lambda path: files.unpack(path, folder=path.parent, members={"a": 9}),
    "archive.tar.gz": lambda path: files.unpack(path, folder=path.parent, members={"a": 9}),
    "part-00000.safetensors": lambda path: store.read_models(path.parent, PART),
    "part-00000.npz": lambda path: store.read_scores(path.parent, PART),
    SEED: lambda path: kept_seed(path.parents[1]),
}
PART = store.Part(index=0, replicas=range(2), fingerprint="task")


def pipe(path):
    os.mkfifo(path)


def device(path):
    path.symlink_to("/dev/zero")


def folder(path):
    path.mkdir()


def sparse(path):
    """Ten gigabytes that take no room."""
    with path.open("wb") as file:
        file.truncate(10 * 2**30)


def holds(content):
    return lambda path: path.write_bytes(content)


LONG = b"9" * 5000
BAD = {
    "pipe": pipe,
    "device": device,
    "folder": folder,
    "sparse": sparse,
    "digits": holds(b'{"version": ' + LONG + b"}"),
    "digits in TOML": holds(b"[data]\nusers = " + LONG + b"\n"),
    "surrogate": holds(rb'{"version": "\ud800"}'),
    "surrogate in TOML": holds(rb'a = "\ud800"'),
    "half a character": holds(b"\xed\xa0\x80"),
    "too large": holds(b'{"version": 1' + b"0" * 350 + b"}"),
    "too large in TOML": holds(b"[data]\nusers = 1" + b"0" * 350 + b"\n"),
    "twice": holds(b'{"users": [], "users": []}'),
    "twice in TOML": holds(b"a = 1\na = 2\n"),
}


@contextmanager
def at_once():
    """A reader that hangs is interrupted, one that takes more memory than it may is found."""

    def interrupted(*_):
        raise AssertionError(f"not refused in {SECONDS} s")

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    known = signal.signal(signal.SIGALRM, interrupted)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, known)
    assert (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024 < MEBIBYTES


def refused(read, path):
    """What is said of a file, as the command line says it; empty if the file counts as absent."""
    try:
        with at_once():
            found = read(path)
    except (ValueError, OSError) as error:
        return _in_words(error)
    assert found == (), f"{path.name} was read"  # tables of a run may be missing
    return ""


@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize("name", READERS)
def test_bad_files_are_refused_at_once_in_one_line_that_names_them(tmp_path, name, bad):
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    BAD[bad](path)
    said = refused(READERS[name], path)
    if not said:
        assert name in ("metrics.csv", "rounds.csv")  # not there, or a first line alone
        return
    assert "\n" not in said
    assert path.name in said or SEED in said or path.parent.name in said
    assert len(said) < 600


def test_every_file_of_features_that_is_unfit_is_computed_again(tmp_path):
    for name in ("pipe", "device", "folder", "sparse"):
        path = tmp_path / f"{name}-digest.npy"
        BAD[name](path)
        with at_once():
            assert read_features(path) is None


@pytest.mark.parametrize("bad", ["pipe", "device", "folder", "sparse"])
@pytest.mark.parametrize("ending", ["json", "npz", "safetensors"])
def test_parts_with_unfit_files_are_trained_again(tmp_path, ending, bad):
    vault, private = Vault(tmp_path), tmp_path / "private" / "parts"
    with vault.alone():
        store.keep_part(vault, PART, {store._scores(PART): b"scores", store._models(PART): b"models"})
        assert store.publish_part(vault, PART, lambda: None)
    path = (tmp_path / "parts" if ending == "safetensors" else private) / f"part-00000.{ending}"
    path.unlink()
    BAD[bad](path)
    with at_once():
        assert not store.is_finished(tmp_path, PART)
        assert store.stored_part_size(tmp_path, "task") == (None if ending == "json" else 2)


@pytest.mark.parametrize("key", ["users", "accuracy", "replicas", "failure_probability", "seconds"])
@pytest.mark.parametrize("value", [10**350, float("inf"), float("nan"), "\ud800"])
def test_numbers_that_nobody_can_compute_with_are_no_summary(tmp_path, key, value):
    document = json.loads(SUMMARY) | {key: {"train": value} if key == "seconds" else value}
    (tmp_path / "summary.json").write_text(json.dumps(document))
    said = refused(lambda path: read_summary(path.parent), tmp_path / "summary.json")
    assert re.fullmatch(r".*summary\.json: not valid JSON: it holds .*", said)


def write_leaf(root, content):
    for part in ("train", "test"):
        (root / part).mkdir()
        (root / part / "data.json").write_text(content if part == "train" else LEAF % ("zoe", "zoe"))
    return root / "train" / "data.json"


LEAF = '{"users": ["%s"], "num_samples": [1], "user_data": {"%s": {"x": [[0.5]], "y": [0]}}}'


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (LEAF.replace('"user_data"', '"users": [], "user_data"') % ("a", "a"), "has the field 'users' twice"),
        (
            '{"users": ["a", "b"], "num_samples": [1, 1], "user_data": {"a": {"x": [[1]], "y": [0]}, '
            '"a": {"x": [[1]], "y": [0]}}}',
            "has the field 'a' twice",
        ),
        (LEAF % (r"\ud800", r"\ud800"), "holds half a character"),
        (LEAF.replace("0.5", "1" + "0" * 350) % ("a", "a"), "a whole number of 351 digits"),
        (LEAF.replace("0.5", "9" * 5000) % ("a", "a"), "a whole number of 5000 digits"),
    ],
    ids=["field twice", "user twice", "surrogate", "350", "5000"],
)
def test_leaf_files_that_two_readers_would_read_differently_are_refused(tmp_path, content, said):
    path = write_leaf(tmp_path, content)
    assert said in refused(leaf_at, path)


def test_one_name_in_two_forms_is_one_user(tmp_path):
    composed, decomposed = "caf\u00e9", "cafe\u0301"
    row = {"x": [[0.5]], "y": [0]}
    both = {
        "users": [composed, decomposed],
        "num_samples": [1, 1],
        "user_data": {composed: row, decomposed: row},
    }
    path = write_leaf(tmp_path, json.dumps(both))
    assert "user 'caf\u00e9' occurs twice" in refused(leaf_at, path)
    path.write_text(LEAF % (composed, composed))
    (tmp_path / "test" / "data.json").write_text(LEAF % (decomposed, decomposed))
    arrays = leaf.read(tmp_path, name="leaf", find_encoding=lambda: None, shares=True)
    assert arrays.test_owners.tolist() == [0]  # else the test input would count as that of nobody who trains


def test_pairs_of_escapes_are_one_character():
    assert parse_json(json.dumps("\U0001f600")) == "\U0001f600"
    assert parse_json(r'"\\ud800"') == r"\ud800"
