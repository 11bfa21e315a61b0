"""The code in the pages of the guide runs."""

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


def blocks(page):
    return re.findall(r"```python\n(.*?)```", (DOCS / page).read_text(), re.S)


def test_the_flower_page(flower):
    names = {}
    for block in blocks("flower.md"):
        exec(block, names)
    assert names["found"].mechanism.sampling.cohort == 20


def test_the_page_of_adapters():
    names = {}
    for block in blocks("adapters.md"):
        exec(block, names)
    assert names["certificate"].sound
    assert names["mechanism"].reasons


@pytest.mark.parametrize("page", ["flower.md", "adapters.md", "ray.md"])
def test_files_that_are_named_exist(page):
    text = (DOCS / page).read_text()
    for target in re.findall(r"\]\((\.\./[^)]+)\)", text):
        assert (DOCS / target).exists(), target
    for script in re.findall(r"python (\w+\.py)", text):
        assert (DOCS.parent / "examples" / "flower" / script).exists(), script
