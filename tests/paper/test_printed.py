"""Every number that the paper prints is compared, and shown."""

import copy
import math
import re
from pathlib import Path

import pytest

from paper.agreement import printed_section
from paper.clean import compare_clean
from paper.compared import printed
from paper.printed import Printed, Sources
from paper.published import Published

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


@pytest.fixture(scope="module")
def compared(committed):
    """`compared(published)`: every number of it beside ours."""
    studies, rows = committed.studies, committed.rows
    return lambda published: printed(
        Sources(committed.points, rows, published, compare_clean(studies, rows, published))
    )


def leaves(value, place=()):
    """Where the numbers of a JSON document are."""
    if isinstance(value, dict):
        value = list(value.items())
    elif isinstance(value, list):
        value = list(enumerate(value))
    elif isinstance(value, int | float):
        yield place
        return
    else:
        return
    for key, inner in value:
        yield from leaves(inner, (*place, key))


def test_every_number_of_the_paper_is_compared(compared):
    published = Published.read(EXPERIMENTS)
    assert set(leaves(published.values)) <= {one.place for one in compared(published)}


def test_every_number_is_the_one_of_its_place(compared):
    published = Published.read(EXPERIMENTS)
    for one in compared(published):
        found = published.values
        for key in one.place:
            found = found[key]
        assert one.published == found or isinstance(found, list), one


def test_every_point_is_in_the_tables_of_budgets_and_accuracies(committed):
    lines = set(committed.text.split("\n"))
    starts = {line.replace("*", "").rsplit(" | ", cut)[0] for line in lines for cut in (3, 4)}
    for entry, _ in Published.read(EXPERIMENTS).entries():
        point = f"| {entry.experiment} | {entry.sigma:g} | {entry.rounds}"
        if entry.epsilon is not None:
            assert f"{point} | {entry.epsilon:g}" in starts
        if entry.accuracy is not None:
            shown = f"{point} | {entry.accuracy:.2f}" in starts
            absent = f"σ = {entry.sigma:g}, {entry.rounds} rounds | {entry.accuracy:g} | not trained yet |"
            assert shown or any(line.endswith(absent) for line in lines)


def test_ours_is_never_the_printed_number_itself(compared):
    """Each is given with more digits than ours has, so that only a copy of it would be equal."""
    published = Published.read(EXPERIMENTS)
    names = published.values["best_epsilon_for_largest_k"]
    changed = copy.deepcopy(published.values)
    changed["best_epsilon_for_largest_k"] = {name: value + 1e-9 for name, value in names.items()}
    found = [one for one in compared(Published(changed)) if one.place[0] == "best_epsilon_for_largest_k"]
    assert len(found) == len(names)
    assert all(one.ours != one.published for one in found)
    assert sum(bool(one.close) for one in found) == 5


def test_another_number_would_be_another_page(compared):
    """One number of each kind that no table of the sections shows."""
    places = [
        ("setup", "user-cifar", "learning_rate"),
        ("largest_k", "user-mnist eps 0.6298"),
        ("overall_privacy_cost", "user-cifar eps 0.1451 O 70"),
        ("clipping_comparison", "mnist", "epsilon"),
        ("robust_accuracy_cifar", "k=2", "user-dp eps 0.3205", 5),
        ("robust_accuracy_cifar", "k=10", "krum", 0),
        ("accuracy_printed_again", "instance-cifar rounds 1 sigma 8"),
        ("ten_classes", "cifar backdoor over k, epsilon"),
        ("runtime", "certification seconds given scores"),
    ]
    changed = copy.deepcopy(Published.read(EXPERIMENTS).values)
    for *path, last in places:
        inner = changed
        for key in path:
            inner = inner[key]
        inner[last] += 0.0625
    found = compared(Published(changed))
    lines = "\n".join(printed_section(found))
    for place in places:
        [one] = [one for one in found if one.place == place]
        assert f"| {one.table} | {one.what} | {one.published:g} |" in lines


def test_what_differs_is_listed_with_its_reason_or_as_unexplained():
    same = {"table": "T", "place": ("setup",), "published": 80.0, "within": 2.5}
    found = [
        Printed(**same, what="near", ours=82.5),
        Printed(**same, what="far", ours=70.0),
        Printed(**same, what="other data", ours=60.0, why="other data"),
        Printed(**same, what="absent", ours=None),
        Printed(**same, what="nowhere", ours=math.nan),
    ]
    text = "\n".join(printed_section(found))
    assert "| T | 5 | 1 | 3 | 1 | 25% |" in text
    assert "| T | nowhere | 80 | none | unexplained |" in text
    assert "| T | far | 80 | 70 | unexplained |" in text
    assert "| T | other data | 80 | 60 | other data |" in text
    assert "| T | absent | 80 | not trained yet |" in text


def test_the_paper_is_set_against_itself(compared):
    """It prints K ≈ 4 at the ε of the largest K, and K ≈ 5 at another."""
    published = Published.read(EXPERIMENTS)
    whys = {one.what: one.why for one in compared(published) if one.table == "ε of the largest K"}
    assert whys["MNIST"] == "the paper itself prints K ≈ 5 at ε ≈ 0.4 and 4 at 0.6298"
    agreeing = copy.deepcopy(published.values)
    agreeing["largest_k"]["user-mnist eps 0.6298"] = 5
    again = {one.what: one.why for one in compared(Published(agreeing)) if one.table == "ε of the largest K"}
    assert again["MNIST"] == whys["MNIST, Dir(1)"] == ""


def test_models_that_are_shown_may_be_others_than_those_trained_as_there(committed):
    clean = compare_clean(committed.studies, committed.rows, Published.read(EXPERIMENTS))
    found = {(one.published.experiment, one.published.sigma, one.published.rounds): one for one in clean}
    batches = found["instance-mnist", 15.0, 3]  # Poisson batches where it is certified
    assert batches.close
    assert not batches.shown_close
    accuracies = {
        row.result.accuracy for row in committed.rows.under("instances-mnist/certified/noise_multiplier=15")
    }
    assert {batches.shown} == {100 * one for one in accuracies}
    # Ten rows of the page show one ensemble: its replicas count once.
    assert found["user-mnist", 2.5, 5].replicas == 100
    # Eight heads are eight ensembles, also where two of them are as accurate.
    assert found["user-cifar", 6.0, 1].replicas == 160


@pytest.mark.parametrize("text", ["{", "{}", "[]", "3"])
def test_a_file_without_published_numbers_is_named(text, tmp_path):
    (tmp_path / "paper_values.json").write_text(text)
    with pytest.raises(ValueError, match=r"paper_values\.json: (not a JSON|published numbers lack)"):
        Published.read(tmp_path)


def test_a_miss_that_chance_may_make_says_how_far_it_is(compared):
    found = {one.what: one for one in compared(Published.read(EXPERIMENTS)) if one.close is False}
    why = found["user-mnist, σ = 2.5, 3 rounds"].why
    away, replicas, spread = map(float, re.findall(r"(\d+\.?\d*) (?:standard|replicas|points)", why))
    miss = abs(found["user-mnist, σ = 2.5, 3 rounds"].ours - 86.69)
    assert away == pytest.approx(miss / (spread / math.sqrt(replicas)), abs=0.1)
    assert spread > 1


def test_certified_accuracies_of_models_trained_as_there_stand_beside_those_that_miss(compared):
    missed = [
        one for one in compared(Published.read(EXPERIMENTS))
        if one.table == "Certified accuracy of UserDP-FedAvg, CIFAR" and one.close is False
    ]  # fmt: skip
    assert missed
    for one in missed:
        told = re.fullmatch(
            r"unexplained: ([\d.]+) with heads and cohorts as there, ([\d.]+) with crops as there"
            r"(?:, of another ensemble ([\d.]+) with crops, ([\d.]+) without)?",
            one.why,
        )
        # A part of what is missing, at most.
        assert all(float(value) < one.published for value in told.groups() if value is not None)
