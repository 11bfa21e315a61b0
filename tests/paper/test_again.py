"""Rows are trained again and compared: what is right agrees, what was tampered with does not."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest

from paper import load_studies
from paper.again import FALSE_ALARM, Again, check_rows, compared, judged, most_spread
from paper.rows import line_of
from tests.commands import fedproof


@pytest.fixture(scope="module")
def rows(measured):
    return measured


@pytest.fixture(scope="module")
def again(rows, experiments):
    """All rows, trained again."""
    return check_rows(load_studies(experiments), experiments, rows.path.parent, count=9, seed=1)


def test_the_same_rows_again_agree(rows, again):
    assert {one.key for one in again} == {row.key for row in rows if row.key != "small/seconds"}
    assert all(one.agrees for one in again)


def test_fewer_replicas_agree_with_a_larger_error(rows, again, experiments):
    studies, folder = load_studies(experiments), rows.path.parent
    part = check_rows(studies, experiments, folder, count=9, scale=0.5, seed=1)
    assert all(one.agrees for one in part)
    allowed = {(one.key, one.name): one.allowed for one in part if one.error}
    assert allowed
    assert all(b > a.allowed for a in again if (b := allowed.get((a.key, a.name))) is not None)
    # Of a part of the replicas some numbers cannot be had: these are not compared, and said to be not.
    assert any(one.error is None and "curves" in one.name for one in part)
    assert all(one.error == 0 for one in again)


@pytest.mark.parametrize(
    "key", ["small/certified/noise_multiplier=2.0", "small/attacked", "small/needed/noise"]
)
def test_rows_that_were_tampered_with_do_not_agree(rows, experiments, tmp_path, key):
    changed = [
        replace(row, result=replace(row.result, accuracy=row.result.accuracy - 0.5))
        if row.key.startswith(key)
        else row
        for row in rows
    ]
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, changed)))
    found = check_rows(load_studies(experiments), experiments, tmp_path, count=9)
    assert [one.key.startswith(key) for one in found if not one.agrees] == [True]


def test_a_computed_number_must_be_the_same(rows):
    row = next(row for row in rows if row.key == "small/rounds")
    [first, *rest] = row.result.curves
    other = replace(
        row, result=replace(row.result, curves=(replace(first, own=(*first.own[:-1], 9.9)), *rest))
    )
    assert [one.agrees for one in judged(list(compared(row, other, None)))].count(False) == 1


def forged(row):
    """All but ε and δ of a certified row is another, and it says that chance may have done it."""
    result = row.result
    sizes = tuple(replace(one, all=40.0, parts=(1.0, 80.0)) for one in result.sizes)
    curves = tuple(replace(one, accuracy=(1.0,) * len(one.accuracy)) for one in result.curves)
    result = replace(
        result, accuracy=0.5, accuracy_std=30.0, sizes=sizes, curves=curves, ensemble_epsilon={"paper": 0.001}
    )
    return replace(row, result=result)


def names_of(found):
    return {one.name for one in judged(list(found)) if not one.agrees}


def test_no_number_of_a_row_can_be_forged_unnoticed_where_code_and_device_are_the_same(rows):
    [row] = rows.under("small/certified/noise_multiplier=2.0")
    wrong = names_of(compared(forged(row), row, row.replicas))
    assert {
        "accuracy",
        "accuracy_std",
        "sizes.0.all",
        "curves.0.accuracy.0",
        "ensemble_epsilon.paper",
    } <= wrong
    assert names_of(compared(replace(row, data="0" * 12), row, row.replicas)) == {"data"}


def test_a_row_does_not_say_itself_how_far_it_may_be_off(rows):
    [row] = rows.under("small/sizes")
    elsewhere = replace(row, hardware="another")
    assert names_of(compared(elsewhere, row, row.replicas)) == set()
    wrong = names_of(compared(replace(forged(row), hardware="another", replicas=1), row, row.replicas))
    assert {"replicas", "accuracy", "sizes.0.all", "ensemble_epsilon.paper"} <= wrong


def test_words_and_lengths_are_compared_too(rows):
    [row] = rows.under("small/certified/noise_multiplier=2.0")
    first, *rest = row.result.curves
    swapped = replace(row, result=replace(row.result, curves=(replace(first, method="margin"), *rest)))
    assert names_of(compared(swapped, row, row.replicas)) == {"curves.0.method"}
    longer = replace(first, accuracy=(*first.accuracy, 0.5))
    assert names_of(
        compared(replace(row, result=replace(row.result, curves=(longer, *rest))), row, row.replicas)
    ) == {f"curves.0.accuracy.{len(first.accuracy)}"}


def test_destroyed_models_are_the_same_and_other_losses_are_not(rows):
    [row] = rows.under("small/attacked")

    def with_cost(cost):
        [first, *rest] = row.result.attacks
        return replace(row, result=replace(row.result, attacks=(replace(first, cost=cost), *rest)))

    assert names_of(compared(with_cost(math.nan), with_cost(math.nan), row.replicas)) == set()
    assert names_of(compared(with_cost(1.0), with_cost(math.nan), row.replicas)) == {"attacks.0.cost"}


def test_a_cost_that_is_clipped_in_all_of_a_few_replicas_is_no_alarm(rows):
    [row] = rows.under("small/attacked")
    bound = row.result.cost_bound

    def at(share, replicas, hardware):
        [first, *rest] = row.result.attacks
        attacks = (replace(first, cost=share * bound), *rest)
        return replace(row, result=replace(row.result, attacks=attacks), replicas=replicas, hardware=hardware)

    few = judged(list(compared(at(0.98, 100, "there"), at(1.0, 10, "here"), 100)))
    [cost] = [one for one in few if one.name == "attacks.0.cost"]
    assert cost.agrees
    far = judged(list(compared(at(0.3, 100, "there"), at(1.0, 100, "here"), 100)))
    assert not next(one for one in far if one.name == "attacks.0.cost").agrees


def test_the_chance_of_a_false_alarm_is_that_of_the_whole_check():
    generator = np.random.default_rng(0)
    alarms = 0
    for _ in range(2000):
        found = [
            Again(
                key="row",
                name=str(i),
                was=float(generator.normal()),
                now=float(generator.normal()),
                error=2**0.5,
            )
            for i in range(8)
        ]
        alarms += not all(one.agrees for one in judged(found))
    assert 0 < alarms < 2000 * FALSE_ALARM * 2.2  # binomial: 44 of 2000 are beyond one in a million


def test_no_sample_spreads_more_than_the_bound():
    generator = np.random.default_rng(0)
    for _ in range(200):
        values = generator.uniform(0, 3.0, 20).round(int(generator.integers(0, 3))).clip(0, 3)
        assert values.std() <= most_spread(float(values.mean()), 3.0) + 1e-12


def test_what_cannot_be_checked_is_refused(experiments, tmp_path):
    studies = load_studies(experiments)
    with pytest.raises(ValueError, match="there are no rows of these studies to check"):
        check_rows(studies, experiments, tmp_path, count=3)
    with pytest.raises(ValueError, match=r"scale = 0\.02 must be at least 0\.1"):
        check_rows(studies, experiments, tmp_path, count=3, scale=0.02)
    with pytest.raises(ValueError, match="check = 0 must be"):
        check_rows(studies, experiments, tmp_path, count=0)


def test_the_command_prints_a_table_and_says_by_its_status_whether_all_agree(rows, experiments, tmp_path):
    said = ["reproduce", "small", "--experiments", str(experiments), "--check", "9", "--json", "--out"]
    good = fedproof(*said, rows.path.parent)
    assert all(one["agrees"] for one in json.loads(good.stdout))
    first, *rest = rows
    wrong = replace(first, result=replace(first.result, accuracy=0.1))
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, [wrong, *rest])))
    bad = fedproof(*said, tmp_path, status=1)
    assert [one["key"] for one in json.loads(bad.stdout) if not one["agrees"]] == [first.key]
    told = fedproof(*[word for word in said if word != "--json"], tmp_path, status=1).stdout
    assert f"{first.key}: NO, 1 of " in told
    assert told.count("Not what they were") == 1
    assert ": yes, all " in told
    assert "There is no chance in this." in told  # twins: the same code on the same device
    assert "Of chance alone" in fedproof(*said[:-2], "--scale", "0.5", "--out", tmp_path, status=1).stdout
    for option in (["--stale"], ["--jobs", "2"]):
        refused = fedproof(*said, tmp_path, *option, status=2)
        assert f"{option[0]} goes with measuring" in refused.stderr
    assert (tmp_path / "rows.jsonl").read_text() == "".join(map(line_of, [wrong, *rest]))
