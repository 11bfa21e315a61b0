"""Certify anybody's retrained models from their class confidences."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.arrays import Integers
from fedproof.certificates.certificate import VERSION, Certificate, Settings
from fedproof.certificates.compute import outcome_of
from fedproof.certificates.confidence import Bound, Spending
from fedproof.certificates.curves import Source, described, epsilon_delta
from fedproof.certificates.method import Group, Method
from fedproof.certificates.privacy import ApproximateDP
from fedproof.certificates.scores import (
    Array,
    check_labels,
    check_means,
    check_scores,
    fingerprint,
    load,
)
from fedproof.certificates.soundness import assumptions_of, caveats_of
from fedproof.mechanisms import Releases
from fedproof.mechanisms.caveats import sentences as caveat_sentences
from fedproof.threat import ThreatModel

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
    caveats: Sequence[str] = (),
    assumptions: Sequence[str] = (),
) -> Certificate:
    """The certificate of the ensemble whose replicas gave `scores` (replicas, inputs, classes).

    Scores and labels are arrays or paths of `.npy` or `.npz` files; files are read in parts. Give the
    `mechanism` (a description, or a `DpEvent` together with a `threat`), or `privacy` if only ε and δ of one
    unit are known. Method `paper` with a mechanism accounts ε at `delta`. A `Partition` takes method vote and
    neither a bound nor a failure probability. `bound` defaults to the method's own. `sequential` says that
    replicas were added until enough was decided, which bound betting allows for methods mean, vote and paper.
    `served` is the failure probability of an ensemble of as many replicas that is retrained under attack and
    must give the certified label itself. `caveats` are reasons why nothing is proved, `assumptions` what is
    taken for granted besides: words of whoever trained, kept in the file.

    Guarantee: see `Certificate`.

    >>> scores = np.tile([[[0.9, 0.1]]], (500, 1, 1))
    >>> known = ApproximateDP(epsilon=0.2, delta=1e-5, relation="replace")
    >>> result = certify(scores, [0], privacy=known, method="paper")
    >>> result.prediction, result.certified_size, result.sound
    ((0,), (5,), True)
    """
    settings = settings_for(
        mechanism=mechanism,
        privacy=privacy,
        threat=threat,
        method=method,
        bound=bound,
        failure_probability=failure_probability,
        spending=spending,
        group=group,
        max_size=max_size,
        sequential=sequential,
        delta=delta,
        served=served,
        caveats=caveats,
        assumptions=assumptions,
    )
    array = load(scores, "scores")
    check_scores(array)
    return certificate_of_scores(settings, array, labels)


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
    caveats: Sequence[str] = (),
    assumptions: Sequence[str] = (),
) -> Certificate:
    """The certificate for exact class confidences (inputs, classes), without Monte-Carlo error.

    For methods vote and renyi the entries are the probabilities of each vote. They are taken to be exact but
    for the rounding of their type and what a row misses one by, which counts against the certificate.

    Guarantee: see `Certificate`; there is no failure probability, because nothing is estimated.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> certify_means([[0.97, 0.03]], mechanism=mechanism).certified_size
    (11,)
    """
    settings = settings_for(
        mechanism=mechanism,
        privacy=privacy,
        threat=threat,
        method=method,
        group=group,
        max_size=max_size,
        delta=delta,
        caveats=caveats,
        assumptions=assumptions,
        exact=True,
    )
    array = load(means, "means")
    check_means(array)
    return certificate_of_scores(settings, array, labels)


def settings_for(
    *,
    mechanism: Source | None,
    privacy: ApproximateDP | None,
    threat: ThreatModel | None,
    method: Method | str,
    group: Group | str,
    max_size: int,
    delta: float | None,
    caveats: Sequence[str],
    assumptions: Sequence[str],
    bound: Bound | str | None = None,
    failure_probability: float = 0.0,
    spending: Spending | str = Spending.SOUND,
    sequential: bool = False,
    served: float | None = None,
    exact: bool = False,
    version: int = VERSION,
) -> Settings:
    """Settings with everything that follows from what was asked for; `exact`: for means."""
    chosen = Method(method)
    described_as, threat = described(mechanism, threat)
    counted = described_as is not None and described_as.releases is Releases.GROUPS  # nothing is estimated
    if exact and chosen is Method.MARGIN:
        raise ValueError("method = 'margin' needs the scores of every replica, not means: use method mean")
    if exact and counted:
        raise ValueError("a partition's votes are counted: give the scores of its groups, not means")
    if not exact and not counted:
        check.open_probability(failure_probability=failure_probability)
    return Settings(
        mechanism=described_as,
        privacy=epsilon_delta(
            described_as, privacy, wanted=chosen is Method.PAPER, delta=delta, version=version
        ),
        threat=threat,
        method=chosen,
        bound=Bound.NONE if exact or counted else Bound(bound or _DEFAULT_BOUND[chosen]),
        failure_probability=0.0 if exact or counted else failure_probability,
        spending=Spending(spending),
        group=Group(group),
        max_size=max_size,
        sequential=sequential,
        served=served,
        caveats=sentences(caveats, "caveats"),
        stated_assumptions=sentences(assumptions, "assumptions"),
        version=version,
    )


def certificate_of_scores(
    settings: Settings, scores: Array, labels: ArrayLike | str | Path | None
) -> Certificate:
    """The certificate for complete settings and checked scores, or means if they have two dimensions."""
    num_inputs, num_classes = scores.shape[-2:]
    known = None if labels is None else check_labels(load(labels, "labels"), num_inputs, num_classes)
    found = outcome_of(settings, scores)
    num_replicas = len(scores) if scores.ndim == 3 else None
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
        reasons=caveat_sentences(caveats_of(settings, exact=num_replicas is None)),
        assumptions=assumptions_of(settings, numbers=scores.dtype.name, num_replicas=num_replicas),
    )


def sentences(texts: Sequence[str], name: str) -> tuple[str, ...]:
    """Several sentences; one text alone is a mistake, its letters would be the sentences."""
    if isinstance(texts, str):
        raise ValueError(f"{name} = {texts!r} must be a sequence of sentences, not one")
    return tuple(texts)


def _optional(values: Integers, known: NDArray[np.bool_]) -> tuple[int | None, ...]:
    pairs = zip(values.tolist(), known.tolist(), strict=True)
    return tuple(value if decided else None for value, decided in pairs)
