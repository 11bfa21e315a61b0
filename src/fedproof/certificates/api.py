"""Certify anybody's retrained models from their class confidences."""

from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof.certificates.certificate import Certificate, Settings
from fedproof.certificates.compute import outcome_of
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.curves import Source, described, epsilon_delta
from fedproof.certificates.method import Group, Method
from fedproof.certificates.privacy import ApproximateDP, stated_for
from fedproof.certificates.scores import (
    Array,
    check_labels,
    check_means,
    check_scores,
    fingerprint,
    load,
)
from fedproof.certificates.soundness import assumptions_of, reasons_of
from fedproof.protocol import Partition
from fedproof.threat import ThreatModel

Integers = NDArray[np.int64]

_DEFAULT_BOUND = {
    Method.PAPER: Bound.BETTING,
    Method.RENYI: Bound.CLOPPER_PEARSON,
    Method.MEAN: Bound.BETTING,
    Method.MARGIN: Bound.BETTING,
    Method.VOTE: Bound.CLOPPER_PEARSON,
}


def certify(
    scores: ArrayLike | str | Path,
    labels: ArrayLike | str | Path | None = None,
    *,
    mechanism: Source | None = None,
    privacy: ApproximateDP | None = None,
    threat: ThreatModel | None = None,
    method: Method | str = Method.MARGIN,
    bound: Bound | str | None = None,
    failure_probability: float = 0.01,
    spending: Spending | str = Spending.SOUND,
    group: Group | str = Group.TIGHT,
    max_size: int = 100,
    sequential: bool = False,
    delta: float | None = None,
    served: float | None = None,
) -> Certificate:
    """The certificate of the ensemble whose replicas gave `scores` (replicas, inputs, classes).

    Scores and labels are arrays or paths of `.npy` or `.npz` files; files are read in parts. Give the
    `mechanism` (a description or a `DpEvent`), or `privacy` if only ε and δ of one unit are known. Method
    `paper` with a mechanism accounts ε at `delta`. A `Partition` takes method vote and neither a bound nor a
    failure probability. `bound` defaults to the method's own. `sequential` bets
    stay valid however one decides when to stop adding replicas.

    Guarantee: see `Certificate`.

    >>> scores = np.tile([[[0.9, 0.1]]], (500, 1, 1))
    >>> result = certify(scores, [0], privacy=ApproximateDP(epsilon=0.2, delta=1e-5), method="paper")
    >>> result.prediction, result.certified_size, result.sound
    ((0,), (5,), True)
    """
    if served is not None:
        raise ValueError(f"served = {served!r} must be None: there is no such certificate yet")
    threat, chosen = threat or ThreatModel(), Method(method)
    mechanism, privacy = described(mechanism, threat), stated_for(privacy, threat)
    if isinstance(mechanism, Partition):  # votes are counted: there is nothing to be unsure of
        bound, failure_probability = Bound.NONE, 0.0
    settings = Settings(
        mechanism=mechanism,
        privacy=epsilon_delta(mechanism, privacy, wanted=chosen is Method.PAPER, delta=delta),
        threat=threat,
        method=chosen,
        bound=Bound(bound or _DEFAULT_BOUND[chosen]),
        failure_probability=failure_probability,
        spending=Spending(spending),
        group=Group(group),
        max_size=max_size,
        sequential=sequential,
    )
    array = load(scores, "scores")
    check_scores(array)
    return _certificate(settings, array, labels, num_replicas=len(array))


def certify_means(
    means: ArrayLike | str | Path,
    labels: ArrayLike | str | Path | None = None,
    *,
    mechanism: Source | None = None,
    privacy: ApproximateDP | None = None,
    threat: ThreatModel | None = None,
    method: Method | str = Method.MEAN,
    group: Group | str = Group.TIGHT,
    max_size: int = 100,
    delta: float | None = None,
) -> Certificate:
    """The certificate for exact class confidences (inputs, classes), without Monte-Carlo error.

    For methods vote and renyi the entries are the probabilities of each vote.

    Guarantee: see `Certificate`, with certainty instead of probability 1 - ψ.

    >>> from fedproof.protocol import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> certify_means([[0.97, 0.03]], mechanism=mechanism).certified_size
    (11,)
    """
    threat, chosen = threat or ThreatModel(), Method(method)
    if chosen is Method.MARGIN:
        raise ValueError("method = 'margin' needs the scores of every replica, not means: use method mean")
    mechanism = described(mechanism, threat)
    if isinstance(mechanism, Partition):
        raise ValueError("a partition's votes are counted: give the scores of its groups, not means")
    settings = Settings(
        mechanism=mechanism,
        privacy=epsilon_delta(mechanism, privacy, wanted=chosen is Method.PAPER, delta=delta),
        threat=threat,
        method=chosen,
        bound=Bound.NONE,
        failure_probability=0.0,
        spending=Spending.SOUND,
        group=Group(group),
        max_size=max_size,
        sequential=False,
    )
    array = load(means, "means")
    check_means(array)
    return _certificate(settings, array, labels, num_replicas=None)


def _certificate(
    settings: Settings, scores: Array, labels: ArrayLike | str | Path | None, *, num_replicas: int | None
) -> Certificate:
    num_inputs, num_classes = scores.shape[-2:]
    known = None if labels is None else check_labels(load(labels, "labels"), num_inputs, num_classes)
    found = outcome_of(settings, scores)
    exact = num_replicas is None
    return Certificate(
        settings=settings,
        num_replicas=num_replicas,
        num_inputs=num_inputs,
        num_classes=num_classes,
        scores_sha256=fingerprint(scores),
        prediction=_optional(found.top, found.sizes >= 0),
        certified_size=_optional(found.sizes, found.sizes >= 0),
        top_lower=None if found.bounds is None else tuple(found.bounds.top_lower.tolist()),
        rival_upper=None if found.bounds is None else tuple(found.bounds.rival_upper.tolist()),
        real_size=None if found.real is None else tuple(found.real.tolist()),
        labels=None if known is None else tuple(known.tolist()),
        labels_sha256=None if known is None else fingerprint(known),
        accuracy=None if known is None else float(np.mean((found.leader == known) & ~found.tied)),
        reasons=reasons_of(settings, exact=exact),
        assumptions=assumptions_of(settings, exact=exact),
    )


def _optional(values: Integers, known: NDArray[np.bool_]) -> tuple[int | None, ...]:
    pairs = zip(values.tolist(), known.tolist(), strict=True)
    return tuple(value if decided else None for value, decided in pairs)
