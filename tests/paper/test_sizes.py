"""K with its uncertainty: a conclusion holds only beyond it."""

import pytest

from fedproof.certificates.paper_theorems import real_size
from paper import Rows, predictions
from paper.rows import line_of
from paper.sizes import at_epsilon, best, beyond_all, size_of, sizes_of
from paper.statements import Statement

PANEL = "certified-user-epsilon/mnist"


@pytest.fixture
def rows(sized_row, tmp_path):
    """A file of rows from `{(panel, noise, seed): K}`; the whole and its parts where K is a tuple."""

    def build(sizes):
        lines = []
        for (panel, noise, seed), size in sizes.items():
            whole, *parts = size if isinstance(size, tuple) else (size,)
            key, values = f"{panel}/seed={seed}/noise={noise}", {"mechanism.noise_multiplier": str(noise)}
            lines.append(line_of(sized_row(key, values, round(1 / noise, 4), [(None, whole, parts)])))
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        return Rows(tmp_path / "rows.jsonl")

    return build


def test_seeds_of_a_point_are_found_by_its_noise(rows):
    found = rows({(PANEL, 1.0, 0): 3.0, (f"{PANEL}-seeds", 1.0, 1): 3.4, (f"{PANEL}-seeds", 2.0, 1): 9.0})
    [row] = found.under(PANEL)
    assert list(size_of(found, row).values.values()) == [3.0, 3.4]
    assert str(size_of(found, row)) == "3.20 (3.00 to 3.40, 2 seeds)"


def test_one_ensemble_alone_decides_nothing(rows):
    small, large = sizes_of(rows({(PANEL, 1.0, 0): 3.0, (PANEL, 2.0, 0): 9.0}), PANEL)
    assert small.above(large) is large.above(small) is None


def test_parts_of_the_replicas_are_compared_in_pairs(rows):
    """They have their noise in common: what all of them show is more than their ranges do."""
    found = rows(
        {
            (PANEL, 1.0, 0): (3.0, 2.8, 3.0, 3.2),
            (PANEL, 2.0, 0): (3.1, 2.9, 3.1, 3.3001),
            (PANEL, 4.0, 0): (3.0, 3.3, 2.7, 3.0),
        }
    )
    crossed, above, below = sizes_of(found, PANEL)
    assert above.above(below) is True
    assert below.above(above) is False
    assert crossed.above(above) is crossed.above(below) is None
    assert best((below, above)) is above


def test_seeds_are_compared_in_pairs_and_with_parts_by_how_far_both_reach(rows):
    seeds = {(f"{PANEL}{'-seeds' * bool(seed)}", noise, seed): size for noise, seed, size in (
        (1.0, 0, 4.1), (1.0, 1, 4.4), (1.0, 2, 4.7), (2.0, 0, 4.0), (2.0, 1, 4.31), (2.0, 2, 4.6),
    )}  # fmt: skip
    found = rows(seeds | {(PANEL, 4.0, 0): (4.05, 3.9, 4.2), (PANEL, 8.0, 0): (5.0, 4.9, 5.1)})
    high, near, other, one = sizes_of(found, PANEL)
    assert one.above(other) is True
    assert other.above(one) is False
    assert near.above(one) is None
    assert high.above(one) is True


def test_only_common_seeds_of_one_panel_are_pairs(rows):
    """Of three seeds each only one is common, and its difference alone says nothing."""
    made = {(PANEL, 1.0, 0): 4.0, (PANEL, 2.0, 0): 3.0}
    made |= {(f"{PANEL}-seeds", 1.0, seed): 4.0 + seed / 10 for seed in (1, 2)}
    made |= {(f"{PANEL}-seeds", 2.0, seed): 3.01 + seed / 10 for seed in (3, 4)}
    low, high = sizes_of(rows(made), PANEL)
    assert high.above(low) is True  # by how far they reach
    near = {(f"{PANEL}-seeds", 2.0, 3): 4.1}
    low, high = sizes_of(rows(made | near), PANEL)
    assert high.above(low) is None
    other = {(f"other/panel{key[0].removeprefix(PANEL)}", *key[1:]): size for key, size in made.items()}
    found = rows(made | other)
    [_, here], [_, there] = sizes_of(found, PANEL), sizes_of(found, "other/panel")
    assert here.above(there) is None


def test_parts_say_how_much_the_whole_varies_and_not_how_large_it_is(rows):
    """A maximum over inputs is larger on average where means are of fewer replicas; and it varies more."""
    found = rows({(PANEL, 1.0, 0): (3.0, 3.8, 4.2, 3.8, 4.2)})
    [size] = sizes_of(found, PANEL)
    assert str(size) == "3.00 (2.92 to 3.08, as its 4 parts vary)"
    assert list(size.values.values()) == pytest.approx([2.85, 3.15, 2.85, 3.15])


def test_parts_without_any_size_say_nothing(rows):
    found = rows({(PANEL, 1.0, 0): (0.1, 0.0, 0.0)})
    [row] = found.under(PANEL)
    assert str(size_of(found, row)) == "0.10 (one ensemble)"


def optimum(rows, sizes, printed):
    found = sizes_of(rows({(PANEL, noise, 0): size for noise, size in sizes.items()}), PANEL)
    return [predictions._exists("DATA", found).verdict, predictions._around("DATA", found, printed).verdict]


def test_an_optimum_is_where_k_is_larger_than_at_every_other_epsilon(rows):
    low, high = (2.0, 1.9, 2.1), (3.0, 2.9, 3.11)
    sizes = {1.0: low, 2.0: high, 4.0: low}
    assert optimum(rows, sizes, 0.5) == ["yes", "yes"]
    assert optimum(rows, sizes, 1.0) == ["yes", "no"]
    assert optimum(rows, sizes | {1.0: (3.01, 3.2, 2.8)}, 0.5) == ["open", "open"]
    assert optimum(rows, sizes | {4.0: (4.0, 3.9, 4.1)}, 0.25) == ["no", "yes"]


def test_one_point_alone_is_no_optimum(rows):
    [one] = sizes_of(rows({(PANEL, 1.0, 0): (3.0, 2.9, 3.1)}), PANEL)
    assert beyond_all(one, [one]) is None


def test_other_data_than_the_papers_decide_nothing():
    said = Statement(claim="C", holds=False, evidence="E")
    assert predictions._on("user-mnist", said) is said
    assert predictions._on("user-sent140", said).verdict == "not tested"


@pytest.mark.parametrize("spent", [0.2, 1.9])
def test_two_classes_tell_their_size_at_another_epsilon(spent):
    top, delta = 0.93, 0.0029
    known = float(real_size(top, 1 - top, epsilon=spent, delta=delta))
    wanted = float(real_size(top, 1 - top, epsilon=0.6, delta=delta))
    assert at_epsilon(known, delta, spent=spent, printed=0.6) == pytest.approx(wanted, rel=1e-9)
