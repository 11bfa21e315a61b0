"""The one arithmetic: its law by high precision, its bounds by hostile vectors, its bits everywhere alike."""

import hashlib
import math
from fractions import Fraction
from functools import partial

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import binom, chi2, norm

from fedproof import exact
from fedproof.seeds import SecureGenerator, SeededGenerator

FALSE_ALARM = 1e-6
SCALES = [0.3, 5.0, 2.0**13 + 0.1, 2.0**22, 2.0**23 - 1]


def further(word, place):
    return int.from_bytes(hashlib.sha256(f"{word} {place}".encode()).digest()[:8])


def rounded(word, scale, places=6):
    """`rint(scale * N)` of the N whose digits are a word and what is behind it, by bisection on 400 bits."""
    digits = word if word >= 0 else ~word
    for place in range(places):
        digits = digits << 64 | further(word, place)
    with mpmath.workprec(600):
        tail = mpmath.ldexp(mpmath.mpf(digits), -64 * (places + 1))
        low, high = mpmath.mpf(0), mpmath.mpf(60)
        for _ in range(420):
            middle = (low + high) / 2
            low, high = (middle, high) if mpmath.erfc(middle / mpmath.sqrt(2)) / 2 > tail else (low, middle)
        size = int(mpmath.nint(low * mpmath.mpf(scale)))
    return size if word >= 0 else -size


WORDS = [0, -1, 1, -2, 7, 2**20, -(2**33), 2**41 - 1, 2**50, 2**62, -(2**62), 2**63 - 1, -(2**63)]


@pytest.mark.parametrize("scale", SCALES)
def test_every_word_is_rounded_as_its_digits_say(scale):
    words = np.array([*WORDS, *np.random.default_rng(0).integers(-(2**63), 2**63, 20)])
    found = exact.normals(words[None], scale, (further,))[0]
    assert found.tolist() == [rounded(int(word), scale) for word in words]


@pytest.mark.parametrize("scale", SCALES[1:])
def test_words_near_the_middle_between_two_numbers_are_decided_by_more_bits(scale, monkeypatch):
    """The hard ones: words whose quantile is as near to a half as 64 bits can be."""
    asked = []
    decided = exact._decided
    monkeypatch.setattr(exact, "_decided", lambda *given: asked.append(given) or decided(*given))
    for half in (0.5, 1.5, 3.5):
        with mpmath.workprec(200):
            edge = int(mpmath.floor(mpmath.ldexp(mpmath.erfc(half / scale / mpmath.sqrt(2)) / 2, 64)))
        words = np.array([min(edge, 2**63 - 1) - 1, min(edge, 2**63 - 1), ~min(edge, 2**63 - 1)])
        found = exact.normals(words[None], scale, (further,))[0]
        assert found.tolist() == [rounded(int(word), scale) for word in words]
    assert len(asked) >= 6


def test_a_word_that_holds_the_border_of_two_numbers_is_decided_by_what_is_behind_it():
    """Far out 64 bits span more than the quantile errs by: a word that spans a border decides nothing."""
    scale, found = 4194304 + 12345.678, 0
    asked = []
    exact.normals(np.array([[5353483263211]]), scale, (lambda word, place: asked.append(place) or 2**64 - 1,))
    assert asked  # 4.997 standard deviations out
    for number in range(round(4.3 * scale), round(5.2 * scale), 40_013):
        with mpmath.workprec(200):
            tail = mpmath.erfc((number + mpmath.mpf(0.5)) / scale / mpmath.sqrt(2)) / 2
            word = int(mpmath.floor(mpmath.ldexp(tail, 64)))
        asked = []

        def behind(bits, word, place, asked=asked):
            asked.append(place)
            return bits

        both = [
            int(exact.normals(np.array([[word]]), scale, (partial(behind, bits),))[0, 0])
            for bits in (0, 2**64 - 1)
        ]
        assert asked, number
        found += both == [-number - 1, -number] or both == [number + 1, number]
    assert found > 90  # all but those where the border lies within 2^-64 of an end


def test_the_quantile_is_as_near_as_is_assumed():
    """Nine times nearer; where it is not, a rounding would be decided without a look at further bits."""
    rng, worst = np.random.default_rng(1), 0.0
    words = [int(each) for each in 2.0 ** rng.uniform(43, 63, 3000)]
    from scipy.special import ndtri

    for word in words:
        with mpmath.workprec(160):
            tail = mpmath.ldexp(mpmath.mpf(word) + mpmath.mpf(0.5), -64)
            first = -float(ndtri((float(word) + 0.5) * 2.0**-64))
            slope = mpmath.npdf(first)
            error = (mpmath.erfc(mpmath.mpf(first) / mpmath.sqrt(2)) / 2 - tail) / slope
        worst = max(worst, abs(float(error)))
    assert worst < exact._SURE / 9


@pytest.mark.parametrize("scale", [0.7, 3.0])
def test_the_law_is_that_of_a_rounded_normal_number(scale):
    count = 200_000
    drawn = exact.drawn(SeededGenerator(np.random.SeedSequence(3)), count, scale)
    places = np.arange(-math.ceil(3 * scale), math.ceil(3 * scale) + 1)
    chances = norm.cdf((places + 0.5) / scale) - norm.cdf((places - 0.5) / scale)
    found = np.array([(drawn == place).sum() for place in places])
    low, high = binom.interval(1 - FALSE_ALARM / len(places), count, chances)
    assert ((low <= found) & (found <= high)).all()
    wrong = binom.interval(1 - FALSE_ALARM / len(places), count, np.roll(chances, 1))
    assert not ((wrong[0] <= found) & (found <= wrong[1])).all()


@pytest.mark.parametrize("source", [SeededGenerator(np.random.SeedSequence(5)), SecureGenerator()])
def test_low_bits_are_uniform_and_tell_nothing_of_the_size(source):
    drawn = exact.drawn(source, 2**18, 2.0**24 * 1.3)
    assert (drawn == np.rint(drawn)).all()
    for part in (drawn[np.abs(drawn) < 2.0**23], drawn[np.abs(drawn) > 2.0**25]):  # float32 would tell here
        counts = np.bincount((part.astype(np.int64) & 255), minlength=256)
        statistic = float(((counts - len(part) / 256) ** 2).sum() * 256 / len(part))
        assert statistic < chi2.isf(FALSE_ALARM, 255)


def test_arrays_and_tensors_draw_the_same_bits():
    words = np.random.default_rng(2).integers(-(2**63), 2**63, (3, 40_000))
    words[0, : len(WORDS)] = WORDS
    scale = np.array([[2.0**24], [1.7 * 2.0**24], [3.3]])
    of_arrays = exact.normals(words, scale, [further] * 3)
    of_tensors = exact.normals(torch.from_numpy(words), torch.from_numpy(scale), [further] * 3)
    assert (of_arrays == of_tensors.numpy()).all()


def test_further_bits_do_not_depend_on_when_they_are_asked_for():
    one, other = (SeededGenerator(np.random.SeedSequence(9, spawn_key=(1, 2))) for _ in range(2))
    one.words(1000)
    assert [one.further(5, place) for place in range(3)] == [other.further(5, place) for place in range(3)]
    assert len({one.further(word, place) for word in range(50) for place in range(3)}) == 150


# --- the bound ----------------------------------------------------------------------------------------------

anything = st.floats(width=64) | st.sampled_from([1.7e308, -1.7e308, 1e-320, 5e-324, 1e154, 0.0])


@settings(derandomize=True, max_examples=300, deadline=None)
@given(
    rows=arrays(np.float64, (3, 7), elements=anything),
    clip_norm=st.floats(1e-30, 1e30),
    noise=st.sampled_from([0.0, 1e-6, 0.5, 3.0, 1000.0]),
    layered=st.booleans(),
)
def test_no_rounded_vector_is_longer_than_its_clip_norm(rows, clip_norm, noise, layered):
    """In whole numbers: the sum of squares, exactly, against the square of the clip norm in steps."""
    sizes = (3, 4) if layered else (7,)
    step = float(exact.grid_of(noise, clip_norm).step)
    norms = exact.lengths(rows, sizes)
    assert (np.isfinite(norms).all(axis=1) <= np.isfinite(rows).all(axis=1)).all()
    lost = ~np.isfinite(norms).all(axis=1)
    rows[lost], norms[lost] = 0.0, 0.0
    factors = exact.factors(norms, clip_norm, step, 7)
    begin = 0
    for layer, size in enumerate(sizes):
        part = exact.whole(rows[:, begin : begin + size].copy(), factors[:, layer, None])
        for row in part:
            squares = sum(Fraction(float(number)) ** 2 for number in row)
            assert squares <= (Fraction(clip_norm) / Fraction(step)) ** 2
        begin += size


def test_two_hundred_thousand_numbers_stay_within_the_clip_norm():
    """The room grows with the number of numbers: eight units in the last place would not do."""
    rng = np.random.default_rng(0)
    for _ in range(40):
        row = rng.normal(size=(1, 200_000)) * 10 ** rng.uniform(-3, 3)
        factor = exact.factors(exact.lengths(row, (200_000,)), 1.0, 2.0**-50, 200_000)
        numbers = exact.whole(row, factor)[0].astype(np.int64)
        assert sum(int(number) ** 2 for number in numbers.tolist()) <= 4**50


@settings(derandomize=True, max_examples=50, deadline=None)
@given(seed=st.integers(0, 1000))
def test_parts_of_unbounded_updates_add_up_exactly_in_any_order(seed):
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(500, 3)) * 10.0 ** rng.uniform(-15, 5, size=(500, 1))
    coarse, fine = exact.parts(rows.copy())
    np.testing.assert_allclose(coarse + fine, rows, rtol=0, atol=2.0**-52)
    order = rng.permutation(500)
    for part in (coarse, fine):
        forwards, shuffled = np.cumsum(part, axis=0)[-1], np.cumsum(part[order], axis=0)[-1]
        np.testing.assert_array_equal(forwards, shuffled)
        assert forwards[0] == float(sum(map(Fraction, part[:, 0].tolist())))


@pytest.mark.parametrize("library", [np.asarray, torch.from_numpy], ids=["array", "tensor"])
def test_the_norm_of_a_row_follows_from_the_row_alone(library):
    """A hostile neighbour, or their number, that changed a last bit would move what others are rounded to."""
    rows = np.random.default_rng(0).normal(size=(40, 5000))
    alone = np.concatenate([exact.lengths(library(row[None].copy()), (2000, 3000)) for row in rows])
    for count in (2, 3, 4, 8, 16, 17, 40):
        together = exact.lengths(library(rows[:count].copy()), (2000, 3000))
        np.testing.assert_array_equal(np.asarray(together), alone[:count])
    for poison in (np.nan, np.inf, 1e120, 1e300):
        beside = rows.copy()
        beside[7, 3] = poison
        found = np.asarray(exact.lengths(library(beside), (2000, 3000)))
        np.testing.assert_array_equal(np.delete(found, 7, axis=0), np.delete(alone, 7, axis=0))


# --- the grid -----------------------------------------------------------------------------------------------


@settings(derandomize=True, max_examples=200)
@given(noise=st.floats(1e-3, 1e6), clip_norm=st.floats(1e-30, 1e30))
def test_the_grid_follows_the_noise_and_the_noise_is_never_less_than_it_says(noise, clip_norm):
    grid = exact.grid_of(noise, clip_norm)
    assert math.frexp(float(grid.step))[0] == 0.5  # a power of two
    assert Fraction(float(grid.scale)) * Fraction(float(grid.step)) >= Fraction(noise * clip_norm)
    assert float(grid.scale) * float(grid.step) == pytest.approx(noise * clip_norm, rel=1e-15)
    if noise >= 2.0**-8:
        assert 2.0**22 <= grid.scale <= 2.0**23 * (1 + 1e-15)
    assert (
        exact.grid_of(noise, np.array([clip_norm])).step == grid.step
    )  # who computes with arrays gets the same


def test_vectors_of_which_a_grid_leaves_little_are_refused():
    grid = exact.grid_of(1000.0, 0.7)
    exact.check_room(grid, 0.7, 10**4, noise_multiplier=1000.0)
    with pytest.raises(
        ValueError, match=r"noise_multiplier = 1000 must be at most 58.6 for vectors of 20,000,000"
    ):
        exact.check_room(grid, 0.7, 2 * 10**7, noise_multiplier=1000.0)
