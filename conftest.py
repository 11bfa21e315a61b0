"""What holds for every test: how they are ordered, how many threads they take, and what they leave behind."""

import gc
import os
import random
import shutil
from collections.abc import Iterator
from importlib.util import find_spec
from itertools import groupby

import pytest

# Two workers on two cores: a second thread of either would only wait, and spin while it waits. Commands that
# a test starts inherit this; tests of threads ask for their own number.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# Doctests of an integration are collected only where its framework is installed.
collect_ignore_glob = [] if find_spec("flwr") else ["src/fedproof/integrations/flower/*"]
BROWSERS = ("chromium", "chromium-browser", "google-chrome")


def pytest_addoption(parser: pytest.Parser) -> None:
    """`--shuffle` and `--shuffle=SEED`."""
    parser.addoption(
        "--shuffle",
        nargs="?",
        type=int,
        const=-1,
        metavar="SEED",
        help="files, and tests in each file, in a random order that SEED repeats",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    """One seed for all workers: they are told the options of the process that starts them."""
    if config.option.shuffle == -1:
        config.option.shuffle = random.SystemRandom().randrange(10**6)


def pytest_report_header(config: pytest.Config) -> list[str]:
    """The seed, so that an order that fails can be had again."""
    return [] if config.option.shuffle is None else [f"order: --shuffle={config.option.shuffle}"]


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle files, and the tests of each; a file's tests stay together, for they share its fixtures."""
    if config.option.shuffle is None:
        return
    rng = random.Random(config.option.shuffle)
    files = [list(tests) for _, tests in groupby(items, key=lambda item: item.path)]
    rng.shuffle(files)
    for tests in files:
        rng.shuffle(tests)
    items[:] = [item for tests in files for item in tests]


def pytest_collection_finish(session: pytest.Session) -> None:
    """What is imported by now stays: nobody needs to look through it for garbage again."""
    gc.collect()
    gc.freeze()


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
            f"{count} tests of pages need a browser: apt install chromium (or any package with chromium, "
            "chromium-browser or google-chrome in the path)"
        )
