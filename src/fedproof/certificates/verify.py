"""Re-derive every number of a certificate from the scores, or the costs, it was made from."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedproof import check
from fedproof.arrays import Integers
from fedproof.certificates.api import certificate_of_scores, check_any, settings_for
from fedproof.certificates.certificate import Certificate, CostSettings
from fedproof.certificates.confidence import Bound
from fedproof.certificates.document import certificate_of, document_of, mismatched, parse, source_of
from fedproof.certificates.inefficacy import Inefficacy, bounds_of_costs, cost_settings_for
from fedproof.certificates.scores import (
    Array,
    check_costs,
    check_labels,
    check_means,
    fingerprint,
    load,
)
from fedproof.mechanisms import Releases
from fedproof.mechanisms.codec import completed, restore

_RELATIVE_ERROR = 1e-9  # another processor's logarithm may differ in the last digits
_FROM_LABELS = ("labels", "labels_sha256", "accuracy", "certified_accuracy")


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
    document = parse(text)
    altered = [f"{name}: does not match its checksum, the file was altered" for name in mismatched(document)]
    name = source_of(document)
    _check_labels_wanted(document, labels)
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
        whole = {field: completed(value) for field, value in document.items() if field != "checksums"}
    except ValueError as error:
        return (*altered, check.one_line(error))
    except ArithmeticError as error:
        return (*altered, f"mechanism: nothing can be derived from its numbers: {check.one_line(error)}")
    sources = dict.fromkeys(whole, name) | dict.fromkeys(() if known is None else _FROM_LABELS, "labels")
    return (*altered, *_differences(whole, again, sources))


def unverified(text: str | bytes, labels: ArrayLike | str | Path | None = None) -> tuple[str, ...]:
    """What `verify` takes from a certificate file as it is, though it could be checked; empty if nothing.

    Without `labels` these are the labels in the file and the accuracies that follow from them. A file of
    version 1 whose bets depend on the order of the replicas does not show who chose that order: certify its
    scores again.

    Raises:
        ValueError: `text` is no certificate of a known version.
    """
    document = parse(text)
    known = document.get("labels") is not None
    taken = [name for name in _FROM_LABELS if known and labels is None]
    if document["version"] == 1 and document["bound"] == Bound.BETTING and not _is_counted(document):
        taken.append("order of the replicas")
    return tuple(taken)


def _is_counted(document: Mapping[str, Any]) -> bool:
    mechanism = restore(document["mechanism"], name="mechanism")
    return mechanism is not None and mechanism.releases is not Releases.REPLICAS


def _check_labels_wanted(document: Mapping[str, Any], labels: ArrayLike | str | Path | None) -> None:
    if labels is not None and document.get("labels") is None:
        raise ValueError("labels: the certificate holds none to compare them with")


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
    accounted = settings.mechanism is not None and settings.privacy is not None
    common: dict[str, Any] = {
        "mechanism": settings.mechanism,
        "privacy": None if accounted else settings.privacy,
        "delta": settings.privacy.delta if accounted and settings.privacy else None,
        "threat": settings.threat,
        "method": settings.method,
        "max_size": settings.max_size,
        "caveats": settings.caveats,
        "assumptions": settings.stated_assumptions,
        "version": settings.version,
    }
    if isinstance(certificate, Inefficacy):
        return _recompute_bounds(certificate.settings, array, common)
    return _recompute_sizes(certificate, array, labels, common)


def _recompute_bounds(settings: CostSettings, costs: Array, common: dict[str, Any]) -> Inefficacy:
    again = cost_settings_for(
        cost_bound=settings.cost_bound,
        negative=settings.negative,
        bound=settings.bound,
        failure_probability=settings.failure_probability,
        sizes=settings.sizes,
        tau=settings.tau,
        **common,
    )
    return bounds_of_costs(again, costs)


def _recompute_sizes(
    certificate: Certificate, scores: Array, labels: Integers | None, common: dict[str, Any]
) -> Certificate:
    settings = certificate.settings
    exact = certificate.num_replicas is None
    again = settings_for(
        group=settings.group,
        bound=settings.bound,
        failure_probability=0.0 if exact or settings.certain else settings.failure_probability,
        spending=settings.spending,
        sequential=settings.sequential,
        served=settings.served,
        rule=settings.rule,
        simultaneous=settings.simultaneous,
        exact=exact,
        **common,
    )
    return certificate_of_scores(again, scores, certificate.labels if labels is None else labels)


def _differences(
    document: Mapping[str, Any], again: Mapping[str, Any], sources: Mapping[str, str]
) -> list[str]:
    found = []
    for name, value in document.items():
        if not _same(value, again[name]):
            found.append(f"{name}: {_first_difference(value, again[name], sources[name])}")
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
