"""Computed pages of the guide are what the code says today; links point somewhere."""

import importlib.util
import re
from pathlib import Path

ROOT = Path(__file__).parents[1]


def load_builder():
    spec = importlib.util.spec_from_file_location("docs_build", ROOT / "docs" / "build.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_computed_pages_are_up_to_date():
    for path, content in load_builder().pages().items():
        assert path.read_text() == content, f"{path.name} is old: run python docs/build.py"


def test_links_between_pages_lead_somewhere():
    for page in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")]:
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
