"""`fedproof attack` as typed: rows beside bounds, files, and what is refused."""

import csv
import json

import pytest

from tests.commands import fedproof

TINY = """
[data]
classes = [0, 1]
users = 24
[mechanism]
rounds = 1
cohort = 12
noise_multiplier = 4.0
delta = 0.01
local_epochs = 2
batch_size = 4
learning_rate = 0.5
[ensemble]
seed = 0
replicas = 60
[certificate]
method = "mean"
"""

ONE_ROUND = """
[data]
classes = [0, 1, 2]
users = 40
public = 60
project = 8
[mechanism]
kind = "one-round"
anchors = 30
solver = "ridge"
noise_multiplier = 0.2
delta = 0.01
[ensemble]
seed = 0
[certificate]
method = "exact"
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "tiny.toml"
    path.write_text(TINY)
    return path


def test_attacks_stand_beside_the_bounds(config, tmp_path):
    kinds = ("--attack", "backdoor", "--attack", "worst-case")
    done = fedproof("attack", config, *kinds, "--adversaries", "1:2", "--out", tmp_path / "out", "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [(row["attack"], row["adversaries"]) for row in rows] == [
        ("backdoor", 1),
        ("backdoor", 2),
        ("worst-case", 1),
        ("worst-case", 2),
    ]
    for row in rows:
        assert row["certified_lower"] <= row["certified_upper"]
        assert row["holds_on_certified"]
        assert row["holds_on_cost"]
        assert row["sound"]
    assert (tmp_path / "out" / "attacks.html").exists()
    assert (tmp_path / "out" / "attacks.csv").read_text().count("\n") == 5


@pytest.mark.parametrize("method", ["mean", "vote"])
def test_accuracy_means_the_same_as_in_a_run(config, tmp_path, method):
    changes = changed(
        f"certificate.method={method}", "mechanism.noise_multiplier=20.0", "data.classes=[0,1,8]"
    )
    done = fedproof("attack", config, "--attack", "label-flip", "--adversaries", "0", *changes, "--json")
    (row,) = json.loads(done.stdout)["rows"]
    run = json.loads(fedproof("run", config, "--out", tmp_path / "run", *changes, "--json").stdout)
    assert row["accuracy"] == row["clean_accuracy"] == run["accuracy"]


def test_attacks_on_one_release(tmp_path):
    config, kinds = tmp_path / "once.toml", ("--attack", "worst-case", "--attack", "hostile")
    config.write_text(ONE_ROUND)
    done = fedproof("attack", config, *kinds, "--adversaries", "0,5,30", "--out", tmp_path / "out")
    assert "What one model answers; without attack" in done.stdout
    assert "sound: every condition of the theorem is met" in done.stdout
    assert "All 6 attacks stayed within what is certified." in (tmp_path / "out" / "attacks.html").read_text()
    rows = list(csv.DictReader((tmp_path / "out" / "attacks.csv").read_text().splitlines()))
    run = json.loads(fedproof("run", config, "--out", tmp_path / "run", "--json").stdout)
    assert float(rows[0]["accuracy"]) == run["accuracy"]
    assert float(rows[0]["cost"]) == pytest.approx(1 - float(rows[0]["success"]))
    assert float(rows[2]["accuracy"]) < 0.3
    refused = fedproof("attack", config, *kinds, *changed("ensemble.secure_noise=true"), status=1)
    assert refused.stderr.count("\n") == 1
    assert "error: ensemble.secure_noise = true must be false to attack kind = 'one-round'" in refused.stderr


def test_a_cost_at_its_bound_is_said(config, tmp_path):
    attack = ("attack", config, "--attack", "label-flip", "--adversaries", "1")
    told = fedproof(*attack, *changed("attack.cost_bound=0.1"), "--out", tmp_path / "out").stdout
    assert "cost of label-flip is at its bound already, attack.cost_bound = 0.1" in told
    assert "at its bound already" in (tmp_path / "out" / "attacks.html").read_text()
    [warning] = json.loads(fedproof(*attack, *changed("attack.cost_bound=0.1"), "--json").stdout)["warnings"]
    assert "at its bound already" in warning
    told = fedproof(*attack).stdout
    assert "at its bound" not in told
    assert max(map(len, told.split("k: poisoned")[0].splitlines())) <= 80


def test_a_robust_rule_makes_the_bounds_heuristic(config):
    rule = ("--set", "aggregation.rule=median", "--set", "aggregation.adversaries=1")
    done = fedproof("attack", config, "--attack", "label-flip", *rule)
    assert "heuristic, not a proof" in done.stdout
    assert "the rule median" in done.stdout


def test_without_noise_there_is_nothing_to_hold(config):
    done = fedproof("attack", config, "--attack", "backdoor", "--set", "mechanism.kind=fedavg", "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["certified_lower"] is None
    assert not row["sound"]


def test_instances_of_one_user(config):
    instance = ("mechanism.kind=instance-fedavg", "mechanism.local_steps=3", "mechanism.sampling=none")
    changes = [part for key in (*instance, "threat.unit=instance") for part in ("--set", key)]
    done = fedproof("attack", config, "--attack", "label-flip", "--adversaries", "2", *changes, "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["adversaries"] == 2
    assert row["sound"]


def changed(*pairs):
    return [part for pair in pairs for part in ("--set", pair)]


def test_where_no_folder_can_be_is_said_before_training(config, monkeypatch):
    monkeypatch.setattr(
        "fedproof.robustness.evaluate.attack", lambda *told, **how: pytest.fail("was trained")
    )
    said = fedproof("attack", config, "--attack", "hostile", "--out", config, status=1).stderr
    assert "is a file, must be a folder" in said.replace("\n", "")


def test_users_who_join_and_leave(config):
    kinds = ("--attack", "hostile", "--attack", "worst-case", "--attack", "leave")
    relation = changed("threat.relation=join", "attack.user_instances=1")
    done = fedproof("attack", config, *kinds[:4], "--adversaries", "0:2", *relation, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["adversaries"] for row in rows] == [0, 1, 2] * 2
    assert all(row["sound"] and row["holds_on_certified"] and row["holds_on_cost"] for row in rows)
    done = fedproof("attack", config, *kinds[4:], "--adversaries", "2", *relation[:2], "--json")
    (row,) = json.loads(done.stdout)["rows"]
    assert row["sound"]
    assert row["holds_on_certified"]


@pytest.mark.parametrize("relation", ["replace", "join"])
def test_the_worst_instances_are_dealt_out(config, relation):
    instance = ("mechanism.kind=instance-fedavg", "mechanism.local_steps=3", "mechanism.sampling=none")
    instance += ("mechanism.batch_probability=0.5",)  # declared: an instance that joins changes no chance
    more = changed(*instance, "threat.unit=instance", f"threat.relation={relation}", "attack.spread=3")
    done = fedproof("attack", config, "--attack", "worst-case", "--adversaries", "1:2", *more, "--json")
    rows = json.loads(done.stdout)["rows"]
    assert [row["adversaries"] for row in rows] == [1, 2]
    assert all(row["sound"] and row["holds_on_cost"] for row in rows)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--attack is missing"),
        (("--attack", "leave"), "'leave' needs relation = 'join'"),
        (("--attack", "hostile", "--set", "attack.values=rude"), "attack.values"),
        (("--attack", "hostile", "--set", "attack.spread=2"), "spread = 2 is for poisoned instances"),
        (("--attack", "label-flip", "--set", "attack.user_instances=99"), "user_instances = 99 must be at"),
        (("--attack", "magic"), "attack = 'magic' must be one of backdoor"),
        (("--attack", "backdoor", "--adversaries", "25"), "25"),
        (("--attack", "backdoor", "--set", "attack.direction=inverse-std"), "direction is no parameter"),
        (("--attack", "backdoor", "--set", "aggregation.rule=magic"), "rule = 'magic' must be one of mean"),
    ],
)
def test_what_cannot_be_attacked_is_one_line(config, arguments, message):
    done = fedproof("attack", config, *arguments, status=1)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1


def test_run_refuses_an_attack(config, tmp_path):
    done = fedproof("run", config, "--out", tmp_path / "run", "--set", "attack.kind=backdoor", status=1)
    assert "use fedproof attack" in done.stderr
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("unit", ["user", "instance"])
def test_attacks_on_disjoint_groups_change_no_certified_vote(tmp_path, unit):
    path = tmp_path / "partition.toml"
    groups = 'kind = "partition"\ngroups = 12\npooled = '
    own = groups + ("true\n" if unit == "instance" else "false\n")
    text = TINY.replace("cohort = 12\nnoise_multiplier = 4.0\ndelta = 0.01\n", own)
    text = text.replace("replicas = 60\n", "")  # a partition has none of them
    path.write_text(
        text.replace('"mean"', '"vote"') + f'[threat]\nunit = "{unit}"\n[attack]\ncost_bound = 20.0\n'
    )
    kinds = ("label-flip", "worst-case")
    asked = [part for kind in kinds for part in ("--attack", kind)]
    rows = json.loads(fedproof("attack", path, *asked, "--adversaries", "0:4", "--json").stdout)["rows"]
    assert [row["replicas"] for row in rows] == [12] * len(rows)
    for row in rows:
        assert row["sound"]
        assert row["holds_on_certified"]
        assert row["holds_on_cost"]
        assert row["certified_lower"] - 1e-9 <= row["cost"] <= row["certified_upper"] + 1e-9
        assert row["adversaries"] or row["cost"] == row["clean_cost"]
    assert max(row["certified_inputs"] for row in rows if row["adversaries"]) > 0
    assert any(row["cost"] != row["clean_cost"] for row in rows)
