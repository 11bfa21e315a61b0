"""What everything that is trained on one set of users costs together, and what may be published then."""

import json
import math
import sys
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from fedproof.accounting import account
from fedproof.accounting.epsilon import replaced_epsilon
from fedproof.accounting.ledger import (
    Entry,
    Ledger,
    UserLedger,
    charge,
    ledger_path,
    load_user_ledger,
    save_ledger,
)
from fedproof.config import parse_config
from fedproof.experiment import run
from fedproof.federation import Federation
from fedproof.mechanisms import FixedSize, InstanceFedSGD, NoisyPartition, OneRound, Poisson, UserFedAvg
from fedproof.mechanisms.uploads import Rows
from fedproof.sweep import points, sweep
from tests.commands import fedproof

DELTA = 0.0029
ONE = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
ROWS = OneRound(upload=Rows(features=16, classes=10), noise_multiplier=5.0)


def entry(mechanism, releases=1, key="a", **more):
    return Entry.of(mechanism, releases, delta=DELTA, key=key, run=f"runs/{key}", **more)


def ledger_of(*entries):
    found = UserLedger()
    for one in entries:
        found = found.charged(one)
    return found


# --- arithmetic ---------------------------------------------------------------------------------------------


def test_entries_are_composed_and_not_added():
    five = ledger_of(*(entry(ONE, key=str(number)) for number in range(5)))
    assert five.total(DELTA).epsilon == account(replace(ONE, rounds=15), DELTA, ["pld"])["pld"]
    alone = account(ONE, DELTA, ["pld"])["pld"]
    assert alone < five.total(DELTA).epsilon < 5 * alone


def test_models_of_disjoint_groups_cost_what_one_costs():
    groups = NoisyPartition(groups=50, rounds=3, noise_multiplier=4.0)
    assert ledger_of(entry(groups, 50)).total(DELTA).epsilon == account(groups, DELTA, ["pld"])["pld"]


def test_a_total_is_for_the_relation_that_all_entries_know():
    fixed = UserFedAvg(rounds=1, noise_multiplier=2.0, sampling=FixedSize(cohort=3, users=30))
    joined = ledger_of(entry(ONE), entry(ROWS, key="b")).total(DELTA)
    assert joined.relation == "join"
    assert joined.epsilon > account(ROWS, DELTA, ["pld"])["pld"]
    assert ledger_of(entry(ONE), entry(fixed, key="b")).total(DELTA).relation == "replace"
    alone = ledger_of(entry(ROWS, joins=False)).total(DELTA)
    assert (alone.relation, alone.epsilon) == ("replace", replaced_epsilon(ROWS, DELTA))


def test_where_some_protect_instances_the_total_is_for_an_instance():
    steps = InstanceFedSGD(
        rounds=1, noise_multiplier=2.0, sampling=FixedSize(cohort=3, users=30), batch_probability=0.5
    )
    total = ledger_of(entry(ONE), entry(steps, key="b")).total(DELTA)
    assert (total.unit, total.relation) == ("instance", "replace")
    assert total.epsilon >= ledger_of(entry(steps, key="b")).total(DELTA).epsilon


def test_what_was_counted_is_never_forgotten():
    before = ledger_of(entry(ONE, 70))
    assert before.charged(entry(ONE, 40)).total(DELTA) == before.total(DELTA)
    more = before.charged(entry(ONE, 100))
    assert len(more.entries) == 1
    assert more.total(DELTA).epsilon == ledger_of(entry(ONE, 100)).total(DELTA).epsilon
    other = before.charged(entry(replace(ONE, noise_multiplier=9.0), 1))
    assert other.total(DELTA).epsilon > before.total(DELTA).epsilon


def test_users_who_join_and_leave_have_spent_what_they_took_part_in():
    first, both = entry(ONE, 3, users=["ann", "bob"]), entry(ONE, 1, key="b")
    second = entry(ONE, 2, key="c", users=["bob"])
    three = {"ann": 4, "bob": 6, "eve": 1}
    most = account(replace(ONE, rounds=3 * three["bob"]), DELTA, ["pld"])["pld"]
    assert ledger_of(first, both, second).total(DELTA).epsilon == most
    apart = ledger_of(entry(ONE, 3, users=["ann"]), entry(ONE, 3, key="b", users=["bob"])).total(DELTA)
    assert apart.epsilon == account(replace(ONE, rounds=9), DELTA, ["pld"])["pld"]


# --- the file -----------------------------------------------------------------------------------------------


def test_a_name_is_a_file_in_the_data_folder_and_a_path_is_itself(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert ledger_path("clinics-2026") == tmp_path / "fedproof" / "ledgers" / "clinics-2026.json"
    assert ledger_path(f"{tmp_path}/mine.json") == tmp_path / "mine.json"
    for name in ("", ".", "..", "a b", "-x", "ü\n"):
        with pytest.raises(ValueError, match="must be a name of letters"):
            ledger_path(name)


def test_what_is_counted_is_read(tmp_path):
    name = str(tmp_path / "deep" / "users.json")
    assert load_user_ledger(name) == UserLedger()
    told = [entry(ONE), entry(ROWS, key="b", users=["ann"]), entry(ROWS, key="c", joins=False)]
    for one in told:
        charge(name, one)
    assert load_user_ledger(name) == UserLedger(entries=tuple(told))
    assert (tmp_path / "deep" / "users.json").stat().st_mode & 0o777 == 0o600


DAMAGE = {
    "cut": lambda text: text[:-9],
    "list": lambda text: "[]",
    "fewer": lambda text: text.replace('"count": 3', '"count": 1'),
    "unsealed": lambda text: json.dumps({**json.loads(text), "sha256": None}),
    "a run's": None,
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_ledger_that_does_not_tell_is_refused_before_anything_is_made(own, tmp_path, how):
    path = tmp_path / "users.json"
    charge(str(path), entry(ONE))
    if how == "a run's":
        save_ledger(Ledger.of(ONE, DELTA).spend(1), path)
    else:
        path.write_text(DAMAGE[how](path.read_text()))
    with pytest.raises(ValueError, match=r"users\.json is not a ledger of users") as refused:
        run(own(f"privacy.ledger='{path}'"), tmp_path / "run")
    assert "\n" not in str(refused.value)
    assert not (tmp_path / "run").exists()


# --- runs ---------------------------------------------------------------------------------------------------

OWN = """
[data]
name = "own_data:make"
[mechanism]
rounds = 3
noise_multiplier = 1.8
sampling_probability = 0.1
population = 30
delta = 0.0029
[ensemble]
replicas = 8
part_size = 4
[certificate]
method = "mean"
max_size = 2
"""


@pytest.fixture
def own(monkeypatch):
    """`own(*changes)`: a run on data of nobody else's."""
    rng = np.random.default_rng(0)
    features, labels = rng.normal(size=(60, 4)).astype(np.float32), rng.integers(0, 2, 60)
    made = Federation(
        features=features,
        labels=labels,
        offsets=np.arange(0, 61, 2),
        test_features=features[:5],
        test_labels=labels[:5],
        class_names=("a", "b"),
        name="own",
        user_ids=np.arange(30),
    )
    monkeypatch.setitem(sys.modules, "own_data", SimpleNamespace(make=lambda: made))
    return lambda *changes: parse_config(OWN, "own", changes)


def told(folder):
    return (folder / "PUBLISH.txt").read_text()


def shown(epsilon):
    return f"ε = {math.ceil(epsilon * 1000) / 1000:.3f}"


def test_a_sweep_says_what_its_runs_cost_together(own, tmp_path):
    name = str(tmp_path / "clinics.json")
    runs = points(own(f"privacy.ledger='{name}'"), ["mechanism.learning_rate=0.1,0.2,0.3,0.4,0.5"])
    sweep(runs, tmp_path / "sweep")
    one, five = (account(replace(ONE, rounds=3 * 8 * count), DELTA, ["pld"])["pld"] for count in (1, 5))
    assert five > 2 * one
    last = told(tmp_path / "sweep" / runs[-1].name)
    assert last.startswith("Keep private/ to yourself; everything else here may be published.\n")
    assert f"This training: {shown(one)} at δ = 0.0029, for one user added or removed." in last
    assert f"All 5 in ledger {name}: {shown(five)}, for one user added or removed" in last
    assert "If you chose one after looking" in last
    sweep(runs, tmp_path / "sweep")  # they are there, and cost nothing more
    assert len(load_user_ledger(name).entries) == 5
    said = fedproof("ledger", name, columns=200).stdout
    assert f"all 5 together: ε = {math.ceil(five * 100) / 100:.2f}" in said
    found = json.loads(fedproof("ledger", name, "--json").stdout)
    assert (found["epsilon"], found["delta"], len(found["entries"])) == (five, DELTA, 5)


def test_without_a_name_nothing_is_publishable_and_a_name_is_never_too_late(own, tmp_path):
    folder, name = tmp_path / "run", str(tmp_path / "users.json")
    made = run(own(), folder)
    assert told(folder).startswith("Publish nothing of this that must stay private: no ledger counts")
    assert "--set privacy.ledger=NAME" in told(folder)
    models = {path: path.stat().st_mtime_ns for path in folder.glob("parts/*")}
    run(own(f"privacy.ledger='{name}'"), folder, resume=True)
    assert {path: path.stat().st_mtime_ns for path in folder.glob("parts/*")} == models
    assert "may be published" in told(folder)
    assert load_user_ledger(name).total(DELTA).epsilon == made.summary.all.epsilon
    with pytest.raises(ValueError, match=r"another configuration \(privacy.ledger = "):
        run(own(f"privacy.ledger='{tmp_path}/other.json'"), folder, resume=True)


def test_what_no_noise_hides_is_counted_nowhere(own, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    for number, changes in enumerate((("ensemble.seed=0",), ("mechanism.clip=median",))):
        run(own("privacy.ledger=users", *changes), tmp_path / str(number))
        assert told(tmp_path / str(number)).startswith("Publish nothing")
    digits = parse_config(OWN, "own", ["data.name=digits", "data.classes=[0, 1]", "data.users=30"])
    run(digits, tmp_path / "digits")
    assert "digits is public, and counted nowhere" in told(tmp_path / "digits").splitlines()[0]
    assert not (tmp_path / "data").exists()
    with pytest.raises(ValueError, match=r"ledger = 'users' is not used by mechanism\.kind"):
        own("privacy.ledger=users", "mechanism.kind=fedavg")


def test_a_copy_of_a_run_counts_for_itself(own, tmp_path):
    import shutil

    name = str(tmp_path / "users.json")
    config = own(f"privacy.ledger='{name}'", "ensemble.secure_noise=true")
    run(config, tmp_path / "run")
    shutil.copytree(tmp_path / "run", tmp_path / "copy")
    run(config, tmp_path / "run", resume=True)
    assert len(load_user_ledger(name).entries) == 1
    run(config, tmp_path / "copy", resume=True)
    assert len(load_user_ledger(name).entries) == 2


@pytest.mark.parametrize("kind", ["user-fedavg", "one-round"])
def test_what_was_counted_stays_where_a_later_step_refuses(own, tmp_path, monkeypatch, kind):
    # Seed, configuration and PUBLISH.txt went, and the next run made the release again, with other noise.
    once = (
        "mechanism.kind=one-round",
        "mechanism.upload=rows",
        "mechanism.solver=ridge",
        "certificate.method=exact",
    )
    config = own(f"privacy.ledger='{tmp_path}/users.json'", *(once if kind == "one-round" else ()))
    with monkeypatch.context() as patch:

        def refuse(*known, **more):
            raise ValueError("refused")

        patch.setattr("fedproof.experiment.certify_task", refuse)
        with pytest.raises(ValueError, match="refused"):
            run(config, tmp_path / "run")
    folder = tmp_path / "run"
    assert "may be published" in told(folder)
    kept = {path: path.read_bytes() for path in folder.rglob("*") if path.suffix in (".safetensors", ".npz")}
    seed = (folder / "private" / "seed").read_text()
    assert kept
    run(config, folder, resume=True)
    assert all(path.read_bytes() == content for path, content in kept.items())
    assert (folder / "private" / "seed").read_text() == seed
    assert len(load_user_ledger(f"{tmp_path}/users.json").entries) == 1
    assert (folder / "certificate.json").exists()


def test_models_are_not_shown_before_they_are_counted(own, tmp_path, monkeypatch):
    config = own("ensemble.secure_noise=true")

    def refuse(*known):
        raise ValueError("refused")

    monkeypatch.setattr("fedproof.experiment.save_ledger", refuse)
    with pytest.raises(ValueError, match="refused"):
        run(config, tmp_path / "run")
    assert not list((tmp_path / "run").glob("parts/*"))
    assert list((tmp_path / "run").glob("private/parts/*.safetensors"))
    monkeypatch.undo()
