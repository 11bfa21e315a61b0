"""The certificate file: JSON with schema, version and a checksum of every field; exact both ways."""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import fields
from typing import Any, NoReturn

from fedproof import check
from fedproof.certificates.certificate import Certificate, Settings
from fedproof.certificates.describe import describe, restore

SCHEMA = "fedproof/certificate"
VERSION = 1

_SETTINGS = tuple(field.name for field in fields(Settings))
_FIELDS = tuple(field.name for field in fields(Certificate) if field.name != "settings")
_DERIVED = ("sound", "certified_accuracy")  # written for readers; they follow from the rest
_KEYS = frozenset(("schema", "version", *_SETTINGS, *_FIELDS, *_DERIVED, "checksums"))


def dumps(certificate: Certificate) -> str:
    """The certificate as the text of a file."""
    lines = (
        f"{json.dumps(name)}: {json.dumps(value, ensure_ascii=False, allow_nan=False)}"
        for name, value in document_of(certificate).items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def loads(text: str | bytes) -> Certificate:
    """The certificate in a file's text.

    Raises:
        ValueError: not a certificate, of another version, or altered; the message names the field.
    """
    document = parse(text)
    wrong = mismatched(document)
    if wrong:
        raise ValueError(f"certificate was altered: {', '.join(wrong)} does not match its checksum")
    return certificate_of(document)


def document_of(certificate: Certificate) -> dict[str, Any]:
    """The certificate as JSON values."""
    body = {name: describe(getattr(certificate.settings, name)) for name in _SETTINGS}
    body |= {name: describe(getattr(certificate, name)) for name in _FIELDS}
    body |= {"sound": certificate.sound, "certified_accuracy": describe(certificate.curve)}
    body = {"schema": SCHEMA, "version": VERSION} | body
    return body | {"checksums": {name: checksum(value) for name, value in body.items()}}


def parse(text: str | bytes) -> dict[str, Any]:
    """The JSON document of a certificate file, with the right schema, version and fields."""
    try:
        document = json.loads(text, parse_constant=_no_constant, object_pairs_hook=_unique)
    except (UnicodeDecodeError, json.JSONDecodeError, RecursionError) as error:
        raise ValueError(f"certificate is not a JSON document: {check.one_line(error)}") from error
    if not isinstance(document, Mapping) or document.get("schema") != SCHEMA:
        raise ValueError(f"schema must be {SCHEMA!r}: this is not a certificate")
    if document.get("version") != VERSION or isinstance(document["version"], bool):
        raise ValueError(
            f"version = {document.get('version')!r} must be {VERSION}: written by another release"
        )
    odd = sorted(set(document) ^ _KEYS)
    if odd:
        raise ValueError(f"certificate has missing or unknown fields: {', '.join(odd)}")
    return dict(document)


def mismatched(document: Mapping[str, Any]) -> list[str]:
    """Names of the fields whose value does not match its checksum."""
    sums = document["checksums"]
    if not isinstance(sums, Mapping) or set(sums) != _KEYS - {"checksums"}:
        return ["checksums"]
    return [name for name in sums if checksum(document[name]) != sums[name]]


def certificate_of(document: Mapping[str, Any]) -> Certificate:
    """The certificate of a parsed document, whatever its checksums say."""
    values = {name: restore(document[name], name=name) for name in (*_SETTINGS, *_FIELDS)}
    try:
        settings = Settings(**{name: values[name] for name in _SETTINGS})
        return Certificate(settings=settings, **{name: values[name] for name in _FIELDS})
    except TypeError as error:
        raise ValueError(f"certificate has a field of the wrong type: {error}") from error


def checksum(value: Any) -> str:
    """First half of the sha256 of the canonical JSON text of a value.

    >>> checksum(1) == checksum(1.0)
    False
    """
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object's members; two of the same name would let two readers see different files."""
    members = dict(pairs)
    if len(members) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"certificate has the field {twice} twice")
    return members


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"certificate holds {name}, which is not a number")
