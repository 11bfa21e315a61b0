"""Whatever operation is the last one of a process: noise is used once, and nothing public is uncounted."""

import itertools
import subprocess
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from fedproof.accounting import ledger
from fedproof.accounting.ledger import (
    Entry,
    Ledger,
    charge,
    load_ledger,
    load_site_ledger,
    load_user_ledger,
    save_ledger,
)
from fedproof.ensemble import Task, one_round, train_ensemble
from fedproof.federation import Federation
from fedproof.integrations import site as own
from fedproof.integrations.flower import files
from fedproof.integrations.server import State
from fedproof.mechanisms import LocalTraining, OneRound, Poisson, UserFedAvg
from fedproof.mechanisms.uploads import Rows
from fedproof.models import build
from fedproof.release import Release, load_release
from fedproof.vault import Vault
from tests.vault.conftest import KilledError

DELTA, ROUNDS, PARTS = 0.01, 3, 3
MECHANISM = UserFedAvg(rounds=ROUNDS, noise_multiplier=2.0, sampling=Poisson(probability=0.5))
ONCE = OneRound(upload=Rows(features=3, classes=2), noise_multiplier=2.0)


def task_of(mechanism):
    rng = np.random.default_rng(0)
    data = Federation(
        features=rng.normal(size=(8, 3)).astype(np.float32),
        labels=np.arange(8) % 2,
        offsets=np.arange(0, 9, 2),
        test_features=rng.normal(size=(2, 3)).astype(np.float32),
        test_labels=np.array([0, 1]),
        class_names=("a", "b"),
        name="random",
    )
    local = LocalTraining(solver="ridge") if mechanism is ONCE else LocalTraining(epochs=1, batch_size=2)
    return Task(
        federation=data, model=build("linear", data), mechanism=mechanism, local=local, secure_noise=True
    )


class Kind:
    """A way of releasing things: what one process does, what is public, and what was counted."""

    def __init__(self, folder, name):
        self.folder, self.name, self.drawn = folder, name, itertools.count()

    @property
    def vault(self):
        return Vault(self.folder)

    def noise(self):
        """Other numbers each time: who draws again makes something else."""
        return next(self.drawn)

    def counts(self):
        """What both ledgers count, in releases."""
        path = self.folder / "ledger.json"
        here = self.releases(load_ledger(path).queries, load_ledger(path).replicas) if path.exists() else 0
        entries = load_user_ledger(self.name).entries
        return here, sum(self.releases(entry.joined, 1) for entry in entries)

    def releases(self, queries, replicas):
        return sum(query.count for query in queries) * replicas


class Parts(Kind):
    """Replicas in parts, whose noise the operating system draws."""

    task = task_of(replace(MECHANISM, rounds=1))

    def work(self):
        with self.vault.alone():
            path = self.folder / "ledger.json"
            counted = load_ledger(path).replicas if path.exists() else 0
            train_ensemble(self.task, PARTS, self.folder, part_size=1, count=self.count, counted=counted)

    def count(self, replicas):
        charge(
            self.name,
            Entry.of(self.task.mechanism, replicas, delta=DELTA, key=self.vault.identity, run="here"),
        )
        save_ledger(Ledger.of(self.task.mechanism, DELTA).spend(replicas), self.folder / "ledger.json")

    def public(self):
        return {path.name: path.read_bytes() for path in self.folder.glob("parts/*")}


class OneRelease(Kind):
    """One release of a run, whose noise the operating system draws."""

    task = task_of(ONCE)

    def work(self):
        vault = self.vault
        with vault.alone():
            one_round.make_once(self.task, vault, "release.npz", lambda found, added: None, self.count)

    def count(self):
        charge(self.name, Entry.of(ONCE, 1, delta=DELTA, key=self.vault.identity, run="here"))
        save_ledger(Ledger.of(ONCE, DELTA).spend(1), self.folder / "ledger.json")

    def public(self):
        path = self.folder / "release.npz"
        return {path.name: path.read_bytes()} if path.exists() else {}


class Rounds(Kind):
    """A federation's training in rounds."""

    def counted(self, rounds):
        return Ledger.of(replace(MECHANISM, rounds=rounds), DELTA).spend(1) if rounds else None

    def work(self):
        vault = self.vault
        books = files.Books(vault=vault, ledger=self.name, delta=DELTA, seed=False)

        def count(rounds):
            books.count(replace(MECHANISM, rounds=max(1, rounds)), 1)

        with vault.alone():
            books.begin()
            saved = files.load(vault, "mark", self.counted, lambda done: partial(count, done))
            for round in range(1 + (saved.state.round if saved else 0), ROUNDS + 1):
                params = np.array([[float(round), self.noise()]])
                state = State(round=round, params=params, clip_norms=np.ones(1), heard=np.ones(1, bool))
                made = files.Saved(state=state, users={}, metrics=[], named=False)
                files.save(vault, "mark", made, self.counted, partial(count, round))

    def public(self):
        return {path.name: np.load(path)["params"].tobytes() for path in self.folder.glob("models-*")}

    def must_count(self, public):
        return max((int(name[7:12]) for name in public), default=0)


class FederationRelease(Kind):
    """A federation's one release."""

    def work(self):
        vault = self.vault
        books = files.Books(vault=vault, ledger=self.name, delta=DELTA, seed=False)
        count = partial(books.count, ONCE, 1)
        with vault.alone():
            books.begin()
            if files.publish(vault, "mark", count) is None:
                total = np.full(ONCE.upload.shape, self.noise(), dtype=np.int64)
                files.save_release(vault, "mark", Release(mechanism=ONCE, total=total), {}, [])
                files.publish(vault, "mark", count)

    def public(self):
        path = self.folder / "release.npz"
        return {path.name: load_release(path).total.tobytes()} if path.exists() else {}


class SiteUpload(Kind):
    """A site's uploads, which are sent after they are counted."""

    sent = 0

    def work(self):
        site = own.Site(
            ledger=str(self.folder / "site.json"),
            clip_norm=1.0, noise_multiplier=9.0, delta=DELTA, max_epsilon=9.0,
        )  # fmt: skip
        if not Path(site.ledger).exists():
            own.begin(site)
        for _ in range(3 - self.sent):
            own.charge(site)
            self.sent += 1

    def counts(self):
        path = self.folder / "site.json"
        count = sum(query.count for query in load_site_ledger(path).queries) if path.exists() else 0
        return count, count

    def public(self):
        return dict.fromkeys(range(self.sent), b"")


@pytest.fixture(autouse=True)
def _quick(monkeypatch):
    """What is counted is looked at, and not what it costs."""
    monkeypatch.setattr(ledger, "_composed", lambda *known: 1.0)
    monkeypatch.setattr(Ledger, "epsilon", {"paper": 1.0, "pld": 1.0})


KINDS = [Parts, OneRelease, Rounds, FederationRelease, SiteUpload]


def must_count(kind, public):
    return kind.must_count(public) if hasattr(kind, "must_count") else len(public)


def steps_of(kind, disk, tmp_path):
    disk.kill_at(None)
    kind(tmp_path / "whole", str(tmp_path / "whole-users.json")).work()
    return disk.done


@pytest.mark.parametrize("kind", KINDS)
def test_whatever_is_the_last_operation_noise_is_used_once_and_all_is_counted(kind, disk, tmp_path):
    steps = steps_of(kind, disk, tmp_path)
    assert steps > 10
    for step in range(steps):
        work = kind(tmp_path / f"run-{step}", str(tmp_path / f"users-{step}.json"))
        seen = {}
        for again in (step, step // 2, None):  # killed, killed again while it goes on, and at last to the end
            disk.kill_at(again)
            if again is None:
                work.work()
            else:
                with suppress(KilledError):
                    work.work()
            disk.kill_at(None)
            public = work.public()
            assert min(work.counts()) >= must_count(work, public), (step, again)
            for name, content in public.items():
                assert seen.setdefault(name, content) == content, f"{name} was made twice, {step}"
        assert public
        if kind is not SiteUpload:
            assert work.counts() == (must_count(work, public),) * 2
        assert not list(work.folder.glob("private/*.npz"))


@pytest.mark.parametrize("kind", KINDS)
def test_what_takes_a_place_is_on_the_disk_and_so_is_the_place(kind, disk, tmp_path):
    disk.kill_at(None)
    kind(tmp_path / "run", str(tmp_path / "users.json")).work()
    synced = {path for name, path in disk.trace if name == "fsync"}
    moved = [path for name, path in disk.trace if name == "replace"]
    assert moved
    folders = {str(Path(path).parent) for path in moved}
    assert {path for path in moved if path.endswith(".tmp")} | folders <= synced


PLANTED = ["uncounted", "forgetful", "hasty"]


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_mistake_is_found(planted, disk, tmp_path, monkeypatch):
    if planted == "uncounted":
        monkeypatch.setattr(OneRelease, "count", lambda self: None)
    elif planted == "forgetful":
        monkeypatch.setattr(Vault, "made", lambda self, item, mark: None)
        monkeypatch.setattr(Vault, "_known", lambda *known: {})
    else:  # shows first, and counts afterwards
        publish = Vault.publish
        monkeypatch.setattr(
            Vault, "publish", lambda self, item, count: publish(self, item, lambda: None) and not count()
        )
    with pytest.raises((AssertionError, ValueError)):  # or the next process refuses to go on
        test_whatever_is_the_last_operation_noise_is_used_once_and_all_is_counted(OneRelease, disk, tmp_path)


# --- two at once --------------------------------------------------------------------------------------------


CHARGING = """
import sys
from fedproof.accounting.ledger import Entry, charge
from fedproof.mechanisms import Poisson, UserFedAvg

mechanism = UserFedAvg(rounds=1, noise_multiplier=2.0, sampling=Poisson(probability=0.5))
for number in range(10):
    charge(sys.argv[1], Entry.of(mechanism, 1, delta=0.01, key=f"{sys.argv[2]} {number}", run="here"))
"""
MAKING = """
import sys
from functools import partial
from pathlib import Path
from fedproof.files import replace_file
from fedproof.vault import Vault

vault, made = Vault(Path(sys.argv[1])), 0
while made < 20:
    try:
        with vault.alone():
            made = next(number for number in range(21) if vault.record(f"item-{number}") is None)
            if made < 20:
                write = partial(replace_file, content=sys.argv[2].encode())
                vault.keep(f"item-{made}", "mark", {f"item-{made}": write})
                assert vault.publish(f"item-{made}", lambda: None)
                print(made)
    except ValueError as error:
        assert "another process is working in it" in str(error)
"""


def both(code, *words):
    """What two processes print that do the same at once."""
    running = [
        subprocess.Popen([sys.executable, "-c", code, *words, who], stdout=subprocess.PIPE, text=True)
        for who in ("one", "two")
    ]
    printed = [process.communicate()[0].split() for process in running]
    assert [process.returncode for process in running] == [0, 0]
    return printed


def test_two_processes_that_count_at_once_both_count(tmp_path):
    name = str(tmp_path / "users.json")
    both(CHARGING, name)
    assert len(load_user_ledger(name).entries) == 20


def test_two_processes_that_release_at_once_release_everything_once(tmp_path):
    one, two = both(MAKING, str(tmp_path))
    assert sorted(map(int, one + two)) == list(range(20))
    shown = {path.name: path.read_text() for path in tmp_path.glob("item-*")}
    assert {shown[f"item-{number}"] for number in one} <= {"one"}
    assert {shown[f"item-{number}"] for number in two} <= {"two"}
