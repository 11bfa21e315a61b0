"""Pages of attacks, inefficacy, sweeps and comparisons from made rows."""

import json
import math
import re
from dataclasses import replace

import pytest

from fedproof.certificates import ApproximateDP, inefficacy
from fedproof.mechanisms import Caveat, FedAvg, Poisson
from fedproof.report import (
    attack_charts,
    compare_charts,
    inefficacy_chart,
    inefficacy_rows,
    sweep_chart,
    write_attack_page,
    write_compare_page,
    write_inefficacy_page,
    write_sweep_page,
)
from fedproof.report.chart import Band, Line, Points
from fedproof.report.comparisons import verdict
from fedproof.report.sweep_page import best, shown_sizes
from fedproof.robustness.rows import document, read_rows
from fedproof.threat import Relation


def test_attacks_are_points_over_certified_bands(tmp_path, attack_rows, hostile):
    accuracy, cost = attack_charts(attack_rows())
    assert [type(series) for series in accuracy.series] == [Line, Points, Points]
    assert [type(series) for series in cost.series] == [Band, Points, Points]
    assert cost.series[0].highs == pytest.approx((0.4, 0.42, 0.44))
    page = write_attack_page(attack_rows(), tmp_path / "attack.html").read_text()
    assert hostile not in page
    assert "All 6 attacks stayed within what is certified" in page


def test_attacks_with_goals_of_their_own_have_bands_of_their_own(attack_rows):
    rows = attack_rows()
    rows[0] = replace(rows[0], certified_upper=0.45)
    _, cost = attack_charts(rows)
    assert sum(isinstance(series, Band) for series in cost.series) == 2


def test_an_attack_beyond_its_bounds_is_said(attack_rows):
    rows = attack_rows()
    rows[2] = replace(rows[2], cost=0.1)  # beyond its bound, but within Monte-Carlo error
    assert verdict(rows) == "All 6 attacks stayed within what is certified."
    rows[2] = replace(rows[2], holds_on_cost=False)
    assert verdict(rows) == "1 of 6 attacks went beyond what is certified."
    assert not rows[2].holds


def test_attacks_without_certificate(tmp_path, attack_rows):
    rows = attack_rows(certified_accuracy=None, certified_lower=None, certified_upper=None)
    page = write_attack_page(rows, tmp_path / "attack.html").read_text()
    assert "nothing is certified" in page


def test_heuristic_attacks_say_why(tmp_path, attack_rows):
    sampling = Poisson(probability=0.5)
    no_noise = FedAvg(rounds=1, sampling=sampling).caveats(Relation.REPLACE)
    rows = attack_rows(caveats=(*no_noise, Caveat(code="stated", sentence="something else")))
    page = write_attack_page(rows, tmp_path / "attack.html").read_text()
    assert page.count("No noise is added: there is no guarantee.") == 1
    assert page.count("Remedy: ") == 1
    assert "Something else." in page


def test_inefficacy_from_the_library(tmp_path, hostile):
    result = inefficacy(
        [0.4] * 9,
        cost_bound=0.5,
        privacy=ApproximateDP(epsilon=0.5, delta=0.0, relation="replace"),
        bound="none",
    )
    rows = inefficacy_rows(result)
    chart = inefficacy_chart(rows, cost=result.cost, unit="user")
    assert chart.series[0].ys == result.lower
    assert chart.series[0].highs == result.upper
    page = write_inefficacy_page(
        rows,
        tmp_path / "inefficacy.html",
        cost=result.cost,
        cost_bound=0.5,
        needed={"paper": 5.2, hostile: None},
        tau=10,
        reasons=[hostile],
    ).read_text()
    assert hostile not in page
    assert "an attack needs 6 users at least" in page


def test_the_best_epsilon_is_marked(tmp_path, sweep_rows, hostile):
    rows = sweep_rows()
    chart = sweep_chart(rows)
    sizes = shown_sizes(rows)
    lines = [series for series in chart.series if isinstance(series, Line)]
    points = [series for series in chart.series if isinstance(series, Points)]
    assert len(lines) == len(sizes) == len(points)
    for line, point in zip(lines, points, strict=True):
        assert point.ys[0] == max(line.ys)
    middle = best(rows, sizes[len(sizes) // 2])
    assert chart.marks[0].x == middle.epsilon
    page = write_sweep_page(rows, tmp_path / "sweep.html").read_text()
    assert hostile not in page
    assert "the best of 4 runs" in page


def test_runs_that_certify_nothing(tmp_path, sweep_rows):
    rows = [replace(row, certified_accuracy={"0": 0.0}) for row in sweep_rows()]
    assert "None of 4 runs certifies anything" in write_sweep_page(rows, tmp_path / "sweep.html").read_text()


@pytest.mark.parametrize("write", [write_attack_page, write_sweep_page, write_compare_page])
def test_there_must_be_rows(write, tmp_path):
    with pytest.raises(ValueError, match="empty"):
        write([], tmp_path / "page.html")


def test_runs_without_privacy_are_drawn_over_k(tmp_path, sweep_rows):
    rows = [replace(row, epsilon=None) for row in sweep_rows()]
    assert len(sweep_chart(rows).series) == len(rows)
    assert "(ε = ∞)" in write_sweep_page(rows, tmp_path / "sweep.html").read_text()
    mixed = [rows[0], *sweep_rows()[1:]]
    assert all(map(math.isfinite, sweep_chart(mixed).series[0].xs))
    assert write_sweep_page(mixed, tmp_path / "mixed.html").is_file()


def test_rows_may_come_from_json(tmp_path, attack_rows):
    (tmp_path / "attacks.json").write_text(json.dumps(document(attack_rows())))
    rows = read_rows(tmp_path / "attacks.json")
    assert write_attack_page(rows, tmp_path / "deep" / "attack.html").is_file()


def test_users_and_instances_are_never_in_one_figure(compare_rows):
    users, instances = compare_charts(compare_rows())
    assert [users.x_label, instances.x_label] == ["poisoned users k", "poisoned instances k"]
    assert [line.dashed for line in users.series] == [False, True, False]
    ours, paper, other = users.series
    assert ours.tone == paper.tone != other.tone
    assert len(instances.series) == 1


def test_the_page_of_a_comparison_says_who_certifies_most(tmp_path, compare_rows, hostile):
    page = write_compare_page(compare_rows(), tmp_path / "compare.html", sizes=[1, 7]).read_text()
    assert hostile not in page
    assert re.search(r"At k = 2 poisoned users, .* certifies most", page)
    assert "k = 7" in page
    assert "k = 5</th>" not in page
    assert "no privacy is claimed" in page
    assert "2.5\u00a0MB" in page


def test_a_comparison_in_which_nothing_is_proved(tmp_path, compare_rows):
    rows = [replace(row, sound=False) for row in compare_rows()]
    assert "None of 4 rows proves anything" in write_compare_page(rows, tmp_path / "page.html").read_text()
