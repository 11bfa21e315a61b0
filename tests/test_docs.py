"""Computed pages of the guide are what the code says today; links point somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def load_builder():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_computed_pages_are_up_to_date():
    for path, content in load_builder().pages().items():
        assert path.read_text() == content, f"{path.name} is old: run python docs/build.py"


@pytest.mark.parametrize("page", ["flower.md", "adapters.md", "ray.md"])
def test_files_that_are_named_exist(page):
    text = (ROOT / "docs" / page).read_text()
    named = [*re.findall(r"`(examples/[^`]+)`", text), *re.findall(r"`python (tests/[^`]+)`", text)]
    scripts = [f"examples/flower/{name}" for name in re.findall(r"python (\w+\.py)", text)]
    for target in [*named, *scripts]:
        assert (ROOT / target).exists(), target


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
