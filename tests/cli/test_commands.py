"""Commands as users type them: exit status, JSON, one clear line for what is wrong."""

import json
import os
import re
import sys
from importlib import resources
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedproof.cli.training import _in_one_round
from fedproof.config import parse_config
from tests.commands import fedproof
from tests.patience import finished
from tests.tiny import by_accountant

MECHANISM = ("--noise-multiplier", "1.8", "--sampling-probability", "0.1", "--rounds", "3")


@pytest.mark.parametrize(
    "words",
    [
        ("account", *MECHANISM, "--delta", "0.0029"),
        ("account", "--delta", "7"),
        ("account", "--nothing"),
        ("--help",),
    ],
    ids=["answer", "refusal", "wrong usage", "help"],
)
def test_a_fresh_interpreter_does_what_the_tests_of_this_folder_see(words):
    done = finished([sys.executable, "-m", "fedproof", *words], env=os.environ | {"COLUMNS": "100"})
    seen = fedproof(*words, status=None)
    printed = [text.replace("python -m fedproof", "fedproof") for text in (done.stdout, done.stderr)]
    assert [done.returncode, *printed] == [seen.returncode, seen.stdout, seen.stderr]


def test_help_is_plain_text():
    text = fedproof("run", "--help").stdout
    assert "The experiment, a TOML file.  [required]" in text
    assert "\\" not in text


def test_the_list_of_commands_is_not_cut_off(monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    for text in (fedproof("--help").stdout, fedproof("data", "--help").stdout):
        assert "Commands:" in text
        assert "...\n" not in text.partition("Commands:")[2]


def as_json(*arguments):
    return json.loads(fedproof(*arguments, "--json").stdout)


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Scores of a user's own pipeline: 400 replicas, 30 inputs, 3 classes."""
    folder = tmp_path_factory.mktemp("files")
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 3, 30)
    scores = generator.dirichlet(np.full(3, 0.05), (400, 30)) * 0.05
    scores[:, np.arange(30), labels] += 0.95
    np.save(folder / "scores.npy", scores.astype(np.float32))
    np.save(folder / "labels.npy", labels)
    np.save(folder / "costs.npy", generator.uniform(0.3, 0.5, 400))
    return folder


# --- account and plan ---------------------------------------------------------------------------------------


def test_account_prints_the_papers_number_and_the_tight_one():
    document = as_json("account", *MECHANISM, "--delta", "0.0029", "--replicas", "1000")
    assert round(by_accountant(document["privacy"], "model")["paper"], 4) == 0.6298
    assert by_accountant(document["privacy"], "model")["pld"] == pytest.approx(0.2113, rel=0.005)
    assert set(by_accountant(document["privacy"], "ensemble")) == {"paper", "pld"}
    assert "PoissonSampledDpEvent" in document["event"]
    assert document["relation"] == "join"


def test_account_for_people_is_a_table():
    done = fedproof("account", *MECHANISM, "--delta", "0.0029")
    assert "0.6298" in done.stdout
    assert "one user added or removed" in done.stdout


def test_account_at_instance_level():
    steps = (
        "--unit",
        "instance",
        "--noise-multiplier",
        "4",
        "--sampling-probability",
        "0.05",
        "--steps",
        "100",
    )
    assert round(by_accountant(as_json("account", *steps)["privacy"], "model")["paper"], 4) == 0.6546
    sgd = ("--unit", "instance", "--noise-multiplier", "3", "--batch-probability", "0.4")
    document = as_json("account", *sgd, "--cohort", "10", "--users", "30", "--rounds", "200")
    spent = by_accountant(document["privacy"], "model")
    assert spent["dopamine"] > spent["pld"] > spent["paper"]


def test_account_of_users_own_noise_says_who_sees_what():
    local = ("--upload", "rows", "--width", "16", "--honest", "500", "--noise-multiplier", "1")
    document = as_json("account", *local, "--delta", "5e-4")
    found = {(one["covers"], one["relation"]): one["epsilon"] for one in document["privacy"]}
    assert by_accountant(document["privacy"], "server")["pld"] == pytest.approx(3.35, abs=0.01)  # noise 1
    assert found["server", "replace"] == pytest.approx(8.0, abs=0.01)
    assert found["sum", "join"] < found["sum", "replace"] < 0.25
    assert document["reach"] > 25
    told = fedproof("account", *local, "--delta", "5e-4").stdout
    assert "towards the server" in told
    assert "of the sum alone, if 500 users add their noise" in told


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--upload", "rows"), "--upload rows does not belong to user-level DP-FedAvg"),
        (
            ("--honest", "5"),
            "noise that every user adds to what it sends (--honest) needs --upload and --width",
        ),
        (("--honest", "5", "--upload", "rows", "--width", "0"), "--width = 0 must be"),
        (("--honest", "0", "--upload", "rows", "--width", "8"), "--honest = 0 must be"),
        (
            ("--honest", "5", "--upload", "rows", "--width", "8", "--rounds", "2"),
            "--rounds 2 does not belong",
        ),
    ],
)
def test_account_of_users_own_noise_refuses_in_one_line(options, message):
    done = fedproof("account", "--noise-multiplier", "1", *options, status=1)
    assert message in done.stderr


def test_plan_answers_what_certify_confirms():
    noise = as_json("plan", "--size", "10", "--top", "0.95", "--rounds", "3", "--sampling-probability", "0.1")
    assert noise["noise_multiplier"] == pytest.approx(1.891, abs=0.002)
    rounds = as_json(
        "plan", "--find", "rounds", "--size", "10", "--noise-multiplier", "3", "--sampling-probability", "0.1"
    )
    assert rounds["rounds"] == 6
    cohort = as_json(
        "plan",
        "--find",
        "cohort",
        "--size",
        "10",
        "--noise-multiplier",
        "3",
        "--users",
        "200",
        "--sampling",
        "poisson",
        "--rounds",
        "3",
    )
    assert cohort["cohort"] == 30
    private = as_json(
        "plan",
        "--epsilon",
        "0.2114",
        "--delta",
        "0.0029",
        "--rounds",
        "3",
        "--cohort",
        "20",
        "--users",
        "200",
        "--sampling",
        "poisson",
    )
    assert private["noise_multiplier"] == 1.8


def test_plan_ranks_mechanisms():
    few = ("--accuracy", "2=0.65", "--accuracy", "5=0.8")
    document = as_json("plan", "--size", "20", "--users", "1000", *few)
    first = document["options"][0]
    assert first["mechanism"]["kind"] == "partition"
    assert first["models"] == 1000 // first["cohort"]
    assert "not a guarantee" in document["assumptions"][0]
    done = fedproof("plan", "--size", "20", "--users", "1000", *few, "--epsilon", "8")
    assert "at most" in done.stdout
    assert "noise costs accuracy" in done.stdout
    drawn = as_json("plan", "--size", "20", "--users", "9000", "--unit", "instance", *few, "--epsilon", "8")
    assert {option["mechanism"]["unit"] for option in drawn["options"]} == {"instance"}
    assert all(option["mechanism"]["noise_multiplier"] > 0 for option in drawn["options"])


def test_plan_measures_by_a_pilot(tmp_path):
    path = tmp_path / "tiny.toml"
    data = "[data]\nclasses = [0, 1]\nusers = 24\n"
    path.write_text(f"{data}[mechanism]\ncohort = 8\nlearning_rate = 0.5\nlocal_epochs = 3\n")
    document = as_json("plan", "--size", "2", "--pilot", path)
    assert {option["cohort"] for option in document["options"]} == {1, 2, 3, 5, 10}
    assert document["options"][0]["estimated_certified_accuracy"] > 0.5
    assert len(document["assumptions"]) == 1


ONE_ROUND = """
[data]
name = "digits"
classes = [0, 1]
users = 48
public = 60
project = 4
projection = "spectral"
[mechanism]
kind = "one-round"
anchors = 16
solver = "ridge"
penalty = 0.1
noise_multiplier = 2.0
"""


def test_plan_knows_one_round(tmp_path):
    # ε for both relations of one Gaussian query at noise 5, δ = 5e-4: 0.502 and, for heads, 1.126.
    options = ("plan", "--upload", "pairs", "--epsilon", "0.502", "--delta", "5e-4")
    document = as_json(*options, "--size", "20")
    assert document["noise_multiplier"] == pytest.approx(5.0, rel=1e-3)
    assert document["epsilon_if_replaced"] == pytest.approx(1.126, rel=2e-3)
    assert (document["lead"], document["epsilon_relation"], document["relation"]) == (40, "join", "replace")
    done = fedproof(*options, "--size", "20", "--relation", "join").stdout
    assert "20 poisoned users (join) change no label that leads by more than 20 users" in " ".join(
        done.split()
    )
    path = tmp_path / "one.toml"
    path.write_text(ONE_ROUND)
    ranked = fedproof("plan", "--size", "5", "--pilot", path, columns=120).stdout
    assert "partition, one vote each" in ranked
    private = as_json("plan", "--size", "5", "--pilot", path, "--epsilon", "1", "--delta", "1e-2")
    kinds = [option["mechanism"]["kind"] for option in private["options"]]
    assert kinds.count("one-round") == 1
    assert any("one-round" in line for line in private["assumptions"])


def test_the_demo_computes_what_one_round_gives_on_its_data():
    text = resources.files("fedproof").joinpath("demo.toml").read_text()
    line = _in_one_round(parse_config(text, "demo"), SimpleNamespace(certified_accuracy={"0": 1.0, "5": 0.9}))
    # One Gaussian query at noise 6, δ = 0.005.
    found = re.search(
        r"(\d+\.\d)\s% at k = 5, (\d+\.\d)\s% at k = 10, with certainty, and ε = (0\.258) ", line
    )
    assert found, line
    assert 100 >= float(found[1]) >= float(found[2]) > 80


# --- certify, verify, inefficacy ----------------------------------------------------------------------------


def test_certify_and_verify_without_training_anything(files):
    certificate = files / "c.json"
    document = as_json(
        "certify",
        "--scores",
        files / "scores.npy",
        "--labels",
        files / "labels.npy",
        *MECHANISM,
        "--out",
        certificate,
    )
    assert document["accuracy"] == 1.0
    assert document["inputs"], document["replicas"] == (30, 400)
    assert document["certified_accuracy"]["5"] == 1.0
    assert document["sound"] is True
    assert as_json(
        "verify", certificate, "--scores", files / "scores.npy", "--labels", files / "labels.npy"
    ) == {
        "valid": True,
        "differences": [],
        "unverified": [],
        "unmet": [],
    }


@pytest.mark.parametrize("rule", ["pairwise", "run-off"])
def test_rules_and_simultaneous_statements_are_told_kept_and_verified(files, rule):
    certificate, scores = files / f"{rule}.json", files / "scores.npy"
    asked = ("--method", "vote", "--rule", rule, "--simultaneous", "--out", certificate)
    document = as_json("certify", "--scores", scores, *MECHANISM, *asked)
    assert (document["rule"], document["simultaneous"]) == (rule, True)
    assert as_json("verify", certificate, "--scores", scores)["valid"]
    said = fedproof("certify", "--scores", scores, *MECHANISM, *asked).stdout
    assert "99% confidence for all inputs together" in " ".join(said.split())
    assert f"label that wins by {rule}" in " ".join(said.split())
    assert as_json("certify", "--scores", scores, *MECHANISM)["rule"] == "plurality"


def test_verify_names_what_was_changed(files):
    certificate = files / "changed.json"
    fedproof("certify", "--scores", files / "scores.npy", *MECHANISM, "--out", certificate)
    document = json.loads(certificate.read_text())
    document["certified_size"][3] += 1
    certificate.write_text(json.dumps(document))
    done = fedproof("verify", certificate, "--scores", files / "scores.npy", status=1)
    assert "certified_size" in done.stdout


def test_only_epsilon_and_delta_are_known(files):
    known = ("--epsilon", "0.3", "--delta", "0.0029", "--epsilon-relation")
    scores = ("certify", "--scores", files / "scores.npy", "--labels", files / "labels.npy")
    replaced = as_json(*scores, *known, "replace")
    assert replaced["method"] == "paper"
    assert replaced["certified_size"]["max"] >= 1
    # ε for one unit added or removed: to replace one is to do both, so half as many are certified.
    joined = as_json(*scores, *known, "join")
    assert joined["certified_size"]["max"] <= (replaced["certified_size"]["max"] + 1) // 2


def test_inefficacy_bounds_the_attackers_cost(files):
    document = as_json(
        "inefficacy",
        "--costs",
        files / "costs.npy",
        "--cost-bound",
        "0.5",
        "--sizes",
        "0:5",
        "--tau",
        "2",
        *MECHANISM,
    )
    assert document["lower"] == sorted(document["lower"], reverse=True)
    assert document["upper"] == sorted(document["upper"])
    assert document["needed"] >= 1
    assert len(document["lower"]) == 6


def test_bounds_on_costs_are_written_and_verified(files, tmp_path):
    bounds, given = tmp_path / "bounds.json", ("--costs", files / "costs.npy")
    told = fedproof("inefficacy", *given, "--cost-bound", "0.5", *MECHANISM, "--out", bounds).stdout
    assert f"fedproof verify {bounds} --costs" in " ".join(told.split())
    assert "every number holds (bounds on a cost)" in fedproof("verify", bounds, *given).stdout
    missing = fedproof("verify", bounds, status=1).stderr
    assert f"--costs is missing, and there is no {tmp_path / 'costs.npy'}" in " ".join(missing.split())
    wrong = fedproof("verify", bounds, "--scores", files / "costs.npy", status=1).stderr
    assert "was made from costs, give --costs" in wrong
    bounds.write_text(bounds.read_text().replace('"rounds": 3', '"rounds": 2'))
    assert "mechanism: does not match its checksum" in fedproof("verify", bounds, *given, status=1).stdout


def test_inefficacy_as_a_page(files, tmp_path):
    bound = ("--costs", files / "costs.npy", "--cost-bound", "0.5", "--tau", "2")
    done = fedproof("inefficacy", *bound, *MECHANISM, "--page", tmp_path / "cost.html")
    assert "at least" in done.stdout
    assert "<svg" in (tmp_path / "cost.html").read_text()


def test_a_certificate_from_elsewhere_as_a_page(files, tmp_path):
    given = ("--scores", files / "scores.npy", "--labels", files / "labels.npy")
    page = tmp_path / "page.html"
    told = fedproof(
        "certify", *given, *MECHANISM, "--page", page, "--out", tmp_path / "certificate.json"
    ).stdout
    assert f"the page to look at is {page}" in " ".join(told.split())
    missing = fedproof("report", tmp_path, status=1).stderr
    assert "scores.npy is not there, from which" in missing
    again = as_json("report", tmp_path, "--scores", files / "scores.npy")
    assert again == {"report": str(tmp_path / "report.html"), "figures": []}
    command = re.search(r"check it with: (fedproof verify .*?\.npy --labels \S+)", " ".join(told.split()))[1]
    assert command in page.read_text()
    fedproof(*command.split()[1:])
    own = ("--scores", files / "scores.npy")
    beside = as_json("report", tmp_path / "certificate.json", *own)["report"]
    assert Path(beside).read_text() == (tmp_path / "report.html").read_text()
    refused = fedproof("report", tmp_path, "--private", status=1).stderr
    assert "is a certificate alone, it holds no norms" in " ".join(refused.split())


def test_tables_for_people(files):
    labels = ("--labels", files / "labels.npy")
    certified = fedproof("certify", "--scores", files / "scores.npy", *labels, *MECHANISM)
    assert "certified at k = 0" in certified.stdout
    assert "sound" in certified.stdout
    cost = fedproof("inefficacy", "--costs", files / "costs.npy", "--cost-bound", "0.5", *MECHANISM)
    assert "at least" in cost.stdout


# --- run ----------------------------------------------------------------------------------------------------


def test_run_predict_and_verify_the_whole_way(tmp_path):
    config = tmp_path / "tiny.toml"
    config.write_text(
        "[data]\nclasses = [0, 1]\nusers = 24\n[mechanism]\ncohort = 8\nnoise_multiplier = 3\ndelta = 0.01\n"
        "local_epochs = 2\nbatch_size = 4\nlearning_rate = 0.5\n[ensemble]\nreplicas = 30\n"
    )
    document = as_json("run", config, "--out", tmp_path / "run", "--set", "certificate.method=mean")
    assert document["replicas"] == 30
    assert as_json("verify", tmp_path / "run" / "certificate.json")["valid"]
    assert "certificate.json: every number holds" in fedproof("verify", tmp_path / "run").stdout
    np.save(tmp_path / "inputs.npy", np.zeros((2, 64), dtype=np.float32))
    answer = as_json("predict", tmp_path / "run", "--inputs", tmp_path / "inputs.npy")
    assert len(answer["prediction"]) == len(answer["certified_size"]) == 2


# --- what is wrong ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("account", "--sampling", "none"), "user-level DP-FedAvg (--unit user) needs --noise-multiplier"),
        (
            ("account", "--noise-multiplier", "1"),
            "how users are drawn is missing: give --sampling-probability",
        ),
        (
            ("account", "--noise-multiplier", "0", "--sampling", "none"),
            "--noise-multiplier = 0.0 must be a positive",
        ),
        (("account", *MECHANISM, "--delta", "2"), "--delta = 2.0 must be in (0, 1)"),
        (
            ("account", "--noise-multiplier", "1", "--sampling-probability", "1.5"),
            "--sampling-probability = 1.5",
        ),
        (("account", "--noise-multiplier", "1", "--sampling", "fixed"), "needs --cohort and --users"),
        (
            ("account", "--noise-multiplier", "1", "--sampling", "fixed", "--cohort", "9", "--users", "3"),
            "--cohort = 9 must be at most",
        ),
        (("plan",), "give either --size (to certify) or --epsilon (to be private)"),
        (
            ("plan", "--size", "3", "--top", "0.4", "--sampling-probability", "0.1"),
            "--top = 0.4 must be larger than",
        ),
        (
            ("plan", "--size", "3", "--find", "rounds", "--sampling", "none"),
            "--find rounds needs --noise-multiplier",
        ),
        (("plan", "--find", "mechanism"), "--find mechanism needs --size"),
        (("plan", "--find", "mechanism", "--size", "2"), "needs --accuracy (as 10=0.71, several) or --pilot"),
        (("plan", "--size", "2", "--users", "9", "--accuracy", "0=0.7"), "must be at least 1"),
        (
            ("plan", "--size", "2", "--users", "9", "--accuracy", "5=0.7", "--accuracy", "5=0.8"),
            "--accuracy 5=0.8: there is another one for 5",
        ),
        (("plan", "--size", "2", "--accuracy", "5=0.7"), "needs --users"),
        (("plan", "--size", "2", "--users", "9", "--accuracy", "five"), "--accuracy 'five' must look like"),
        (("plan", "--size", "2", "--users", "9", "--accuracy", "5=7"), "the accuracy must be in (0, 1)"),
        (
            ("plan", "--size", "2", "--users", "9", "--accuracy", "10=0.7"),
            "--accuracy 10=0.7: 10 must be at most --users 9",
        ),
        (("compare", "nowhere.toml", "--out", "x"), "nowhere.toml: there is no such file"),
        (("certify", "--scores", "nowhere.npy", *MECHANISM), "nowhere.npy"),
        (
            ("certify", "--scores", "nowhere.npy", "--epsilon", "1"),
            "--epsilon alone needs --delta and --epsilon-relation join (ε is for one unit added or removed)",
        ),
        (("verify", "nowhere.json"), "nowhere.json: cannot be read"),
        (("inefficacy", "--costs", "x.npy", "--cost-bound", "1", "--sizes", "a", *MECHANISM), "--sizes 'a'"),
        (("run", "nowhere.toml", "--out", "x"), "nowhere.toml: there is no such file"),
        (("demo", "--set", "mechanism.rounds=zero"), "mechanism.rounds = 'zero'"),
        (("predict", "nowhere", "--inputs", "nowhere.npy"), "nowhere.npy"),
    ],
)
def test_bad_input_is_one_clear_line(arguments, message, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    done = fedproof(*arguments, status=1)
    assert message in done.stderr
    assert len(done.stderr.strip().splitlines()) == 1
    assert done.stdout == ""
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("arguments", [("nonsense",), ("account", "--nonsense"), ("run",), ()])
def test_wrong_usage_is_status_two(arguments):
    fedproof(*arguments, status=2)


def test_who_joins_fixed_cohorts_is_certified_but_not_by_renyi(files):
    fixed = (
        "--noise-multiplier",
        "1",
        "--sampling",
        "fixed",
        "--cohort",
        "2",
        "--users",
        "10",
        "--relation",
        "join",
    )
    done = fedproof("certify", "--scores", files / "scores.npy", *fixed, "--method", "renyi", status=1)
    assert "'join' is not defined for cohorts of fixed size and --method renyi" in done.stderr
    fedproof("certify", "--scores", files / "scores.npy", *fixed)


# --- data and pretraining -----------------------------------------------------------------------------------


def test_data_show_says_what_users_hold():
    document = as_json("data", "show", "digits", "--classes", "0,1", "--users", "12")
    assert document["summary"]["num_users"] == len(document["users"]) == 12
    assert sum(row["instances"] for row in document["users"]) == 288
    table = fedproof("data", "show", "digits", "--classes", "0,1", "--users", "40").stdout
    assert "first and last ten of 40 users" in table


def test_data_fetch_needs_nothing_for_built_in_data():
    assert as_json("data", "fetch", "digits") == {"name": "digits", "files": []}


@pytest.mark.slow
def test_pretrain_writes_weights(tmp_path):
    config = tmp_path / "pretrain.toml"
    config.write_text("[data]\nname = 'digits'\nclasses = [2, 3]\n[pretrain]\nepochs = 1\n")
    document = as_json("pretrain", config, "--out", tmp_path / "weights.npz")
    assert document["accuracy"] > 0.8
    assert (tmp_path / "weights.npz").exists()
    done = fedproof("pretrain", config, "--out", tmp_path / "weights.pt", status=1)
    assert "must end in .npz" in done.stderr


@pytest.mark.slow
def test_report_can_be_written_again(tmp_path):
    run = ("demo", "--out", tmp_path / "run", "--set", "ensemble.replicas=20")
    fedproof(*run)
    (tmp_path / "run" / "report.html").unlink()
    document = as_json("report", tmp_path / "run", "--figures", tmp_path / "figures")
    assert document["report"].endswith("report.html")
    assert any(path.endswith(".png") for path in document["figures"])
