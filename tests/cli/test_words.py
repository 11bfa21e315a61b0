"""What commands say in words is what they computed with: mechanism, relation, and what was not checked."""

import json
import math
import re
from pathlib import Path

import numpy as np
import pytest
import typer.main
from click.testing import CliRunner

from fedproof.cli import app
from fedproof.cli.common import print_json
from tests.tiny import by_accountant

MAIN = typer.main.get_command(app)  # built once, which takes longer than most commands
COMMANDS = MAIN.commands
TENTH = ("--noise-multiplier", "1.8", "--sampling-probability", "0.1", "--rounds", "3")


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    generator = np.random.default_rng(0)
    labels = generator.integers(0, 2, 5)
    scores = generator.uniform(0.9, 1, (60, 5))
    both = np.stack([scores, 1 - scores], axis=2)
    both[:, labels == 1] = both[:, labels == 1, ::-1]
    np.save("scores.npy", both)
    np.save("labels.npy", labels)
    np.save("costs.npy", generator.uniform(0.2, 0.5, 60))
    return tmp_path


def printed(*arguments, status=0):
    done = CliRunner().invoke(MAIN, list(arguments))
    assert done.exit_code == status, done.output + repr(done.exception)
    return done.stdout


def certified(*arguments):
    return printed(
        "certify", "--scores", "scores.npy", "--labels", "labels.npy", "--max-size", "9", *arguments
    )


def test_no_zero_is_claimed_where_nobody_looked():
    known = printed("certify", "--scores=scores.npy", "--labels=labels.npy", *TENTH)
    largest = int(re.search(r"median / largest │ *\d+ / (\d+)", known)[1])
    assert f"certified at k = {largest + 1} " in known
    assert "was tried" not in known
    ended = certified("--max-size", str(largest - 1), *TENTH)
    assert f"certified at k = {largest - 1} " in ended
    assert f"certified at k = {largest} " not in ended
    assert f"no size above {largest - 1} was tried (--max-size): inputs certified for it may" in ended


# --- the mechanism, before the result -----------------------------------------------------------------------

CLIPPED = "each update is clipped to norm S as a whole"
NOISED = "Gaussian noise of standard deviation {}·S is added to the SUM of the clipped {}"
DIVIDED = "the noisy sum is divided by a number fixed beforehand"
INSTANCE = "the gradient of each instance is clipped to norm S"
EXECUTED = [
    (
        TENTH,
        "3 rounds",
        "in each round, every user takes part independently with probability 0.1",
        CLIPPED,
        NOISED.format(1.8, "updates"),
        DIVIDED,
    ),
    (
        ("--noise-multiplier=2", "--sampling=fixed", "--cohort=20", "--users=200", "--per-layer=4"),
        "1 round",
        "in each round, exactly 20 of the 200 users are drawn, all choices of 20 being equally likely",
        "each of the 4 layers of an update is clipped to norm S by itself",
        NOISED.format(2, "updates"),
        DIVIDED,
    ),
    (
        ("--noise-multiplier=9", "--sampling=none"),
        "1 round",
        "in each round, every user takes part",
        CLIPPED,
        NOISED.format(9, "updates"),
        DIVIDED,
    ),
    (
        ("--unit=instance", *TENTH, "--steps=5"),
        "3 rounds in which a user takes 5 steps on its own data",
        "in each step, every instance of the user enters the batch independently with probability 0.1 "
        "or less",
        INSTANCE,
        NOISED.format(1.8, "gradients"),
        DIVIDED,
    ),
    (
        ("--unit=instance", "--noise-multiplier=3", "--batch-probability=0.4", "--cohort=9", "--users=30"),
        "1 round",
        "in each round, exactly 9 of the 30 users are drawn, all choices of 9 being equally likely",
        "every instance of a drawn user enters that user's batch independently with probability 0.4",
        INSTANCE,
        "each drawn user adds Gaussian noise of standard deviation 3·S to the SUM of its clipped gradients",
        "only the total over all 9 users is ever seen, divided by a number fixed beforehand",
    ),
]
EXECUTED = [(arguments, "; ".join(parts)) for arguments, *parts in EXECUTED]


@pytest.mark.parametrize(("arguments", "words"), EXECUTED)
def test_certify_says_what_it_takes_to_have_been_executed(arguments, words):
    trainings = f"60 independent trainings on the same data, each of {words}"
    text = certified(*arguments)
    before, after = re.split(r"(?s)┌.*┘", text)
    assert f"taken to have been executed: {trainings}\n" in before
    assert f"sound if your training did exactly this: {trainings}\n" in after
    assert "sound:" not in text
    document = json.loads(certified(*arguments, "--json"))
    assert document["executed"] == trainings
    assert document["sound"] is True
    assert document["assumptions"]


@pytest.mark.parametrize(("arguments", "words"), EXECUTED)
def test_inefficacy_says_what_it_takes_to_have_been_executed(arguments, words):
    command = ("inefficacy", "--costs", "costs.npy", "--cost-bound", "0.5", "--sizes", "1", *arguments)
    trainings = f"60 independent trainings on the same data, each of {words}"
    text = printed(*command)
    assert f"taken to have been executed: {trainings}\n" in text.split("attacker's expected cost")[0]
    assert f"sound if your training did exactly this: {trainings}\n" in text
    document = json.loads(printed(*command, "--json"))
    assert (document["executed"], document["relation"]) == (trainings, "replace")


def test_account_says_what_it_takes_to_be_executed():
    arguments, words = EXECUTED[0]
    assert printed("account", *arguments).startswith(f"taken to be executed: {words}; none of these numbers")
    document = json.loads(printed("account", *arguments, "--json"))
    assert document["executed"].startswith(words)
    assert document["mechanism"]["noise_multiplier"] == 1.8


def test_who_joins_changes_no_number():
    assert "none of these numbers changes when users join" in certified(*TENTH, "--relation", "join")


def test_echoed_numbers_are_not_rounded():
    text = certified("--noise-multiplier", "1.23456789", "--sampling-probability", "0.0123456789")
    assert "1.23456789·S" in text
    assert "probability 0.0123456789;" in text


def test_a_heuristic_certificate_is_not_called_sound():
    text = certified(*TENTH, "--method", "paper", "--delta", "0.001")
    assert "heuristic, not a proof, because:" in text
    assert "sound" not in text


def test_certify_says_which_reading_of_the_theorem_is_meant():
    assert "the label of highest expected confidence, over trainings like these" in certified(*TENTH)
    text = certified(*TENTH, "--method", "vote")
    assert "the most probable vote, over trainings like these" in text
    assert "add --served" in text


def test_the_confidence_is_said_in_plain_english():
    text = " ".join(certified(*TENTH, "--failure-probability", "0.05").split())
    assert "60 replicas, 5 inputs; k users replaced; 95% confidence for each input" in text
    assert "confidence" not in certified(*TENTH, "--method", "mean", "--bound", "none").split("┘")[0]


# --- ε and δ alone ------------------------------------------------------------------------------------------


def test_an_epsilon_says_what_it_takes_for_granted():
    known = ("--epsilon", "0.2", "--delta", "0.001", "--epsilon-relation")
    text = certified(*known, "join")
    assert "(0.2, 0.001)-differentially private for one user added or removed" in text
    assert "each user that is replaced counts as one removed and one added" in text
    text = certified(*known, "replace", "--unit", "instance")
    assert "(0.2, 0.001)-differentially private for one instance replaced by another" in text
    assert "counts as" not in text


def test_an_epsilon_for_joined_units_counts_twice_for_replaced_ones():
    known = ("--epsilon", "0.2", "--delta", "0.001", "--json", "--epsilon-relation")
    sizes = [
        json.loads(certified(*known, relation))["certified_size"]["max"] for relation in ("join", "replace")
    ]
    assert 0 < 2 * sizes[0] <= sizes[1]


def test_an_epsilon_for_replaced_units_says_nothing_about_joined_ones():
    known = ("--epsilon", "0.2", "--delta", "0.001", "--epsilon-relation", "replace", "--relation", "join")
    done = CliRunner().invoke(MAIN, ["certify", "--scores", "scores.npy", *known])
    assert "--relation = 'join'" in str(done.exception)


# --- verify -------------------------------------------------------------------------------------------------


def test_accuracy_is_not_verified_without_labels():
    certified(*TENTH, "--out", "c.json")
    text = printed("verify", "c.json")
    assert text.count("\n") == 1
    assert text.startswith("c.json: every number holds (5 inputs) but these, not verified without --labels: ")
    assert "accuracy" in text
    assert "accuracy" in json.loads(printed("verify", "c.json", "--json"))["unverified"]


def test_labels_are_verified_where_they_are_given():
    certified(*TENTH, "--out", "c.json")
    assert printed("verify", "c.json", "--labels", "labels.npy") == "c.json: every number holds (5 inputs)\n"
    np.save("others.npy", 1 - np.load("labels.npy"))
    text = printed("verify", "c.json", "--labels", "others.npy", status=1)
    assert "does not hold" in text
    assert "labels" in text
    document = json.loads(printed("verify", "c.json", "--labels", "others.npy", "--json", status=1))
    assert document["valid"] is False
    assert document["unverified"] == []


def test_labels_that_nothing_is_checked_with_are_refused():
    printed("certify", "--scores", "scores.npy", *TENTH, "--out", "c.json")
    done = CliRunner().invoke(MAIN, ["verify", "c.json", "--labels", "labels.npy"])
    assert (
        str(done.exception) == "--labels labels.npy does not belong to c.json, which holds no labels to check"
    )
    assert printed("verify", "c.json") == "c.json: every number holds (5 inputs)\n"


def test_the_command_that_is_printed_verifies_the_labels_too():
    text = certified(*TENTH, "--out", "c.json")
    command = re.search(r"check it with: fedproof (.*)", text)[1]
    assert printed(*command.split()) == "c.json: every number holds (5 inputs)\n"


# --- help ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("command", ["account", "certify", "inefficacy", "plan", "verify"])
def test_every_option_has_a_help_text(command):
    for parameter in COMMANDS[command].params:
        assert parameter.help is not None, parameter.name
        assert len(parameter.help.split()) > 3, parameter.name
        assert parameter.help.endswith((".", "]", "?")), parameter.name


@pytest.mark.parametrize("command", ["account", "certify", "inefficacy"])
def test_help_leads_to_the_table_of_training_loops(command):
    assert "docs/loops.md" in " ".join(printed(command, "--help").split())


def test_the_help_of_epsilon_relation_says_what_the_two_are():
    text = " ".join(printed("certify", "--help").split())
    assert "join if for one unit added or removed" in text
    assert "replace if for one unit replaced" in text


# --- numbers that JSON does not have ------------------------------------------------------------------------


def test_an_infinite_epsilon_is_null():
    runner = typer.Typer()
    runner.command()(lambda: print_json({"epsilon": {"pld": math.inf}, "lower": (1.0, -math.inf)}))
    document = json.loads(CliRunner().invoke(typer.main.get_command(runner), []).stdout)
    assert document == {"epsilon": {"pld": None}, "lower": [1.0, None]}


def test_a_wrong_number_of_adversaries_is_blamed_on_its_own_option(folder):
    (folder / "tiny.toml").write_text("[attack]\nkind = 'label-flip'\n[mechanism]\ncohort = 4\n")
    done = CliRunner().invoke(MAIN, ["attack", "tiny.toml", "--adversaries", "few"])
    assert str(done.exception) == "--adversaries 'few' must be a number or look like 0:10 or 1,5,20"


# --- what is allowed, and hardly meant ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "line",
    [
        (
            "certify",
            "--scores",
            "scores.npy",
            "--epsilon",
            "1e-5",
            "--delta",
            "0.6",
            "--epsilon-relation",
            "join",
        ),
        ("account", *TENTH, "--delta", "0.6"),
        ("plan", "--epsilon", "1", "--delta", "0.6", "--sampling", "none"),
    ],
    ids=lambda line: line[0],
)
def test_a_delta_that_looks_like_an_epsilon_is_doubted(line):
    doubt = "δ = 0.6 is large: it should be well below 1 / number of units; was ε meant?"
    assert doubt in printed(*line)
    assert "is large" not in printed(*(word if word != "0.6" else "1e-5" for word in line))


def test_trainings_from_one_seed_are_doubted():
    doubt = "score what another one does, number for number: trainings that share a seed are one training"
    assert doubt not in certified(*TENTH)
    np.save("scores.npy", np.repeat(np.load("scores.npy")[:1], 60, axis=0))
    found = certified(*TENTH)
    assert f"heuristic, not a proof, because:\n  - 60 of 60 replicas {doubt}" in found


def test_where_every_input_abstains_nothing_is_called_none_by_accident():
    np.save("scores.npy", np.load("scores.npy")[:4])
    text = certified(*TENTH)
    assert re.search(r"median / largest │ +none │", text)
    assert "every input abstains: too few replicas" in text


@pytest.mark.parametrize("noise", ["1.83", "2.171", "41.7"])
def test_no_epsilon_and_no_delta_is_printed_below_what_was_computed(noise):
    asked = ("account", "--noise-multiplier", noise, "--sampling-probability", "0.1", "--rounds", "3")
    asked += ("--delta", "1e-3", "--replicas", "7", "--epsilon", "0.1")
    found, text = json.loads(printed(*asked, "--json")), printed(*asked)
    shown = dict(re.findall(r"│ (paper|rdp|pld) .*│ +([\d.]+) │", text))
    for name in ("paper", "rdp", "pld"):
        assert float(shown[name]) >= by_accountant(found["privacy"], "model")[name]
    (together,) = re.findall(r"ε = ([\d.]+) by composition", text)
    assert float(together) >= by_accountant(found["privacy"], "ensemble")["pld"]
    deltas = re.findall(r"([\d.e-]+) \((paper|rdp|pld)\)", text.partition("δ at ε = 0.1: ")[2])
    assert len(deltas) == 3
    for told, name in deltas:
        assert float(told) >= found["delta_at_epsilon"][name]


@pytest.mark.parametrize(
    ("mechanism", "why"),
    [
        (("--sampling", "fixed", "--cohort", "10", "--users", "10"), "one clip norm, not by two"),
        (("--sampling", "fixed", "--cohort", "20", "--users", "200"), "one clip norm, not by two"),
        (
            ("--unit", "instance", "--batch-probability", "0.4", "--cohort", "10", "--users", "30"),
            "users are drawn as a whole",
        ),
        (("--sampling-probability", "0.1"), None),
        (("--sampling", "none"), None),
        (("--unit", "instance", "--sampling-probability", "0.1"), None),
    ],
)
def test_published_numbers_that_bound_nothing_are_told_apart(mechanism, why):
    asked = ("account", "--noise-multiplier", "2", *mechanism, "--delta", "1e-3")
    found, text = json.loads(printed(*asked, "--json")), printed(*asked)
    said = "The paper's ε is as published, and no bound here: "
    void = {one["accountant"] for one in found["privacy"] if one["unmet"]}
    if why is not None:
        assert why in text.partition(said)[2]
        assert void == {"paper", "rdp-without-replacement"}
        assert text.count("not proved") == 2
    else:
        assert said not in text
        assert not void
        spent = by_accountant(found["privacy"], "model")
        assert min(spent.values()) == spent["pld"]  # all are bounds, this is the least


@pytest.mark.parametrize("method", ["mean", "paper"])
def test_bounds_on_a_cost_are_printed_outwards(method):
    asked = ("inefficacy", "--costs", "costs.npy", "--cost-bound", "0.5", "--noise-multiplier", "2.7")
    asked += ("--sampling-probability", "0.1", "--method", method, "--tau", "1.7", "--relation", "join")
    asked += ("--delta", "1e-3") if method == "paper" else ()
    found, text = json.loads(printed(*asked, "--json")), printed(*asked)
    rows = re.findall(r"│ (\d+) +│ +([\d.]+) │ +([\d.]+) │", text)
    assert len(rows) == len(found["sizes"])
    for (_, low, high), lower, upper in zip(rows, found["lower"], found["upper"], strict=True):
        assert lower - 1.1e-4 < float(low) <= lower
        assert upper <= float(high) < upper + 1.1e-4
    (needed,) = re.findall(r"an attack needs ([\d.]+) units", text)
    assert float(needed) <= found["needed"] < float(needed) + 0.011


# --- what ε is for, and no digit of it lost -----------------------------------------------------------------


def test_a_plan_repeats_the_epsilon_that_it_was_asked_for():
    said = printed("plan", "--epsilon", "0.12345649", "--delta", "1.2345678e-5", *TENTH[2:4])
    assert "gives ε <= 0.12345649 at δ = 1.2345678e-05 for one user" in said
    once = printed("plan", "--epsilon", "0.50000049", "--delta", "0.001", "--upload", "rows")
    assert "gives ε <= 0.50000049 at δ = 0.001 for one user added or removed" in once


@pytest.mark.parametrize(("sampling", "relation"), [("poisson", "added or removed"), ("fixed", "replaced")])
def test_a_run_says_what_its_epsilon_is_for(sampling, relation):
    Path("tiny.toml").write_text(
        "[data]\nclasses = [0, 1]\nusers = 24\n[mechanism]\ncohort = 8\nnoise_multiplier = 3.0\n"
        f"delta = 0.01\nsampling = '{sampling}'\n[ensemble]\nreplicas = 2\n"
    )
    said = printed("run", "tiny.toml", "--out", "run")
    assert f"every ε is for one user {relation}\n" in said
    assert ("The paper's ε is as published, and no bound here: " in said) == (sampling == "fixed")


def test_what_holds_number_for_number_may_still_be_no_proof():
    certified(*TENTH, "--method", "mean", "--bound", "none", "--out", "c.json")
    said = printed("verify", "c.json", "--labels", "labels.npy")
    assert "every number holds (5 inputs)" in said
    assert "it is heuristic, not a proof, because:" in said
    assert "no failure probability covers their error" in said.replace("\n", " ")
    document = json.loads(printed("verify", "c.json", "--json"))
    assert document["valid"]
    assert [one["code"] for one in document["unmet"]] == ["no-confidence"]


def test_bounds_for_programs_say_how_sure_they_are_and_of_what():
    given = ("--costs", "costs.npy", "--cost-bound", "1", "--failure-probability", "0.02")
    document = json.loads(printed("inefficacy", *given, *TENTH, "--json"))
    assert document["failure_probability"] == 0.02
    assert "cost-settled" in {one["code"] for one in document["assumptions"]}
