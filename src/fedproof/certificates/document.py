"""Certificate files: JSON with schema, version and a checksum of every field; written, read and verified.

Two kinds are read and written alike: sizes for predictions, and bounds on an attacker's cost. Checksums tell
a damaged file from a whole one. They are no signatures: whoever changes a field can renew them.
"""

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import ArrayLike

from fedproof import check
from fedproof.arrays import Integers
from fedproof.certificates.api import certificate_of_scores, check_any, settings_for
from fedproof.certificates.certificate import Certificate, CostSettings, Settings
from fedproof.certificates.inefficacy import Inefficacy, bounds_of_costs, cost_settings_for
from fedproof.certificates.scores import Array, check_costs, check_labels, check_means, load
from fedproof.certificates.soundness import unmet_by, unmet_by_costs
from fedproof.digests import fingerprint
from fedproof.files import parse_json
from fedproof.mechanisms.codec import describe, restore
from fedproof.statements import Statement

VERSION = 3  # of the format, and of the rules by which its numbers are computed
_DEPTH = 12  # a mechanism holds queries, which hold a sampling
_RELATIVE_ERROR = 1e-9  # another processor's logarithm may differ in the last digits
_FROM_LABELS = ("labels", "labels_sha256", "accuracy", "certified_accuracy")

Result = TypeVar("Result", Certificate, Inefficacy)


@dataclass(frozen=True, kw_only=True)
class _Kind:
    """One kind of file."""

    schema: str  # what it calls itself
    source: str  # what its numbers were made from
    settings: type[Settings] | type[CostSettings]  # what it holds, with the result
    result: type[Certificate] | type[Inefficacy]
    derived: Mapping[str, str]  # fields for readers, which follow from the rest, and their attributes

    @property
    def setting_names(self) -> tuple[str, ...]:
        """Fields of the settings."""
        return tuple(field.name for field in fields(self.settings))

    @property
    def result_names(self) -> tuple[str, ...]:
        """Fields of the result."""
        return tuple(field.name for field in fields(self.result) if field.name != "settings")

    @property
    def keys(self) -> frozenset[str]:
        """All fields but the checksums."""
        return frozenset(("schema", "version", *self.setting_names, *self.result_names, *self.derived))


_KINDS = {
    kind.schema: kind
    for kind in (
        _Kind(
            schema="fedproof/certificate",
            source="scores",
            settings=Settings,
            result=Certificate,
            derived={"sound": "sound", "certified_accuracy": "curve"},
        ),
        _Kind(
            schema="fedproof/inefficacy",
            source="costs",
            settings=CostSettings,
            result=Inefficacy,
            derived={"sound": "sound"},
        ),
    )
}


def _kind_of(result: type[Certificate] | type[Inefficacy]) -> _Kind:
    return next(kind for kind in _KINDS.values() if kind.result is result)


def dumps(certificate: Certificate | Inefficacy) -> str:
    """The certificate, or the bounds on a cost, as the text of a file."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for name, value in document_of(certificate).items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loads(text: str | bytes) -> Certificate:
    """The certificate in a file's text; ValueError names the field if it is none, or was altered."""
    return _unaltered(text, Certificate)


def loads_inefficacy(text: str | bytes) -> Inefficacy:
    """The bounds on an attacker's cost in a file's text; ValueError as of `loads`."""
    return _unaltered(text, Inefficacy)


def _unaltered(text: str | bytes, wanted: type[Result]) -> Result:
    document = parse(text)
    wrong = mismatched(document)
    if wrong:
        raise ValueError(f"certificate was altered: {', '.join(wrong)} does not match its checksum")
    found = certificate_of(document)
    if not isinstance(found, wanted):
        raise ValueError(f"schema = {document['schema']!r} must be {_kind_of(wanted).schema!r}")
    hidden = [one.code for one in _derived(found) if one not in found.unmet]
    if hidden:
        raise ValueError(f"unmet: {', '.join(hidden)} follows from the settings, and is not there")
    return found


def _derived(found: Certificate | Inefficacy) -> tuple[Statement, ...]:
    """The unmet conditions that follow from the settings alone, without scores or costs."""
    if isinstance(found, Inefficacy):
        return unmet_by_costs(found.settings)
    return unmet_by(found.settings, exact=found.num_replicas is None)


def document_of(certificate: Certificate | Inefficacy) -> dict[str, Any]:
    """The certificate as JSON values."""
    kind, settings = _kind_of(type(certificate)), certificate.settings
    body: dict[str, Any] = {"schema": kind.schema, "version": VERSION}
    body |= {name: describe(getattr(settings, name)) for name in kind.setting_names}
    body |= {name: describe(getattr(certificate, name)) for name in kind.result_names}
    body |= {name: describe(getattr(certificate, attribute)) for name, attribute in kind.derived.items()}
    return body | {"checksums": {name: checksum(value) for name, value in body.items()}}


def parse(text: str | bytes) -> dict[str, Any]:
    """The JSON document of a certificate file, with the right schema, version and fields."""
    try:
        document = parse_json(text)
    except ValueError as error:
        raise ValueError(f"certificate is not a JSON document: {check.one_line(error)}") from error
    schema = document.get("schema") if isinstance(document, Mapping) else None
    if not isinstance(schema, str) or schema not in _KINDS:
        raise ValueError(f"schema must be {' or '.join(map(repr, _KINDS))}: this is not a certificate")
    version = document.get("version")
    if type(version) is not int or version != VERSION:
        raise ValueError(f"version = {version!r} must be {VERSION}: written by another release")
    odd = sorted(set(document) ^ (_KINDS[schema].keys | {"checksums"}))
    if odd:
        raise ValueError(f"certificate has missing or unknown fields: {', '.join(odd)}")
    _check_texts(document, "certificate")
    return dict(document)


def _check_texts(value: Any, name: str, depth: int = 0) -> None:
    """Raise ValueError if a text in a document holds what no reader sees or what turns the reading around."""
    if depth > _DEPTH:
        raise ValueError(f"{name} is nested deeper than anything that a certificate holds")
    if isinstance(value, str) and not check.shows_all(value):
        raise ValueError(f"{name} holds the text {value[:80]!a}, which has characters that cannot be shown")
    if isinstance(value, Mapping):
        for key, part in value.items():
            _check_texts(key, name, depth + 1)
            _check_texts(part, key, depth + 1)
    if isinstance(value, list):
        for part in value:
            _check_texts(part, name, depth + 1)


def source_of(document: Mapping[str, Any]) -> str:
    """What the numbers of a parsed document were made from: scores, or costs."""
    return _KINDS[document["schema"]].source


def mismatched(document: Mapping[str, Any]) -> list[str]:
    """Names of the fields whose value does not match its checksum."""
    sums = document["checksums"]
    if not isinstance(sums, Mapping) or set(sums) != set(document) - {"checksums"}:
        return ["checksums"]
    return [name for name in sums if checksum(document[name]) != sums[name]]


def certificate_of(document: Mapping[str, Any]) -> Certificate | Inefficacy:
    """What a parsed document holds, whatever its checksums say."""
    kind = _KINDS[document["schema"]]
    stated, found = (
        {name: restore(document[name], name=name) for name in names}
        for names in (kind.setting_names, kind.result_names)
    )
    try:
        settings: Any = kind.settings(**stated)
        return kind.result(settings=settings, **found)
    except TypeError as error:
        raise ValueError(f"certificate has a field of the wrong type: {error}") from error


def checksum(value: Any) -> str:
    """First half of the sha256 of the canonical JSON text of a value.

    >>> checksum(1) == checksum(1.0)
    False
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


# --- every number derived again from the scores, or the costs, that a file was made from --------------------


def verify(
    text: str | bytes, scores: ArrayLike | str | Path, labels: ArrayLike | str | Path | None = None
) -> tuple[str, ...]:
    """What does not hold in a certificate file, one sentence per field that it names; empty if all holds.

    Checks the checksum of every field, then computes the certificate again from `scores`, `labels` and the
    settings in the file and compares it field by field. Without `labels` those of the file are taken, and
    what follows from them is not verified (`unverified`). For bounds on an attacker's cost `scores` are the
    costs.

    Assumes: settings are claims, of the mechanism above all; nothing in the scores shows whether training was
    executed like that. Checksums are no signatures: a file whose fields agree with each other and with the
    scores is verified, whoever wrote it.

    Raises:
        ValueError: `text` is no certificate of a known version, `scores` are no scores, `labels` no labels,
            or the file holds none to compare them with.
    """
    from dp_accounting import UnsupportedEventError  # here: most of a second, for what verifies alone

    document = parse(text)
    altered = [f"{name}: does not match its checksum, the file was altered" for name in mismatched(document)]
    name = source_of(document)
    if labels is not None and document.get("labels") is None:
        raise ValueError("labels: the certificate holds none to compare them with")
    array = load(scores, name)
    try:
        certificate = certificate_of(document)
    except ValueError as error:
        return (*altered, str(error))
    _check(certificate, array)
    stated, found = document[f"{name}_sha256"], fingerprint(array)
    if stated != found:
        return (*altered, f"{name}_sha256: the file says {stated}, the {name} give {found}")
    known = None if labels is None else check_labels(load(labels, "labels"), *array.shape[-2:])
    try:
        with np.errstate(all="ignore"):  # a file may state numbers that no computation survives
            again = document_of(_recompute(certificate, array, known))
        whole = {field: value for field, value in document.items() if field != "checksums"}
    except (ValueError, UnsupportedEventError) as error:
        return (*altered, check.one_line(error))
    except ArithmeticError as error:
        return (*altered, f"mechanism: nothing can be derived from its numbers: {check.one_line(error)}")
    sources = dict.fromkeys(whole, name) | dict.fromkeys(() if known is None else _FROM_LABELS, "labels")
    differ = [field for field, value in whole.items() if not _same(value, again[field])]
    return (*altered, *(f"{at}: {_first_difference(whole[at], again[at], sources[at])}" for at in differ))


def unverified(text: str | bytes, labels: ArrayLike | str | Path | None = None) -> tuple[str, ...]:
    """What `verify` takes from a certificate file as it is, though it could be checked; empty if nothing.

    Without `labels` these are the labels in the file and the accuracies that follow from them.
    """
    known = parse(text).get("labels") is not None
    return _FROM_LABELS if known and labels is None else ()


def _check(certificate: Certificate | Inefficacy, array: Array) -> None:
    if isinstance(certificate, Inefficacy):
        check_costs(array)
    elif certificate.num_replicas is None:
        check_means(array)
    else:
        check_any(certificate.settings, array)


def _recompute(
    certificate: Certificate | Inefficacy, array: Array, labels: Integers | None
) -> Certificate | Inefficacy:
    """The same again, from what was asked for: whatever follows from that is derived, not copied."""
    settings = certificate.settings
    asked: dict[str, Any] = {field.name: getattr(settings, field.name) for field in fields(settings)}
    asked["unmet"], asked["assumptions"] = asked.pop("stated_unmet"), asked.pop("stated_assumptions")
    asked["delta"] = None
    if settings.mechanism is not None and settings.privacy is not None:  # accounted, not given
        asked["privacy"], asked["delta"] = None, settings.privacy.delta
    if isinstance(certificate, Inefficacy):
        return bounds_of_costs(cost_settings_for(**asked), array)
    again = settings_for(**asked, exact=certificate.num_replicas is None)
    found = certificate_of_scores(again, array, certificate.labels if labels is None else labels)
    # Of what gave the scores: nothing in them shows it, but the models do.
    stated = {name: getattr(certificate, name) for name in ("models_sha256", "config_sha256")}
    return replace(found, **stated)


def _first_difference(stated: Any, derived: Any, source: str) -> str:
    """Where and how two values differ, in one line."""
    if isinstance(stated, list) and isinstance(derived, list) and len(stated) == len(derived):
        index = next(i for i, pair in enumerate(zip(stated, derived, strict=True)) if not _same(*pair))
        return f"the file says {stated[index]!r} at index {index}, the {source} give {derived[index]!r}"
    return f"the file says {_short(stated)}, the {source} give {_short(derived)}"


def _same(stated: Any, derived: Any) -> bool:
    if isinstance(stated, float) and isinstance(derived, float):
        return math.isclose(stated, derived, rel_tol=_RELATIVE_ERROR, abs_tol=1e-12)
    if isinstance(stated, list) and isinstance(derived, list):
        pairs = zip(stated, derived, strict=False)
        return len(stated) == len(derived) and all(_same(*pair) for pair in pairs)
    if isinstance(stated, dict) and isinstance(derived, dict):
        return stated.keys() == derived.keys() and all(_same(stated[key], derived[key]) for key in stated)
    return type(stated) is type(derived) and bool(stated == derived)


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."
