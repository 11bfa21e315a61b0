"""No file, however hostile, causes anything but a result or a ValueError of one clear line.

`FEDPROOF_FUZZ_EXAMPLES` is the number of inputs for each reader; `make fuzz` sets it to a million in all.
"""

import os
import resource
import time

import pytest

from tests.hostile.readers import all_readers

EXAMPLES = int(os.environ.get("FEDPROOF_FUZZ_EXAMPLES", "2500"))
START = int(os.environ.get("FEDPROOF_FUZZ_START", "0"))
TEXTS = [
    "config",
    "overrides",
    "certificate",
    "verify",
    "ledger",
    "leaf",
    "tweets",
    "glove",
    "summary",
    "metrics",
]
BINARIES = ["scores", "idx", "cifar", "weights", "part scores", "part models", "part record"]
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
    reader, refused = readers[name], 0
    before, began = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time()
    # Recomputing a certificate is slow, and what it reads has been read by `certificate` already.
    examples = EXAMPLES // 20 if name == "verify" else EXAMPLES
    for number in range(START, START + examples):
        content = reader.mutations[number % len(reader.mutations)](
            reader.valid[number % len(reader.valid)], number
        )
        try:
            reader.read(tmp_path, content)
        except ValueError as error:
            refused += 1
            message = str(error)
            assert message, f"{name}, number {number}: no message"
            assert "\n" not in message, f"{name}, number {number}: {message!r}"
        except Exception as error:
            raise AssertionError(f"{name}, number {number}: {type(error).__name__}: {error}") from error
    record_property("inputs_per_cpu_second", round(examples / (time.process_time() - began)))
    assert refused > examples // 20
    # Files are of a few kilobytes: whatever their headers say, memory must not follow.
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown < 200 * MEBIBYTE
