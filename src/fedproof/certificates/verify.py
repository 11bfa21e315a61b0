"""Re-derive every number of a certificate from the scores, or the costs, it was made from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import ArrayLike

from fedproof.certificates.api import certify, certify_means
from fedproof.certificates.certificate import Certificate
from fedproof.certificates.document import certificate_of, document_of, mismatched, parse, source_of
from fedproof.certificates.inefficacy import CostSettings, Inefficacy, check_costs, inefficacy
from fedproof.certificates.scores import Array, check_means, check_scores, fingerprint, load

_RELATIVE_ERROR = 1e-9  # another processor's logarithm may differ in the last digits


def unverified(text: str | bytes, labels: ArrayLike | str | Path | None = None) -> tuple[str, ...]:
    """Fields that `verify` takes from the file as they are: without labels, whatever follows from them."""
    known = parse(text).get("labels") is not None
    return ("labels", "accuracy", "certified_accuracy") if known and labels is None else ()


def verify(
    text: str | bytes, scores: ArrayLike | str | Path, labels: ArrayLike | str | Path | None = None
) -> tuple[str, ...]:
    """What does not hold in a certificate file, one sentence per field that it names; empty if all holds.

    Checks the checksum of every field, then computes the certificate again from `scores` and the settings
    in the file and compares it field by field. For bounds on an attacker's cost `scores` are the costs.

    Raises:
        ValueError: `text` is no certificate of this version, or `scores` are no scores.
    """
    document = parse(text)
    altered = [f"{name}: does not match its checksum, the file was altered" for name in mismatched(document)]
    try:
        certificate = certificate_of(document)
    except ValueError as error:
        return (*altered, str(error))
    name = source_of(document)
    array = load(scores, name)
    _check(certificate, array)
    stated, found = document[f"{name}_sha256"], fingerprint(array)
    if stated != found:
        return (*altered, f"{name}_sha256: the file says {stated}, the {name} give {found}")
    try:
        again = document_of(_recompute(certificate, array))
    except ValueError as error:
        return (*altered, str(error))
    if labels is not None and load(labels, "labels").tolist() != document["labels"]:
        altered.append("labels: the file holds others than those given")
    return (*altered, *_differences(document, again, name))


def _check(certificate: Certificate | Inefficacy, array: Array) -> None:
    if isinstance(certificate, Inefficacy):
        check_costs(array)
    elif certificate.num_replicas is None:
        check_means(array)
    else:
        check_scores(array)


def _recompute(certificate: Certificate | Inefficacy, array: Array) -> Certificate | Inefficacy:
    settings = certificate.settings
    accounted = settings.mechanism is not None and settings.privacy is not None
    common: dict[str, Any] = {
        "mechanism": settings.mechanism,
        "privacy": None if accounted else settings.privacy,
        "delta": settings.privacy.delta if accounted and settings.privacy else None,
        "threat": settings.threat,
        "method": settings.method,
        "max_size": settings.max_size,
    }
    if isinstance(certificate, Inefficacy):
        return _recompute_bounds(certificate.settings, array, common)
    return _recompute_sizes(certificate, array, common)


def _recompute_bounds(settings: CostSettings, costs: Array, common: dict[str, Any]) -> Inefficacy:
    return inefficacy(
        costs,
        cost_bound=settings.cost_bound,
        negative=settings.negative,
        bound=settings.bound,
        failure_probability=settings.failure_probability,
        sizes=settings.sizes,
        tau=settings.tau,
        **common,
    )


def _recompute_sizes(certificate: Certificate, scores: Array, common: dict[str, Any]) -> Certificate:
    settings = certificate.settings
    if certificate.num_replicas is None:
        return certify_means(scores, certificate.labels, group=settings.group, **common)
    return certify(
        scores,
        certificate.labels,
        group=settings.group,
        bound=settings.bound,
        failure_probability=settings.failure_probability,
        spending=settings.spending,
        sequential=settings.sequential,
        **common,
    )


def _differences(document: Mapping[str, Any], again: Mapping[str, Any], source: str) -> list[str]:
    found = []
    for name, value in document.items():
        if name == "checksums" or _same(value, again[name]):
            continue
        found.append(f"{name}: {_first_difference(value, again[name], source)}")
    return found


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
