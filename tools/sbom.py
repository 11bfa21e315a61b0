"""Write `requirements.lock` and `sbom.json`: what the tested set is made of, with the hash of every file.

Usage: python tools/sbom.py, in the environment that was tested (`make sbom`). Versions come from
`constraints.txt`, hashes from the index pip installs from, licences and dependencies from what is installed.
Nothing is installed, and neither file holds an address: a hash is worth more than where a file came from.
"""

import json
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import Distribution, distribution
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import NormalizedName, canonicalize_name

ROOT = Path(__file__).parents[1]
PLATFORM = "Python 3.11 on Linux x86_64"
TORCH = "torch is the CPU wheel that was tested: a build with CUDA has another hash and would be refused."
HEADER = f"""\
# The tested set with the SHA-256 of every file, for {PLATFORM}; written by tools/sbom.py.
# {TORCH}
"""


def pins() -> list[Requirement]:
    """The lines of `constraints.txt`."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith("#")]


def hashes() -> dict[str, str]:
    """SHA-256 by name of the files that pip would install for the tested set."""
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.json"
        options = ["--dry-run", "--ignore-installed", "--no-deps", "--quiet", "--report", str(report)]
        command = [sys.executable, "-m", "pip", "install", *options, "-r", str(ROOT / "constraints.txt")]
        subprocess.run(command, check=True)
        found = json.loads(report.read_text())["install"]
    return {
        canonicalize_name(entry["metadata"]["name"]): entry["download_info"]["archive_info"]["hashes"][
            "sha256"
        ]
        for entry in found
    }


def lock(installed: Iterable[Distribution], known: dict[str, str]) -> str:
    """`requirements.lock`, for `pip install --require-hashes`."""
    lines = [f"{one.name}=={one.version} --hash=sha256:{known[_key(one)]}" for one in installed]
    return HEADER + "\n".join(lines) + "\n"


def bill(installed: list[Distribution], known: dict[str, str]) -> dict[str, Any]:
    """The bill of materials in CycloneDX 1.6; without time and serial number, so that it can be compared."""
    own = distribution("fedproof")
    everyone = {_key(one): _purl(one) for one in (own, *installed)}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "version": 1,
        "metadata": {
            "component": _component(own, "application"),
            "properties": [
                {"name": "fedproof:platform", "value": PLATFORM},
                {"name": "fedproof:torch", "value": TORCH},
            ],
        },
        "components": [
            _component(one, "library") | {"hashes": [{"alg": "SHA-256", "content": known[_key(one)]}]}
            for one in installed
        ],
        "dependencies": [
            {"ref": everyone[name], "dependsOn": sorted(everyone[other] for other in asked)}
            for name, asked in sorted(needs([own, *installed]).items())
        ],
    }


def _component(one: Distribution, kind: str) -> dict[str, Any]:
    return {
        "type": kind,
        "bom-ref": _purl(one),
        "name": one.name,
        "version": one.version,
        "purl": _purl(one),
        "licenses": _licences(one),
    }


def _licences(one: Distribution) -> list[dict[str, Any]]:
    """What the distribution says of itself: an SPDX expression, a short name, classifiers, or a file."""
    expressions, names, classifiers = (
        one.metadata.get_all(field) or [] for field in ("License-Expression", "License", "Classifier")
    )
    if expressions:
        return [{"expression": expressions[0]}]
    # Some put the whole text there, and old tools a word that says nothing.
    short = [name for name in names if "\n" not in name and name != "UNKNOWN"]
    kinds = [text.rpartition(" :: ")[2] for text in classifiers if text.startswith("License")]
    titles = [line.strip() for line in (one.read_text("LICENSE") or "").splitlines() if line.strip()][:1]
    return [{"license": {"name": name}} for name in short or kinds or titles]


def needs(installed: Iterable[Distribution]) -> dict[str, set[NormalizedName]]:
    """What each distribution that `fedproof[dev]` leads to asks for, by name.

    A distribution is visited again when another of its extras is found to be wanted.
    """
    known = {_key(one): one for one in installed}
    extras: dict[str, set[str]] = {"fedproof": {"", "dev"}}
    found: dict[str, set[NormalizedName]] = {}
    waiting = ["fedproof"]
    while waiting:
        name = waiting.pop()
        if name not in known:
            raise SystemExit(f"constraints.txt lacks {name}, which something in it needs")
        wanted = _wanted(known[name], extras[name])
        found[name] = {canonicalize_name(requirement.name) for requirement in wanted} - {name}
        for requirement in wanted:
            other = canonicalize_name(requirement.name)
            before = extras.get(other, set())
            extras[other] = before | requirement.extras | {""}
            waiting += [other] if extras[other] != before else []
    return found


def _wanted(one: Distribution, extras: set[str]) -> list[Requirement]:
    """Its requirements, as far as they are asked for on this platform with these extras."""
    return [
        requirement
        for requirement in map(Requirement, one.requires or ())
        if not requirement.marker or any(requirement.marker.evaluate({"extra": extra}) for extra in extras)
    ]


def _purl(one: Distribution) -> str:
    return f"pkg:pypi/{_key(one)}@{one.version.replace('+', '%2B')}"


def _key(one: Distribution) -> str:
    return canonicalize_name(one.name)


def main() -> None:
    """Write both files."""
    installed = sorted((distribution(pin.name) for pin in pins()), key=_key)
    for pin, one in zip(sorted(pins(), key=lambda pin: canonicalize_name(pin.name)), installed, strict=True):
        if not pin.specifier.contains(one.version):
            raise SystemExit(f"{pin} is to be tested, but {one.version} is installed")
    known = hashes()
    (ROOT / "requirements.lock").write_text(lock(installed, known))
    (ROOT / "sbom.json").write_text(json.dumps(bill(installed, known), indent=1, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    main()
