"""No file, however hostile, causes anything but a result or a ValueError of one clear line.

`FEDPROOF_FUZZ_EXAMPLES` is the number of inputs for each reader; `make fuzz` sets it to a million in all.
"""

import os
import resource
import time
from collections import Counter

import pytest

from tests.hostile.readers import all_readers

EXAMPLES = int(os.environ.get("FEDPROOF_FUZZ_EXAMPLES", "1000"))
START = int(os.environ.get("FEDPROOF_FUZZ_START", "0"))
TEXTS = [
    "config",
    "overrides",
    "certificate",
    "verify",
    "bounds on costs",
    "verify bounds",
    "ledger",
    "ledger of a site",
    "leaf",
    "tweets",
    "glove",
    "summary",
]
BINARIES = [
    "scores",
    "release",
    "centre",
    "idx",
    "cifar",
    "weights",
    "part scores",
    "part models",
    "part record",
]
PACKED = ["packed tweets", "zip", "tar"]
NAMES = TEXTS + BINARIES + PACKED
MEBIBYTE = 2**20


@pytest.fixture(scope="module")
def readers(tmp_path_factory):
    return all_readers(tmp_path_factory.mktemp("valid"))


def test_no_reader_is_forgotten(readers):
    assert sorted(readers) == sorted(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_valid_files_are_read(readers, tmp_path, name):
    for content in readers[name].valid:
        readers[name].read(tmp_path, content)


@pytest.mark.parametrize("name", NAMES)
def test_hostile_files_are_refused_with_one_line(readers, tmp_path, name, record_property):
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    outcomes = Counter()
    unhandled = []
    for number in range(START, START + EXAMPLES):
        outcome = _outcome(readers[name], tmp_path, number)
        outcomes[outcome] += 1
        if outcome not in ("read", "refused"):
            unhandled.append(f"number {number}: {outcome}")
    record_property("hostile_inputs", outcomes.total())
    record_property("refused", outcomes["refused"])
    record_property("unhandled", len(unhandled))
    record_property("inputs_per_cpu_second", round(EXAMPLES / (time.process_time() - began)))
    assert not unhandled, f"{name}: {len(unhandled)} of {EXAMPLES}, the first ones {unhandled[:5]}"
    assert outcomes["refused"] > EXAMPLES // 20
    # Files are of a few kilobytes: whatever their headers say, memory must not follow.
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 200 * MEBIBYTE


def _outcome(reader, folder, number):
    """What a reader does with hostile input `number`: "read", "refused", or the fault that it shows."""
    mutation = reader.mutations[number % len(reader.mutations)]
    content = mutation(reader.valid[number % len(reader.valid)], number)
    try:
        reader.read(folder, content)
    except ValueError as error:
        message = str(error)
        return "refused" if message and "\n" not in message else f"not one line: {message!r}"
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "read"
