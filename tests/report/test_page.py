"""Nothing that a user supplies becomes markup."""

import json
import re

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fedproof.report.page import Markup, data_block, join, table, tag, void
from fedproof.report.sections import encode_png
from fedproof.report.words import confidence, number, percent, rounded_up

HOSTILE = '</td><script>alert(1)</script><img src=x onerror="alert(1)">\'"&'


@given(st.text())
def test_text_and_attributes_never_add_an_element(text):
    made = tag("p", text, title=text)
    assert made.count("<") == made.count(">") == 2
    assert re.fullmatch(r'<p title="[^"]*">[^<>]*</p>', made, re.DOTALL)


def test_hostile_text_is_escaped_everywhere():
    for made in (tag("p", HOSTILE), join([HOSTILE]), table([HOSTILE], [[HOSTILE, HOSTILE]], caption=HOSTILE)):
        assert "<script" not in made
        assert "<img" not in made
    assert '"' not in void("img", alt=HOSTILE).removeprefix('<img alt="').removesuffix('">')


def test_markup_is_not_escaped_twice():
    assert tag("p", tag("b", "a & b")) == "<p><b>a &amp; b</b></p>"
    assert isinstance(tag("p"), Markup)


@given(st.recursive(st.text() | st.integers(), st.lists, max_leaves=5))
def test_a_data_block_holds_its_value_and_cannot_be_ended(value):
    block = data_block(value)
    inside = block.removeprefix('<script type="application/json">').removesuffix("</script>")
    assert json.loads(inside) == value
    assert "<" not in inside


@pytest.mark.parametrize("shape", [(8, 8), (28, 28), (32, 32, 3), (1, 5)])
def test_a_png_shows_the_pixels_it_was_given(shape, tmp_path):
    image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(0).integers(0, 256, shape).astype(np.uint8)
    (tmp_path / "image.png").write_bytes(encode_png(pixels))
    with image.open(tmp_path / "image.png") as opened:
        assert np.array_equal(np.asarray(opened), pixels)


def test_a_png_needs_bytes():
    with pytest.raises(ValueError, match="must be bytes"):
        encode_png(np.zeros((8, 8)))


@given(st.floats(1e-6, 1e6), st.integers(2, 6))
def test_a_shown_epsilon_is_never_below_the_computed_one(value, digits):
    shown = float(rounded_up(value, digits))
    assert shown >= value * (1 - 1e-8)
    assert shown <= value * (1 + 1.1 * 10.0 ** (1 - digits))


def test_numbers_in_words():
    assert percent(0.9166666).replace("\u00a0", " ") == "91.7 %"
    assert confidence(1e-3).replace("\u00a0", " ") == "99.9 %"
    assert rounded_up(0.06361) == "0.06361"
    assert number(float("inf")) == "∞"
