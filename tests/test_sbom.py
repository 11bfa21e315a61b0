"""The bill of materials, the hashes, the tested versions and what is asked for agree, without any network."""

import json
import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).parents[1]
ENTRY = re.compile(r"([A-Za-z0-9._-]+)==(\S+) --hash=sha256:([0-9a-f]{64})")


@pytest.fixture(scope="module")
def locked():
    """Version and hash by name."""
    lines = (ROOT / "requirements.lock").read_text().splitlines()
    entries = [ENTRY.fullmatch(line) for line in lines if not line.startswith("#")]
    assert all(entries), "every line is a name, a version and one hash"
    found = {canonicalize_name(entry[1]): (Version(entry[2]), entry[3]) for entry in entries}
    assert len(found) == len(entries)
    return found


@pytest.fixture(scope="module")
def bill():
    return json.loads((ROOT / "sbom.json").read_text())


def asked_for():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    groups = [project["dependencies"], *project["optional-dependencies"].values()]
    return [Requirement(text) for group in groups for text in group if not text.startswith("fedproof[")]


def test_whatever_the_package_asks_for_is_locked_in_a_version_it_accepts(locked):
    for requirement in asked_for():
        version, _ = locked[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), requirement


def test_the_lock_is_the_tested_set(locked):
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pins = [Requirement(line) for line in lines if not line.startswith("#")]
    assert {canonicalize_name(pin.name) for pin in pins} == set(locked)
    for pin in pins:
        assert pin.specifier.contains(locked[canonicalize_name(pin.name)][0]), pin


def test_hashes_are_of_different_files(locked):
    assert len({digest for _, digest in locked.values()}) == len(locked)


def test_the_bill_lists_what_is_locked_with_the_same_hashes(locked, bill):
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    listed = {}
    for component in bill["components"]:
        name = canonicalize_name(component["name"])
        (digest,) = component["hashes"]
        assert digest["alg"] == "SHA-256"
        assert component["purl"] == f"pkg:pypi/{name}@{component['version'].replace('+', '%2B')}"
        assert component["licenses"], name
        listed[name] = (Version(component["version"]), digest["content"])
    assert listed == locked


def test_everything_in_the_bill_is_there_because_something_needs_it(bill):
    needs = {entry["ref"]: entry["dependsOn"] for entry in bill["dependencies"]}
    own = bill["metadata"]["component"]["bom-ref"]
    assert set(needs) == {own, *(component["bom-ref"] for component in bill["components"])}
    reached, waiting = set(), [own]
    while waiting:
        ref = waiting.pop()
        if ref not in reached:
            reached.add(ref)
            waiting += needs[ref]
    assert reached == set(needs)


def test_the_build_of_torch_is_stated(locked, bill):
    assert locked["torch"][0].local == "cpu"
    said = [entry["value"] for entry in bill["metadata"]["properties"] if entry["name"] == "fedproof:torch"]
    assert said[0] in (ROOT / "requirements.lock").read_text()


@pytest.mark.parametrize("name", ["requirements.lock", "sbom.json"])
def test_no_file_says_where_something_was_downloaded(name):
    assert "://" not in (ROOT / name).read_text()
