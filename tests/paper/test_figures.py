"""What a figure of attacks shows: every attack, and the bounds that hold for it."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from matplotlib.figure import Figure

from paper.computed import renyi
from paper.figures import _attacked, _renyi
from paper.published import Published


@pytest.fixture
def row(measured_row, attacked):
    def build(epsilon, lower, names=("backdoor",), sizes=(1, 2)):
        bounds = {"cost": 0.5, "paper_lower_exact": 0.1}
        attacks = [
            {"attack": name, "adversaries": k, "certified_lower": lower / k, **bounds}
            for name in names
            for k in sizes
        ]
        result = attacked(*attacks, epsilon={"paper": epsilon})
        return measured_row(result, values={"mechanism.noise_multiplier": "1"})

    return build


def shown(rows):
    return SimpleNamespace(rows=rows, units="users")


def lines(rows):
    figure = Figure()
    _attacked(figure, shown(rows))
    [axes] = figure.axes
    drawn = [line for line in axes.lines if len(line.get_xdata()) and line.get_gid() != "clean"]
    points = [line for line in drawn if line.get_marker() != "None"]
    return points, [line for line in drawn if line not in points], axes


def test_bounds_that_are_the_same_for_all_are_drawn_once(row):
    points, bounds, axes = lines([row(1.0, 0.4, names=("backdoor", "label-flip"))])
    assert len(points) == 2
    assert [list(line.get_ydata()) for line in bounds] == [[0.4, 0.2], [0.1, 0.1]]
    assert axes.get_xlabel() == "k (users)"


def test_bounds_that_differ_are_drawn_for_each_in_its_colour(row):
    points, bounds, _ = lines([row(1.0, 0.4), row(2.0, 0.2)])
    assert [line.get_color() for line in bounds[::2]] == [line.get_color() for line in points]
    assert [list(line.get_ydata()) for line in bounds[::2]] == [[0.4, 0.2], [0.2, 0.1]]


def test_bounds_whose_difference_nobody_sees_are_drawn_once(row):
    _, bounds, _ = lines([row(1.0, 0.4), row(2.0, 0.4001)])
    assert len(bounds) == 2


def test_one_size_is_shown_over_epsilon(row):
    points, bounds, axes = lines([row(1.0, 0.4, sizes=(4,)), row(2.0, 0.2, sizes=(4,))])
    assert axes.get_xlabel() == "ε (paper)"
    assert [list(line.get_xdata()) for line in points] == [[1.0, 2.0]]
    assert list(bounds[0].get_ydata()) == pytest.approx([0.1, 0.05])


def test_groupings_of_renyi_certificates_are_drawn_for_each_training(measured_row):
    found = renyi(Published.read(Path(__file__).parents[2] / "experiments"))
    figure = Figure()
    _renyi(figure, shown([measured_row(found)]))
    for axes, one in zip(figure.axes, found.curves, strict=True):
        drawn = [list(line.get_ydata()) for line in axes.lines]
        assert drawn == [list(sizes) for sizes in one.sizes.values()]
        published, tight, _, curve = one.sizes.values()
        assert all(a <= b <= c for a, b, c in zip(published, tight, curve, strict=True))
        assert max(published) < max(tight)  # k halvings prove less than log2 k of them
        assert list(published) == sorted(published)
