"""Computed pages of the guide are what the code says today; links point somewhere."""

import importlib.util
import re
from pathlib import Path

import pytest

from paper.provenance import without_marks

ROOT = Path(__file__).parents[1]


def load_builder():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_computed_pages_are_up_to_date():
    for path, content in load_builder().pages().items():
        kept = without_marks if path.name == "reproduction.md" else str
        assert kept(path.read_text()) == kept(content), f"{path.name} is old: run python docs/build.py"


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


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_rooms_and_files_that_are_named_exist(page):
    named = re.findall(r"`((?:\w+/)*(?:\w+\.py|\w+/))`", (ROOT / page).read_text())
    written = {"parts/", "private/", "site/"}  # by a run, and by make docs
    for target in set(named) - written:
        assert any((home / target).exists() for home in (ROOT, ROOT / "src" / "fedproof")), target


def test_the_hops_to_a_gradient_are_as_they_are_told():
    text = (ROOT / "docs" / "architecture.md").read_text()
    hops = re.findall(r"^\| `([\w/]+\.py)` \| `(\w+)` \|", text, re.M)
    assert len(hops) == 7  # and six hops between them
    for path, function in hops:
        assert f"def {function}(" in (ROOT / "src" / "fedproof" / path).read_text(), (path, function)
