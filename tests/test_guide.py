"""The pages of the guide do what they say, and build into a site without a warning."""

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import pytest

from fedproof.accounting.ledger import load_ledger
from fedproof.certificates import loads
from tests.patience import finished

ROOT = Path(__file__).parents[1]
QUICK = ["index", "certify", "loops", "plan", "audit"]
TRAINING = ["train", "serve", "extending"]
SHOWN = [
    *("certificates", "choosing", "reproduction", "theory", "numerics", "ray", "configuration", "api"),
    "architecture",
    "little",
    "secure-aggregation",
    "records",
    "glossary",
]


def load_guide():
    spec = spec_from_file_location("guide", Path(__file__).with_name("guide.py"))
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def play(tmp_path, monkeypatch):
    """`play(page)`: run a page in a folder of its own; the names its Python leaves behind."""
    monkeypatch.chdir(tmp_path)
    return lambda page, **how: load_guide().run_page(ROOT / "docs" / f"{page}.md", tmp_path, **how)


@pytest.mark.parametrize("page", QUICK)
def test_a_page_runs_as_it_is_printed(play, page):
    play(page)


@pytest.mark.slow
@pytest.mark.parametrize("page", TRAINING)
def test_a_page_that_trains_runs_as_it_is_printed(play, page):
    play(page, exact=False)


def test_the_page_of_adapters_runs(play):
    names = play("adapters")
    assert names["certificate"].sound
    assert names["mechanism"].doubts


def test_the_flower_page_runs(play):
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    assert play("flower")["found"].mechanism.sampling.cohort == 20


@pytest.mark.slow
def test_a_flower_user_gets_from_zero_to_a_certificate(play, tmp_path, monkeypatch):
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
    for name in ("FLWR_TELEMETRY_ENABLED", "RAY_USAGE_STATS_ENABLED", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"):
        monkeypatch.setenv(name, "0")
    play("federation", exact=False)
    certificate = loads((tmp_path / "runs/clinic/certificate.json").read_text())
    assert certificate.sound
    assert certificate.curve[10] > 0.5
    assert (tmp_path / "runs/clinic/report.html").exists()
    assert load_ledger(tmp_path / "runs/clinic/ledger.json").replicas == 1


def test_no_page_is_left_out():
    pages = {path.stem for path in (ROOT / "docs").glob("*.md")}
    assert pages == {*QUICK, *TRAINING, *SHOWN, "adapters", "flower", "federation"}
    runnable = {"console", "pycon", "python"}
    for page in SHOWN:
        found = {language for language, _ in load_guide().blocks(ROOT / "docs" / f"{page}.md")}
        assert page == "api" or not found & runnable, f"{page}.md has a block that nobody runs"


@pytest.mark.parametrize(
    ("page", "message"),
    [
        ("```console\n$ echo 1\n2\n```\n", "instead of\n2"),
        ("```console\n$ false\n```\n", "false"),
        ("```pycon\n>>> 1 + 1\n3\n\n```\n", "Expected:"),
        ("```python\nassert False, 'never'\n```\n", "never"),
    ],
)
def test_a_page_that_is_wrong_is_found_out(tmp_path, page, message):
    (tmp_path / "page.md").write_text(page)
    with pytest.raises(AssertionError, match=message):
        load_guide().run_page(tmp_path / "page.md", tmp_path)


# --- the site ---------------------------------------------------------------------------------------------


def build(source, destination):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict"]  # with --quiet warnings would not count
    options = ["--config-file", str(source / "mkdocs.yml"), "--site-dir", str(destination)]
    return finished([*command, *options])


def copy_of_the_guide(folder):
    (folder / "mkdocs.yml").write_bytes((ROOT / "mkdocs.yml").read_bytes())
    (folder / "docs").mkdir()
    for path in (ROOT / "docs").iterdir():
        (folder / "docs" / path.name).symlink_to(path)
    return folder


def test_the_site_builds_without_a_warning_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'fedproof[dev]'")
    done = build(ROOT, tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "index.html").read_text()
    assert 'src="http' not in page
    assert 'rel="stylesheet" href="http' not in page


def test_dead_links_and_forgotten_pages_are_errors(tmp_path):
    pytest.importorskip("mkdocs", reason="mkdocs is not installed: pip install 'fedproof[dev]'")
    source = copy_of_the_guide(tmp_path)
    (source / "docs" / "index.md").unlink()
    links = ("[gone](gone.md)", "[gone](plan.md#gone)", "[outside](../README.md)")
    (source / "docs" / "index.md").write_text("\n\n".join(["# Start", *links]))
    (source / "docs" / "new.md").write_text("# Start\n\nfine\n")
    done = build(source, tmp_path / "site")
    said = done.stdout + done.stderr
    assert done.returncode != 0
    for warning in ("gone.md", "#gone", "README.md", "not included in the"):
        assert warning in said
    # Each of them alone would have been enough.
    assert "Aborted with 4 warnings in strict mode!" in said
