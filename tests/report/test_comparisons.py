"""Pages of sweeps and comparisons from made rows."""

import html
import math
import re
from dataclasses import replace

import pytest

from fedproof.report.chart import Line, Points
from fedproof.report.comparisons import (
    best_run,
    compare_charts,
    shown_sizes,
    sweep_chart,
    write_compare_page,
    write_sweep_page,
)
from fedproof.statements import Statement


def test_the_best_epsilon_is_marked(tmp_path, sweep_rows, hostile):
    rows = sweep_rows()
    chart = sweep_chart(rows)
    sizes = shown_sizes(rows)
    lines = [series for series in chart.series if isinstance(series, Line)]
    points = [series for series in chart.series if isinstance(series, Points)]
    assert len(lines) == len(sizes) == len(points)
    for line, point in zip(lines, points, strict=True):
        assert point.ys[0] == max(line.ys)
    middle = best_run(rows, sizes[len(sizes) // 2])
    assert chart.marks[0].x == middle.spent.epsilon
    page = write_sweep_page(rows, tmp_path / "sweep.html").read_text()
    assert hostile not in page
    assert "the best of 4 runs" in page


def test_epsilon_is_rounded_up_wherever_a_page_has_it(tmp_path, sweep_rows):
    rows = [
        replace(row, spent=replace(row.spent, epsilon=row.spent.epsilon + 0.00013)) for row in sweep_rows()
    ]  # 2.00013, 1.00013, ...
    page = write_sweep_page(rows, tmp_path / "sweep.html").read_text()
    for above, below in (("2.01", "2"), ("1.01", "1"), ("0.501", "0.5"), ("0.251", "0.25")):
        assert f">{above}</th>" in page  # behind the figure
        assert f' of one model (paper) = {above}"' in page  # under the pointer
        assert f"ε = {below}<" not in page


def test_runs_that_certify_nothing(tmp_path, sweep_rows):
    rows = [replace(row, certified_accuracy={"0": 0.0}) for row in sweep_rows()]
    assert "None of 4 runs certifies anything" in write_sweep_page(rows, tmp_path / "sweep.html").read_text()


def test_a_sweep_says_what_is_no_proof(tmp_path, sweep_rows):
    why, published = Statement.of("clip-norm"), Statement.of("owners-drawn")
    rows = [replace(row, sound=False, unmet=(why,)) for row in sweep_rows()]
    rows = [replace(row, spent=replace(row.spent, unmet=(published,))) for row in rows]
    page = write_sweep_page(rows, tmp_path / "sweep.html").read_text()
    assert re.search(r"would be certified at k = \d", page)
    assert "<strong>Proved: </strong>none." in page
    assert page.count(html.escape(f"{why.sentence}.")) == len(rows)
    assert f"no bound here: {published.sentence}." in page
    assert "ε = 0.25" not in page
    proved = sweep_rows()[0]
    page = write_sweep_page([proved, *rows[1:]], tmp_path / "sweep.html").read_text()
    assert re.search(r"are certified at k = \d", page)
    assert best_run([proved, *rows[1:]], 0) is proved  # though others would certify more
    page = write_sweep_page(sweep_rows(), tmp_path / "sweep.html").read_text()
    assert "no bound" not in page
    assert "for one user added or removed" in page


PRIVATE = "This page must not be published: the test inputs, which name the classes, are shares of users"


def test_pages_of_inputs_that_are_users_own_say_that_they_are_private(tmp_path, sweep_rows, compare_rows):
    for rows, write in ((sweep_rows(), write_sweep_page), (compare_rows(), write_compare_page)):
        assert PRIVATE not in write(rows, tmp_path / "public.html").read_text()
        some = [*rows[:-1], replace(rows[-1], tests_of_users=True)]
        assert PRIVATE in write(some, tmp_path / "private.html").read_text()


@pytest.mark.parametrize("write", [write_sweep_page, write_compare_page])
def test_there_must_be_rows(write, tmp_path):
    with pytest.raises(ValueError, match="empty"):
        write([], tmp_path / "page.html")


def test_runs_without_privacy_are_drawn_over_k(tmp_path, sweep_rows):
    rows = [replace(row, spent=None) for row in sweep_rows()]
    assert len(sweep_chart(rows).series) == len(rows)
    assert "ε = " not in write_sweep_page(rows, tmp_path / "sweep.html").read_text()
    mixed = [rows[0], *sweep_rows()[1:]]
    assert all(map(math.isfinite, sweep_chart(mixed).series[0].xs))
    assert write_sweep_page(mixed, tmp_path / "mixed.html").is_file()


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
