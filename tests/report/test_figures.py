"""Figures as files, drawn from the same rows."""

import csv
import subprocess
import sys

import pytest

from fedproof.report.chart import Bars, Chart, Points, Series, Tone, draw_federation, write_charts
from fedproof.report.run_data import read_run, write_figures
from fedproof.report.svg import WIDE, draw, log_ticks, ticks


def test_every_figure_in_every_format_with_its_rows(make_run, tmp_path):
    files = write_figures(make_run("mechanism.rounds=4"), tmp_path)
    names = {path.stem for path in files}
    assert names == {"certified-accuracy", "certified-sizes", "epsilon-per-round"}
    assert len(files) == 4 * len(names)
    assert all(path.stat().st_size > 100 for path in files)
    starts = {".png": b"\x89PNG", ".pdf": b"%PDF", ".svg": b"<?xml"}
    for path in files:
        assert path.read_bytes().startswith(starts.get(path.suffix, b""))


def test_rows_are_the_certificate(make_run, tmp_path):
    write_figures(make_run(), tmp_path)
    with (tmp_path / "certified-accuracy.csv").open(newline="") as file:
        rows = list(csv.reader(file))
    curve = read_run(make_run(), pictures=False).certificate.curve
    assert [float(row[1]) for row in rows[1 : len(curve) + 1]] == list(curve)
    assert rows[0][0] == "poisoned users k"


def test_the_same_rows_give_the_same_files(make_run, tmp_path):
    first = write_figures(make_run(), tmp_path / "a")
    second = write_figures(make_run(), tmp_path / "b")
    assert [path.read_bytes() for path in first] == [path.read_bytes() for path in second]


def test_no_certificate_no_figures(make_run, tmp_path):
    with pytest.raises(ValueError, match="no certificate"):
        write_figures(make_run("mechanism.kind=fedavg"), tmp_path)


def test_names_are_no_formulas(tmp_path):
    points = Points(label="$\\frac{$ <b>", xs=(1.0,), ys=(2.0,), tone=Tone.BLUE)
    chart = Chart(
        name="x",
        title="t",
        description="d",
        x_label="$x",
        y_label="y^",
        series=(points, points),
        logarithmic=True,
    )
    assert len(write_charts([chart], tmp_path)) == 4


@pytest.mark.parametrize("name", ["users.png", "users.svg", "deep/users.pdf"])
def test_what_users_hold(make_run, tmp_path, name):
    federation = read_run(make_run()).federation
    assert draw_federation(federation, tmp_path / name).stat().st_size > 1000


def test_a_figure_of_unknown_kind(make_run, tmp_path):
    with pytest.raises(ValueError, match=r"must end in \.png, \.pdf or \.svg"):
        draw_federation(read_run(make_run()).federation, tmp_path / "users.txt")


def test_the_report_needs_no_torch_and_matplotlib_only_for_figures():
    code = (
        "import sys, fedproof.report; sys.exit(any(name in sys.modules for name in ('torch', 'matplotlib')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_ticks_are_round_and_inside():
    assert ticks(0, 34, 8) == [0, 5, 10, 15, 20, 25, 30]
    assert ticks(-0.3, 0.52, 5) == [-0.2, 0, 0.2, 0.4]
    assert log_ticks(0.05, 10) == [0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10]


def test_bars_are_stacked():
    first, second = (Bars(label=name, xs=(0.0, 1.0), ys=(2.0, 1.0), tone=Tone.BLUE) for name in "ab")
    chart = Chart(name="x", title="t", description="d", x_label="x", y_label="y", series=(first, second))
    assert draw(chart, WIDE, kind="wide").count("<rect") == 4


def test_a_series_has_a_y_for_each_x():
    with pytest.raises(ValueError, match="must agree"):
        Series(label="a", xs=(1.0,), ys=(), tone=Tone.BLUE)
