"""No option is silently dropped: to change one changes the numbers, or is refused in one line that says why.

Every command that takes a mechanism is typed in every way it can be meant (`MEANT`), and then every option
that the command has is changed or added. Options are read from the command line itself, so one that is new
fails here until it says what another value of it is.
"""

import json
import re

import numpy as np
import pytest
import typer.main
from click.testing import CliRunner

from fedproof.accounting.epsilon import ACCOUNTANTS, paper_delta, paper_epsilon
from fedproof.cli import app
from fedproof.cli.belonging import RULES

MAIN = typer.main.get_command(app)  # built once, which takes longer than most commands
COMMANDS = MAIN.commands

DRAWN = {
    "by probability": {"sampling": "poisson", "sampling_probability": "0.1"},
    "poisson": {"sampling": "poisson", "cohort": "20", "users": "200"},
    "fixed": {"sampling": "fixed", "cohort": "20", "users": "200"},
    "everyone": {"sampling": "none"},
}
NOISE = {"noise_multiplier": "1"}
MUCH = {"noise_multiplier": "5"}
ROUNDS = {"rounds": "3"}
INSTANCES = {"unit": "instance", "sampling_probability": "0.1", "steps": "2", **ROUNDS}
EPSILON = {"epsilon": "0.2", "delta": "0.001", "epsilon_relation": "join"}
MECHANISMS = {
    **{f"user {name}": NOISE | ROUNDS | drawn for name, drawn in DRAWN.items()},
    "user everyone": MUCH | ROUNDS | DRAWN["everyone"],
    "user by layers": NOISE | ROUNDS | DRAWN["by probability"] | {"per_layer": "4"},
    "instance-fedavg": NOISE | INSTANCES,
    "instance-fedsgd": NOISE
    | ROUNDS
    | {"unit": "instance", "batch_probability": "0.4", "cohort": "10", "users": "30"},
}
USER = MECHANISMS["user by probability"]
SCORES = {
    "scores": "scores.npy",
    "labels": "labels.npy",
    "max_size": "20",
    "method": "margin",
    "bound": "betting",
}
COSTS = {"costs": "costs.npy", "cost_bound": "0.5", "sizes": "0:4", "tau": "1.5", "method": "mean"}
QUESTION = {"size": "6", "top": "0.9", "rival": "0.08"}
SOUGHT = {"find": "noise"}
TARGET = {"epsilon": "0.8", "delta": "0.001"}
RANKED = {"size": "2", "users": "60", "accuracy": "5=0.8"}

MEANT = {
    "account": MECHANISMS
    | {"users' own noise": NOISE | {"upload": "rows", "width": "16", "classes": "10", "honest": "500"}},
    "certify": {
        **{name: SCORES | options for name, options in MECHANISMS.items()},
        **{
            f"method {name}": SCORES | USER | MUCH | {"method": name, "bound": "hoeffding"}
            for name in ("mean", "vote", "renyi")
        },
        "method paper": SCORES | USER | MUCH | {"method": "paper", "delta": "0.001"},
        "bound none": SCORES | USER | {"method": "mean", "bound": "none"},
        "epsilon": SCORES | EPSILON | {"method": "paper", "bound": "hoeffding"},
        "epsilon, margin": SCORES | EPSILON,
    },
    "inefficacy": {
        **{name: COSTS | options for name, options in MECHANISMS.items()},
        "method distribution": COSTS | USER | {"method": "distribution"},
        "method paper": COSTS | USER | {"method": "paper", "delta": "0.001"},
        "epsilon": COSTS | EPSILON | {"method": "paper"},
        "epsilon, mean": COSTS | EPSILON,
    },
    "plan": {
        **{f"noise, {name}": QUESTION | ROUNDS | drawn | SOUGHT for name, drawn in DRAWN.items()},
        "noise, instances": QUESTION | INSTANCES | SOUGHT,
        "noise for epsilon": TARGET | ROUNDS | DRAWN["fixed"] | SOUGHT,
        "noise for epsilon, instances": TARGET | INSTANCES | SOUGHT,
        "one round": TARGET | SOUGHT | {"upload": "anchors", "size": "6"},
        "one round, instances": TARGET | SOUGHT | {"upload": "rows", "unit": "instance"},
        "rounds": QUESTION | NOISE | DRAWN["by probability"] | {"find": "rounds"},
        "rounds, instances": QUESTION
        | MUCH
        | {"find": "rounds", "unit": "instance", "sampling_probability": "0.1", "steps": "2"},
        "cohort": QUESTION | NOISE | {"find": "cohort", "users": "60", "sampling": "poisson"},
        "mechanism": RANKED | {"find": "mechanism"},
        "mechanism with epsilon": RANKED | TARGET | ROUNDS | {"find": "mechanism"},
        "mechanism by a pilot": {"size": "2", "pilot": "pilot.toml", "find": "mechanism"},
    },
}

# What else an option could say; enumerations try all their members.
OTHER = {
    "noise_multiplier": "9",
    "sampling_probability": "0.4",
    "cohort": "15",
    "users": "50",
    "rounds": "9",
    "steps": "7",
    "per_layer": "9",
    "batch_probability": "0.9",
    "epsilon": "0.35",
    "delta": "0.02",
    "replicas": "40",
    "scores": "other_scores.npy",
    "labels": "other_labels.npy",
    "failure_probability": "0.3",
    "max_size": "1",
    "served": "0.05",
    "costs": "other_costs.npy",
    "cost_bound": "0.45",
    "sizes": "0:3",
    "tau": "9",
    "negative": True,
    "simultaneous": True,
    "size": "4",
    "top": "0.97",
    "rival": "0.02",
    "accuracy": "5=0.6",
    "pilot": "other_pilot.toml",
    "classes": "40",
    "honest": "200",
    "width": "64",
}

# Options that change no number, and why they need not.
NO_NUMBER = {
    "out": "says where the result goes",
    "page": "says where the result goes",
    "json": "says how the result is printed, and is on in all of these",
    "device": "says where the pilot trains; refused where nothing trains",
    "help": "prints this command's options",
}
# Options whose numbers may be the same for two values: then the words and the echo have to differ.
ONLY_WORDS = {
    "unit": "a user drawn with probability q and an instance drawn with probability q cost the same",
    "relation": "the paper's method has one number for both, and says for which it is not sound",
    "upload": "heads in a ball, by rows and by pairs are all as far apart as twice their norm",
    "spending": "at most as good as the sound one: may round to the same sizes, but loses `sound`",
}
ECHO = ("executed", "mechanism", "event", "assumptions", "unit", "relation", "method", "bound")


@pytest.fixture(scope="module", autouse=True)
def folder(tmp_path_factory):
    """Scores, labels and costs of a user's own pipeline, in two versions."""
    path = tmp_path_factory.mktemp("files")
    for name, seed in (("", 0), ("other_", 1)):
        generator = np.random.default_rng(seed)
        labels = generator.integers(0, 3, 40)
        right = generator.uniform(size=(300, 40)) < np.linspace(0.75, 1, 40)
        votes = np.where(right, labels, (labels + 1) % 3)
        np.save(path / f"{name}scores.npy", 0.9 * np.eye(3)[votes] + 0.1 / 3)
        np.save(path / f"{name}labels.npy", labels)
        np.save(path / f"{name}costs.npy", generator.uniform(0.2 + 0.1 * seed, 0.5, 300))
        pilot = f"[data]\nclasses = [0, 1]\nusers = {24 + 8 * seed}\n[mechanism]\ncohort = 8\n"
        (path / f"{name}pilot.toml").write_text(pilot)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(path)
        patch.setattr("fedproof.sweep.pilot", measured)
        # Seconds for every fixed cohort, and beside the point: other accountants see the same mechanism.
        patch.setitem(ACCOUNTANTS, "rdp", paper_epsilon)
        patch.setattr("fedproof.accounting.epsilon.rdp_delta", paper_delta)
        yield path


def measured(config, *, device, progress):
    """What a pilot would measure, without training."""

    class Federation:
        num_users, num_classes, labels = config.data.users, 2, np.zeros(10 * config.data.users)

    return Federation, {2: np.full(10, 0.8), 5: np.full(10, 0.9)}


def typed(command, options):
    """What the command prints as JSON, or the one line by which it refuses."""
    words = [command, "--json"]
    for name, value in options.items():
        words += [flag(name)] if value is True else [flag(name), value]
    done = CliRunner().invoke(MAIN, words)
    if done.exception is None:
        return json.loads(done.stdout)
    assert isinstance(done.exception, ValueError), (words, done.output, done.exception)
    message = str(done.exception)
    assert "\n" not in message
    assert done.stdout == "", words
    return message


def flag(name):
    return "--" + name.replace("_", "-")


def alternatives(parameter, now):
    """Other values of an option than the one it has now."""
    members = getattr(parameter.type, "choices", None)
    values = [getattr(member, "value", member) for member in members] if members else [OTHER[parameter.name]]
    return [value for value in values if value != now]


def told(document, name):
    """What a document says by itself, without what repeats the option `name` or describes the question."""
    if name in ONLY_WORDS:
        return document
    return {key: value for key, value in document.items() if key not in (name, *ECHO)}


@pytest.mark.parametrize(("command", "meaning"), [(c, m) for c, meant in MEANT.items() for m in meant])
def test_every_option_changes_the_result_or_is_refused(command, meaning):
    options = MEANT[command][meaning]
    before = typed(command, options)
    assert isinstance(before, dict), before
    dropped = []
    for parameter in COMMANDS[command].params:
        name = parameter.name
        if name in NO_NUMBER:
            continue
        for value in alternatives(parameter, options.get(name, parameter.default)):
            after = typed(command, options | {name: value})
            if isinstance(after, str):
                named = flag(name) in after or f"{name} {value}" in after
                assert named or " needs --" in after, (name, value, after)
                if name != "unit" and after.startswith(f"{flag(name)} ") and "does not belong" in after:
                    dropped += unless_refused(command, options, parameter)
            elif told(after, name) == told(before, name):
                dropped.append(f"{flag(name)} {value}")
    assert not dropped


def unless_refused(command, options, parameter):
    """Whether an option is dropped must not depend on its value: `--steps 1` at user level is one, too."""
    default = getattr(parameter.default, "value", parameter.default)
    if default is None or default is False:
        return []
    again = typed(command, options | {parameter.name: str(default)})
    refused = isinstance(again, str) and f"{flag(parameter.name)} " in again
    return [] if refused else [f"{flag(parameter.name)} {default}"]


@pytest.mark.parametrize("command", MEANT)
def test_the_table_has_every_option_and_no_other(command):
    assert RULES[command].uses.keys() == {parameter.name for parameter in COMMANDS[command].params}


def test_exceptions_are_options():
    known = {parameter.name for command in COMMANDS.values() for parameter in command.params} | {"help"}
    assert not (NO_NUMBER.keys() | ONLY_WORDS.keys() | OTHER.keys()) - known


# --- the combinations by name -------------------------------------------------------------------------------

BASE = ("--noise-multiplier", "4", "--rounds", "3")
INSTANCE = ("--unit", "instance", *BASE)
PROBABILITY = ("--sampling-probability", "0.1")
COUNTED = ("--cohort", "20", "--users", "200")
SGD = (*INSTANCE, "--batch-probability", "0.4", *COUNTED)
ALONE = ("--epsilon", "1", "--delta", "0.001", "--epsilon-relation", "join")
NOISE_FOR_SIZE = ("--size", "3", *PROBABILITY)

USER_LEVEL = "user-level DP-FedAvg (--unit user)"
FEDAVG = "InsDP-FedAvg (--unit instance without --batch-probability)"
FEDSGD = "InsDP-FedSGD (--unit instance with --batch-probability)"
BY_EPSILON = "a guarantee known by --epsilon alone"


@pytest.mark.parametrize(
    ("arguments", "option", "kind"),
    [
        ((*BASE, *PROBABILITY, "--steps", "2"), "--steps 2", USER_LEVEL),
        ((*BASE, *PROBABILITY, "--batch-probability", "0.4"), "--batch-probability 0.4", USER_LEVEL),
        ((*INSTANCE, *PROBABILITY, "--per-layer", "3"), "--per-layer 3", FEDAVG),
        ((*INSTANCE, *PROBABILITY, "--sampling", "poisson"), "--sampling poisson", FEDAVG),
        ((*INSTANCE, *PROBABILITY, *COUNTED), "--cohort 20", FEDAVG),
        ((*INSTANCE, *PROBABILITY, "--users", "9"), "--users 9", FEDAVG),
        ((*SGD, "--sampling", "fixed"), "--sampling fixed", FEDSGD),
        ((*SGD, "--steps", "2"), "--steps 2", FEDSGD),
        ((*SGD, "--per-layer", "3"), "--per-layer 3", FEDSGD),
        ((*SGD, *PROBABILITY), "--sampling-probability 0.1", FEDSGD),
        ((*BASE, *PROBABILITY, *COUNTED), "--cohort 20", "given by --sampling-probability"),
        ((*BASE, *PROBABILITY, "--users", "9"), "--users 9", "given by --sampling-probability"),
        (
            (*BASE, *PROBABILITY, "--sampling", "fixed", *COUNTED),
            "--sampling-probability 0.1",
            "--sampling fixed",
        ),
        ((*BASE, *PROBABILITY, "--sampling", "none"), "--sampling-probability 0.1", "--sampling none"),
        ((*BASE, *COUNTED, "--sampling", "none"), "--cohort 20", "--sampling none"),
    ],
)
@pytest.mark.parametrize("command", ["account", "certify", "inefficacy"])
def test_an_option_of_another_mechanism_is_refused(command, arguments, option, kind):
    data = {"certify": SCORES, "inefficacy": COSTS, "account": {}}[command]
    refused(command, data, arguments, option, kind)


@pytest.mark.parametrize(
    ("command", "arguments", "option", "kind"),
    [
        ("certify", (*BASE, *PROBABILITY, "--delta", "0.01"), "--delta 0.01", "--method margin"),
        ("certify", (*BASE, *PROBABILITY, "--spending", "sound"), "--spending sound", "--method margin"),
        (
            "certify",
            (*BASE, *PROBABILITY, "--epsilon-relation", "join"),
            "--epsilon-relation join",
            USER_LEVEL,
        ),
        ("certify", (*ALONE, "--rounds", "3"), "--rounds 3", BY_EPSILON),
        ("certify", (*ALONE, *PROBABILITY), "--sampling-probability 0.1", BY_EPSILON),
        ("certify", (*ALONE, "--noise-multiplier", "3"), "--noise-multiplier 3", BY_EPSILON),
        ("certify", (*ALONE, "--per-layer", "3"), "--per-layer 3", BY_EPSILON),
        (
            "certify",
            (*BASE, *PROBABILITY, "--method", "mean", "--bound", "none", "--failure-probability", "0.1"),
            "--failure-probability 0.1",
            "--bound none",
        ),
        (
            "certify",
            (*BASE, *PROBABILITY, "--method", "mean", "--bound", "none", "--spending", "paper"),
            "--spending paper",
            "--bound none",
        ),
        ("inefficacy", (*BASE, *PROBABILITY, "--delta", "0.01"), "--delta 0.01", "--method mean"),
        ("inefficacy", (*ALONE, "--unit", "instance", "--steps", "3"), "--steps 3", BY_EPSILON),
        ("plan", (*NOISE_FOR_SIZE, "--noise-multiplier", "3"), "--noise-multiplier 3", "--find noise"),
        ("plan", (*NOISE_FOR_SIZE, "--replicas", "500"), "--replicas 500", "--find noise"),
        ("plan", (*NOISE_FOR_SIZE, "--classes", "10"), "--classes 10", "--find noise"),
        ("plan", (*NOISE_FOR_SIZE, "--device", "cpu"), "--device cpu", "--find noise"),
        ("plan", (*NOISE_FOR_SIZE, "--delta", "0.1"), "--delta 0.1", "--find noise with --size"),
        (
            "plan",
            (*NOISE_FOR_SIZE, "--find", "noise", "--accuracy", "5=0.8"),
            "--accuracy 5=0.8",
            "--find noise",
        ),
        ("plan", (*NOISE_FOR_SIZE, "--find", "noise", "--pilot", "x.toml"), "--pilot x.toml", "--find noise"),
        ("plan", (*NOISE_FOR_SIZE, "--epsilon", "1"), "--size 3", "--find noise with --epsilon"),
        (
            "plan",
            ("--epsilon", "1", *PROBABILITY, "--top", "0.9"),
            "--top 0.9",
            "--find noise with --epsilon",
        ),
        ("plan", ("--epsilon", "1", *PROBABILITY, "--rival", "0.1"), "--rival 0.1", "--find noise with"),
        ("plan", ("--epsilon", "1", *PROBABILITY, "--relation", "join"), "--relation join", "--find noise"),
        (
            "plan",
            ("--find", "rounds", *NOISE_FOR_SIZE, "--noise-multiplier", "3", "--rounds", "4"),
            "--rounds 4",
            "--find rounds",
        ),
        (
            "plan",
            ("--find", "rounds", *NOISE_FOR_SIZE, "--noise-multiplier", "3", "--epsilon", "4"),
            "--epsilon 4",
            "--find rounds",
        ),
        (
            "plan",
            ("--find", "cohort", "--size", "3", "--noise-multiplier", "3", *COUNTED, "--sampling", "poisson"),
            "--cohort 20",
            "--find cohort",
        ),
        (
            "plan",
            ("--find", "cohort", "--size", "3", "--noise-multiplier", "3", "--users", "9", *PROBABILITY),
            "--sampling-probability 0.1",
            "--find cohort",
        ),
        (
            "plan",
            ("--size", "3", "--users", "60", "--accuracy", "5=0.8", "--top", "0.9"),
            "--top 0.9",
            "--acc",
        ),
        (
            "plan",
            ("--size", "3", "--users", "60", "--accuracy", "5=0.8", "--rounds", "3"),
            "--rounds 3",
            "--acc",
        ),
        (
            "plan",
            ("--size", "3", "--users", "60", "--accuracy", "5=0.8", "--delta", "0.1"),
            "--delta 0.1",
            "--a",
        ),
        (
            "plan",
            ("--size", "3", "--users", "60", "--accuracy", "5=0.8", "--steps", "3"),
            "--steps 3",
            "--acc",
        ),
        ("plan", ("--size", "3", "--pilot", "pilot.toml", "--users", "60"), "--users 60", "--pilot"),
        ("plan", ("--size", "3", "--pilot", "pilot.toml", "--classes", "6"), "--classes 6", "--pilot"),
        ("plan", ("--size", "3", "--pilot", "pilot.toml", "--unit", "user"), "--unit user", "--pilot"),
    ],
)
def test_an_option_of_another_question_is_refused(command, arguments, option, kind):
    data = {"certify": SCORES, "inefficacy": COSTS}.get(command, {})
    refused(command, data, arguments, option, kind)


def refused(command, data, arguments, option, kind):
    words = [word for name, value in data.items() for word in (flag(name), value)]
    done = CliRunner().invoke(MAIN, [command, *words, *arguments])
    message = str(done.exception)
    assert re.match(rf"{re.escape(option)} does not belong to .*{re.escape(kind)}", message), message
    assert "it is for" in message
    assert "\n" not in message
    assert done.stdout == ""


@pytest.mark.parametrize("command", ["account", "certify", "inefficacy", "plan"])
def test_a_cohort_out_of_users_says_how_it_is_drawn(command):
    """Poisson and fixed cohorts differ by a factor of two in the noise: nobody may guess which it was."""
    data = {"certify": SCORES, "inefficacy": COSTS, "account": {}, "plan": {"size": "3"}}[command]
    noise = () if command == "plan" else BASE
    words = [word for name, value in data.items() for word in (flag(name), value)]
    message = str(CliRunner().invoke(MAIN, [command, *words, *noise, *COUNTED]).exception)
    assert re.match(".*--cohort and --users needs --sampling poisson .* or --sampling fixed", message)


def test_the_two_ways_of_drawing_a_cohort_differ_by_about_two():
    asked = {"epsilon": "1", "rounds": "100", "cohort": "20", "users": "200"}
    noise = [
        typed("plan", asked | {"sampling": sampling})["noise_multiplier"] for sampling in ("poisson", "fixed")
    ]
    assert 1.5 < noise[1] / noise[0] < 2.5


def test_no_cohort_is_promised_to_certify_instances():
    """InsDP-FedAvg counts every round, whoever is drawn: a small cohort of users protects no instance."""
    found = typed(
        "plan",
        {"find": "cohort", "unit": "instance", "size": "3", "users": "200", "noise_multiplier": "3"}
        | {"sampling": "poisson"},
    )
    assert "--unit instance does not belong to --find cohort" in found


def test_rounds_are_counted_in_rounds_not_in_steps():
    asked = {"find": "rounds", "unit": "instance", "size": "2", "noise_multiplier": "9"}
    one = typed("plan", asked | {"sampling_probability": "0.1"})
    five = typed("plan", asked | {"sampling_probability": "0.1", "steps": "5"})
    assert five["rounds"] == one["rounds"] // 5
