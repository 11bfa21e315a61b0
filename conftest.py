"""What holds for every test: how they are ordered, how many threads they take, and what they leave behind."""

import gc
import os
import random
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby
from pathlib import Path
from typing import Any

import hypothesis
import pytest

# Workers share the cores: a second thread of one would only wait, and spin while it waits. Commands that a
# test starts inherit this; tests of threads ask for their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Ray's workers give way to everybody: beside other tests, who never rest, they would wait for minutes.
os.environ.setdefault("RAY_worker_niceness", "0")

# How long an example takes says who else uses the machine.
hypothesis.settings.register_profile(
    "patient", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("patient")
# For tests that are run once more because something around them differs: --hypothesis-profile=few.
hypothesis.settings.register_profile("few", hypothesis.settings.get_profile("patient"), max_examples=5)

# Doctests of an integration are collected only where its framework is installed.
collect_ignore_glob = [] if find_spec("flwr") else ["src/fedproof/integrations/flower/*"]
# Slow beside those that say so: all whose cases took more than a quarter of a second of processor time, and
# whatever needs something that takes seconds to make.
SLOW = frozenset(Path(__file__).with_name("tests").joinpath("slow.txt").read_text().split())
DEAR = frozenset({"browser", "real_data"})
# Files that take longest, longest first: one of them begun last would leave the other worker idle.
LONGEST = Path(__file__).with_name("tests").joinpath("longest.txt").read_text().split()
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shuffle`."""
    told = "files, and the tests of each, in an order that SEED repeats; `random` draws one and says which"
    parser.addoption("--shuffle", metavar="SEED", help=told)


def pytest_configure(config: pytest.Config) -> None:
    """Draw the seed, or take that of the process that started this worker."""
    if config.option.shuffle == "random":
        drawn = str(random.SystemRandom().randrange(10**6))
        config.option.shuffle = getattr(config, "workerinput", {}).get("shuffle", drawn)


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    """All workers have one order, or they could not share the tests."""
    node.workerinput["shuffle"] = node.config.option.shuffle


def pytest_sessionstart(session: pytest.Session) -> None:
    """Name the seed, so that an order that fails can be had again."""
    if session.config.option.shuffle is not None and not hasattr(session.config, "workerinput"):
        session.config.get_terminal_writer().line(f"order: --shuffle={session.config.option.shuffle}")


@pytest.hookimpl(tryfirst=True)  # before what is slow is left out
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the slow ones. Order or shuffle files; the tests of each stay together, they share fixtures."""
    for item in items:
        if getattr(item, "originalname", None) in SLOW or DEAR & set(getattr(item, "fixturenames", ())):
            item.add_marker(pytest.mark.slow)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    if config.option.shuffle is None:
        place = {config.rootpath / name: number for number, name in enumerate(LONGEST)}
        files.sort(key=lambda tests: place.get(tests[0].path, len(place)))
    else:
        rng = random.Random(config.option.shuffle)
        rng.shuffle(files)
        for tests in files:
            rng.shuffle(tests)
    items[:] = [item for tests in files for item in tests]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now stays: nobody needs to look through it for garbage again."""
    gc.collect()
    gc.freeze()


def pytest_unconfigure() -> None:
    """At the end everything goes, in the order that libraries expect."""
    gc.unfreeze()


@pytest.fixture(autouse=True, scope="module")
def own_leftovers() -> Iterator[None]:
    """Files and sockets that a module's tests forgot are found, and fail, in that module and in no other."""
    yield
    gc.collect()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """How to get what skipped tests want."""
    skipped = [str(report.longrepr) for report in terminalreporter.stats.get("skipped", [])]
    if not any(map(shutil.which, BROWSERS)) and (count := sum("chromium" in reason for reason in skipped)):
        terminalreporter.write_line(
            f"{count} tests of pages were skipped, they need a browser: apt install chromium (macOS: brew)"
        )
