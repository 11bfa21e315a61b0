"""Add replicas until enough inputs are decided: lawful, because bets on means hold at all times."""

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.arrays import Floats, votes_of
from fedproof.certificates.api import certify
from fedproof.certificates.betting import betting_lower
from fedproof.certificates.certificate import Certificate, Settings
from fedproof.certificates.confidence import share
from fedproof.certificates.curves import curve_of
from fedproof.certificates.method import Method
from fedproof.certificates.scores import Array, check_scores, input_parts


def certify_sequentially(
    batches: Iterable[ArrayLike],
    labels: ArrayLike | None = None,
    *,
    size: int,
    enough: float = 1.0,
    method: Method | str = Method.MEAN,
    **settings: Any,
) -> Certificate:
    """The certificate after as few batches as decide for `enough` of the inputs whether `size` holds.

    Each batch holds the scores (replicas, inputs, classes) of further replicas; no batch is asked for after
    the decision. An input is decided if it is certified for `size`, or if the replicas show that this method
    can never certify it. Further settings are those of `certify`.

    Guarantee: as `certify`; the time of stopping may depend on the scores (Ville's inequality).

    >>> batch = np.tile([[[0.9, 0.1]]], (50, 1, 1))
    >>> from fedproof.certificates.privacy import ApproximateDP
    >>> known = ApproximateDP(epsilon=0.1, delta=1e-5, relation="replace")
    >>> certify_sequentially([batch] * 10, size=3, privacy=known).num_replicas
    50
    """
    check.probability(enough=enough)
    check.not_negative_count(size=size)
    if Method(method) not in (Method.MEAN, Method.VOTE):
        raise ValueError(f"method = '{Method(method)}' must be mean or vote to add replicas step by step")
    seen: Array | None = None
    certificate: Certificate | None = None
    for batch in batches:
        seen = _joined(seen, np.asarray(batch))
        certificate = certify(seen, labels, method=method, bound="betting", sequential=True, **settings)
        if np.mean(decided(certificate, seen, size)) >= enough:
            break
    if certificate is None:
        raise ValueError("batches is empty: there are no scores")
    return certificate


def decided(certificate: Certificate, scores: Array, size: int) -> NDArray[np.bool_]:
    """Which inputs are certified for `size`, or shown to be beyond this method at that size."""
    certified = np.array([found is not None and found >= size for found in certificate.certified_size])
    settings = certificate.settings
    tradeoff = curve_of(settings.mechanism, settings.privacy, settings.threat)(size)
    open_inputs = np.flatnonzero(~certified)
    if not open_inputs.size:
        return certified
    top_upper, rival_lower = _opposite_bounds(settings, scores[:, open_inputs])
    certified[open_inputs] = tradeoff.lower(top_upper) <= tradeoff.upper(rival_lower)
    return certified


def _opposite_bounds(settings: Settings, scores: Array) -> tuple[Floats, Floats]:
    """The largest upper bound of any class, and the second largest lower bound."""
    each = share(settings.failure_probability, scores.shape[2], settings.spending)
    tops, rivals = [], []
    for _, part in input_parts(scores):
        values = votes_of(part) if settings.votes else part
        flat = values.reshape(len(values), -1)
        lower = betting_lower(flat, each).reshape(values.shape[1:])
        upper = 1 - betting_lower(1 - flat, each).reshape(values.shape[1:])
        tops.append(upper.max(axis=1))
        rivals.append(np.sort(lower, axis=1)[:, -2])
    return np.concatenate(tops), np.concatenate(rivals)


def _joined(seen: Array | None, batch: Array) -> Array:
    if seen is None:
        check_scores(batch)
        return batch
    if batch.shape[1:] != seen.shape[1:]:
        raise ValueError(
            f"batch has shape {batch.shape}, must be (replicas, {seen.shape[1]}, {seen.shape[2]})"
        )
    return np.concatenate([seen, batch])
