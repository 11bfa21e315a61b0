"""The table of numerical errors in the guide is true on this machine."""

import importlib.util
import re
from pathlib import Path

DOCS = Path(__file__).parents[1] / "docs"


def test_no_error_is_above_the_one_in_the_guide():
    spec = importlib.util.spec_from_file_location("docs_numerics", DOCS / "numerics.py")
    numerics = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(numerics)
    rows = re.findall(r"\(`(\w+)`\) \| (\d+) \| (\S+) \|", (DOCS / "numerics.md").read_text())
    stated = {name: (int(count), float(error)) for name, count, error in rows}
    found = numerics.measure()
    assert stated.keys() == found.keys()
    for name, (count, error) in found.items():
        assert stated[name][0] == count
        assert error <= stated[name][1], name
    # Sizes are decided with a margin of 1e-12 and more: what decides them must be better than that.
    assert stated["cell_masses"][1] < 1e-11
    assert stated["tradeoffs"][1] < 1e-11
