"""K with its uncertainty: a conclusion holds only beyond it."""

import pytest

from fedproof.certificates.paper_theorems import real_size
from paper import Rows
from paper.results import Clean, LargestSize
from paper.rows import line_of
from paper.sizes import at_epsilon, best, size_of, sizes_of

PANEL = "certified-user-epsilon/mnist"


@pytest.fixture
def rows(measured_row, tmp_path):
    """A file of rows from `{(panel, noise, seed): K}`; the whole and its parts where K is a tuple."""

    def build(sizes):
        lines = []
        for (panel, noise, seed), size in sizes.items():
            whole, *parts = size if isinstance(size, tuple) else (size,)
            epsilon = round(1 / noise, 4)
            found = LargestSize(epsilon=epsilon, failure_probability=None, all=whole, parts=tuple(parts))
            result = Clean(
                accuracy=0.9,
                accuracy_std=0.0,
                ensemble_accuracy=0.9,
                epsilon={"paper": epsilon},
                delta=0.01,
                sizes=(found,),
            )
            key = f"{panel}/seed={seed}/noise={noise}"
            lines.append(line_of(measured_row(result, key, {"mechanism.noise_multiplier": str(noise)})))
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        return Rows(tmp_path / "rows.jsonl")

    return build


def test_seeds_of_a_point_are_found_by_its_noise(rows):
    found = rows({(PANEL, 1.0, 0): 3.0, (f"{PANEL}-seeds", 1.0, 1): 3.4, (f"{PANEL}-seeds", 2.0, 1): 9.0})
    [row] = found.under(PANEL)
    assert size_of(found, row).values == (3.0, 3.4)
    assert str(size_of(found, row)) == "3.20 (3.00 to 3.40, 2 seeds)"


def test_one_ensemble_alone_decides_nothing(rows):
    small, large = sizes_of(rows({(PANEL, 1.0, 0): 3.0, (PANEL, 2.0, 0): 9.0}), PANEL)
    assert small.above(large) is large.above(small) is None


def test_parts_of_the_replicas_are_ensembles_where_there_are_no_seeds(rows):
    found = rows(
        {(PANEL, 1.0, 0): (3.0, 3.0, 3.2), (PANEL, 2.0, 0): (3.1, 3.0, 3.2), (PANEL, 4.0, 0): (5.1, 5.0, 5.5)}
    )
    top, middle, low = sizes_of(found, PANEL)
    assert best((top, middle, low)) is top
    assert top.above(low) is True
    assert low.above(top) is False
    assert low.above(middle) is None


def test_parts_say_how_much_the_whole_varies_and_not_how_large_it_is(rows):
    """A maximum over inputs is larger on average where means are of fewer replicas."""
    [size] = sizes_of(rows({(PANEL, 1.0, 0): (3.0, 3.8, 4.2)}), PANEL)
    assert str(size) == "3.00 (2.85 to 3.15, varying as 2 parts of the replicas)"


def test_parts_without_any_size_say_nothing(rows):
    found = rows({(PANEL, 1.0, 0): (0.1, 0.0, 0.0)})
    [row] = found.under(PANEL)
    assert str(size_of(found, row)) == "0.10 (one ensemble)"


def test_a_single_ensemble_varies_as_the_widest_of_its_panel(rows):
    found = rows({(PANEL, 1.0, 0): (4.0, 3.8, 4.2), (PANEL, 2.0, 0): 2.0})
    single = sizes_of(found, PANEL)[0]
    assert single.values == pytest.approx((2.0, 1.8, 2.2))
    assert single.middle == 2.0


@pytest.mark.parametrize("spent", [0.2, 1.9])
def test_two_classes_tell_their_size_at_another_epsilon(spent):
    top, delta = 0.93, 0.0029
    known = float(real_size(top, 1 - top, epsilon=spent, delta=delta))
    wanted = float(real_size(top, 1 - top, epsilon=0.6, delta=delta))
    assert at_epsilon(known, delta, spent=spent, printed=0.6) == pytest.approx(wanted, rel=1e-9)
