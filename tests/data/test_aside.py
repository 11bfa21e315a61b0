"""Where data come with users, whole users are set aside for testing: what users who train hold is private."""

import sys

import numpy as np
import pytest

from fedproof import experiment
from fedproof.config import parse_config
from fedproof.data import load
from fedproof.report.run_page import write_report
from fedproof.statements import Statement

NAMES = [f"user{number}" for number in range(40)]
LEAF = {
    name: [([float(number), place], place % 2) for place in range(3)] for number, name in enumerate(NAMES)
}
TESTS = {name: [([float(number), 9.0], number % 2)] for number, name in enumerate(NAMES)}
CONFIG = """
[data]
name = "leaf/many"
test = "{}"
[model]
name = "logistic"
[mechanism]
kind = "user-fedavg"
rounds = 1
cohort = 10
population = 60
noise_multiplier = 2.0
[ensemble]
replicas = 20
"""
MODULE = """
import numpy as np
from fedproof.data import Arrays
OWNERS = np.arange(40) * 2**55
def arrays(known=40):
    shared = np.where(np.arange(40) < known, OWNERS, -1)
    rows = np.arange(120.0).reshape(120, 1)
    return Arrays(features=rows, labels=np.arange(120) % 2, test_features=-rows[:40],
        test_labels=np.arange(40) % 2, class_names=("a", "b"), name="mine", owners=OWNERS.repeat(3),
        test_owners=shared)
def separate(): return arrays(0)
def mixed(): return arrays(20)
"""


@pytest.fixture
def module(tmp_path, monkeypatch):
    (tmp_path / "my_users_module.py").write_text(MODULE)
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_users_module"
    sys.modules.pop("my_users_module", None)


def owners_of(rows):
    """Who the instances of a LEAF folder belong to: the first number says so."""
    return {int(row[0]) for row in rows}


def test_users_of_a_leaf_folder_train_or_are_tested_on_and_never_both(write_leaf):
    federation = load("leaf/many", data_dir=write_leaf("many", LEAF, TESTS))
    trained, tested = owners_of(federation.features), owners_of(federation.test_features)
    assert not trained & tested
    assert trained | tested == set(range(40))
    assert 0 < len(tested) < 20
    assert len(federation.test_labels) == 4 * len(tested)  # all that they hold
    assert not federation.tests_of_users


def test_nobody_moves_when_somebody_joins_or_leaves(write_leaf):
    whole = load("leaf/many", data_dir=write_leaf("many", LEAF, TESTS))
    fewer = {name: rows for name, rows in LEAF.items() if name != NAMES[7]}
    left = load("leaf/fewer", data_dir=write_leaf("fewer", fewer, TESTS))
    assert owners_of(whole.features) - {7} == owners_of(left.features) - {7}


def test_shares_of_users_who_train_are_declared_and_marked(write_leaf):
    folder = write_leaf("many", LEAF, TESTS)
    federation = load("leaf/many", data_dir=folder, test="shares")
    assert owners_of(federation.features) == owners_of(federation.test_features) == set(range(40))
    assert federation.tests_of_users
    with pytest.raises(ValueError, match="test = 'half' must be users or shares"):
        load("leaf/many", data_dir=folder, test="half")


def test_a_label_of_a_user_who_trains_is_no_class(write_leaf):
    folder = write_leaf("many", LEAF, TESTS)
    trains = min(owners_of(load("leaf/many", data_dir=folder).features))
    write_leaf("poisoned", LEAF, TESTS | {NAMES[trains]: [([float(trains), 9.0], 57)]})
    assert load("leaf/poisoned", data_dir=folder).class_names == ("0", "1")
    assert load("leaf/poisoned", data_dir=folder, test="shares").class_names == ("0", "1", "57")


def test_tests_of_nobody_who_trains_are_kept(write_leaf, module):
    others = {f"other{number}": rows for number, rows in enumerate(TESTS.values())}
    separate = load("leaf/apart", data_dir=write_leaf("apart", LEAF, others))
    assert (separate.num_users, len(separate.test_labels)) == (40, 40)
    own = load(f"{module}:separate")
    assert (own.num_users, len(own.test_labels), own.tests_of_users) == (40, 40, False)
    mixed = load(f"{module}:mixed")
    assert (mixed.test_features < 0).sum() >= 20  # those of nobody, and of users who are set aside
    assert not mixed.tests_of_users


@pytest.mark.parametrize("partition", ["natural", "iid"])
def test_own_arrays_with_users_are_divided_alike(module, partition):
    users = None if partition == "natural" else 5
    federation = load(f"{module}:arrays", partition=partition, users=users)
    trained = set(np.abs(federation.features).ravel() // 3)
    tested = set(federation.test_features[federation.test_features > 0] // 3)
    assert trained
    assert tested
    assert not trained & tested
    assert not federation.tests_of_users
    assert load(f"{module}:arrays", partition=partition, users=users, test="shares").tests_of_users


def test_too_few_users_are_refused_with_the_key_that_helps(write_leaf):
    few = {name: LEAF[name] for name in NAMES[:2]}
    with pytest.raises(
        ValueError, match=r"of 2 users none would be set aside for testing: .*test = 'shares'"
    ):
        load("leaf/few", data_dir=write_leaf("few", few, {name: TESTS[name] for name in few}))


def test_certificate_page_and_notice_say_that_they_are_private(tmp_path, write_leaf, monkeypatch):
    monkeypatch.setenv("FEDPROOF_DATA", str(write_leaf("many", LEAF, TESTS)))
    said = {}
    for test in ("users", "shares"):
        config = parse_config(CONFIG.format(test), "config")
        run = experiment.run(config, tmp_path / test)
        page = write_report(run.folder, federation=run.federation).read_text()
        said[test] = (run.folder / "PUBLISH.txt").read_text(), page, run.certificate.assumptions
    tested = Statement.of("tests-of-users")
    assert not any(tested.text in text for text in said["users"][:2])
    assert tested not in said["users"][2]
    notice, page, assumptions = said["shares"]
    assert notice.startswith("Publish nothing of this")
    assert tested.text in notice.splitlines()[0]
    assert f"This page must not be published: {tested.text}." in page
    assert tested in assumptions
