"""No number of accounting, certificates or readers moves unless somebody writes `values.json` again."""

import json
import math

import pytest

from tests.golden.values import FILE, found

WRITTEN = json.loads(FILE.read_text())


@pytest.fixture(scope="module")
def again():
    return json.loads(json.dumps(found()))


def same(written, now):
    """Equal; floats to 1e-12, because another processor's logarithm may differ in the last digits."""
    if isinstance(written, dict):
        return written.keys() == now.keys() and all(same(value, now[key]) for key, value in written.items())
    if isinstance(written, list):
        return len(written) == len(now) and all(map(same, written, now))
    if isinstance(written, float) and isinstance(now, float):
        return math.isclose(written, now, rel_tol=1e-12, abs_tol=1e-12)
    return type(written) is type(now) and written == now


@pytest.mark.parametrize("part", WRITTEN)
def test_every_number_is_what_it_was(part, again):
    assert again[part].keys() == WRITTEN[part].keys()
    moved = [name for name, value in WRITTEN[part].items() if not same(value, again[part][name])]
    assert not moved


def test_all_parts_are_there(again):
    assert again.keys() == WRITTEN.keys()
    assert sum(map(len, WRITTEN.values())) > 200
