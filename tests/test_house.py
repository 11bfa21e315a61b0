"""The figures of the house can be had: what counts the calls from `run` to a step still runs every way."""

import re
from pathlib import Path

import pytest

import fedproof
from tools import house


@pytest.mark.slow
@pytest.mark.parametrize("way", house.PATHS)
def test_every_way_to_a_step_is_counted(way):
    found = house.chains(house.ROOT, *house.PATHS[way])
    assert found
    assert all(" calls: experiment.run > engines.train_ensemble > " in one for one in found)


_UNPACKED = "".join(f"(?<!{name})" for name in ("archive", "packed", "gzip", "tarfile", "RunFolder"))
READS = re.compile(
    rf"\.read_bytes\(|\.read_text\(|(?<![\w.])open\(|os\.open\(|np\.load\(|{_UNPACKED}\.open\((?!\"w)"
)
OWN = {  # what fedproof itself has brought, or writes
    "files.py",
    "progress.py",
    "ensemble/fingerprints.py",
    "report/page.py",
}
MAPPED = {"certificates/scores.py", "folder.py", "integrations/flower/files.py"}  # np.load, once it is a file
DEMO = {"cli/training.py"}


def test_files_are_opened_in_one_place():
    """Elsewhere a pipe would hang, a device would fill the memory, and nobody would name the file."""
    package = Path(fedproof.__file__).parent
    found = {}
    for path in sorted(package.rglob("*.py")):
        name = str(path.relative_to(package))
        hits = [match[0] for match in READS.finditer(path.read_text())]
        if hits and name not in OWN:
            found[name] = hits
    assert {name for name, hits in found.items() if set(hits) == {"np.load("}} <= MAPPED
    assert found.keys() - MAPPED == DEMO
