"""Certify anybody's retrained models from their class confidences."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import ArrayLike, NDArray

from fedproof.certificates.certificate import Certificate, Settings
from fedproof.certificates.closed_form import certified_size, real_size
from fedproof.certificates.confidence import Bound, Spending, share
from fedproof.certificates.curves import curve_of, described
from fedproof.certificates.describe import Queries
from fedproof.certificates.method import Group, Method
from fedproof.certificates.privacy import ApproximateDP
from fedproof.certificates.scores import Array, check_labels, check_scores, fingerprint, read_array
from fedproof.certificates.soundness import assumptions_of, reasons_of
from fedproof.certificates.tight import ClassBounds, class_bounds, mean_sizes
from fedproof.protocol import Mechanism
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
    mechanism: Mechanism | Queries | DpEvent | None = None,
    privacy: ApproximateDP | None = None,
    threat: ThreatModel | None = None,
    method: Method | str = Method.MEAN,
    bound: Bound | str | None = None,
    failure_probability: float = 0.01,
    spending: Spending | str = Spending.SOUND,
    group: Group | str = Group.TIGHT,
    max_size: int = 100,
    sequential: bool = False,
    delta: float | None = None,
) -> Certificate:
    """The certificate of the ensemble whose replicas gave `scores` (replicas, inputs, classes).

    Scores and labels are arrays or paths of `.npy` or `.npz` files; files are read in parts. Give the
    `mechanism` (a description or a `DpEvent`), or `privacy` if only ε and δ of one unit are known. Method
    `paper` with a mechanism accounts ε at `delta`.

    Guarantee: see `Certificate`.

    >>> scores = np.tile([[[0.9, 0.1]]], (500, 1, 1))
    >>> result = certify(scores, [0], privacy=ApproximateDP(epsilon=0.2, delta=1e-5), method="paper")
    >>> result.prediction, result.certified_size, result.sound
    ((0,), (5,), True)
    """
    threat = threat or ThreatModel()
    mechanism = described(mechanism, threat)
    chosen = Method(method)
    settings = Settings(
        mechanism=mechanism,
        privacy=_privacy(mechanism, privacy, chosen, delta),
        threat=threat,
        method=chosen,
        bound=Bound(bound or _DEFAULT_BOUND[chosen]),
        failure_probability=failure_probability,
        spending=Spending(spending),
        group=Group(group),
        max_size=max_size,
        sequential=sequential,
    )
    return certify_with(settings, load(scores, "scores"), None if labels is None else load(labels, "labels"))


def certify_with(settings: Settings, scores: Array, labels: Array | None) -> Certificate:
    """The certificate for complete settings: what `certify` and `verify` both compute."""
    check_scores(scores)
    num_replicas, num_inputs, num_classes = scores.shape
    known = None if labels is None else check_labels(labels, num_inputs, num_classes)
    votes = settings.method in (Method.VOTE, Method.RENYI)
    each = share(settings.failure_probability, num_classes, settings.spending)
    bounds = class_bounds(scores, settings.bound, each, votes=votes, sequential=settings.sequential)
    sizes, real = _sizes(settings, bounds)
    return Certificate(
        settings=settings,
        num_replicas=num_replicas,
        num_inputs=num_inputs,
        num_classes=num_classes,
        scores_sha256=fingerprint(scores),
        prediction=_optional(bounds.top, sizes >= 0),
        certified_size=_optional(sizes, sizes >= 0),
        top_lower=tuple(bounds.top_lower.tolist()),
        rival_upper=tuple(bounds.rival_upper.tolist()),
        real_size=real,
        labels=None if known is None else tuple(known.tolist()),
        labels_sha256=None if known is None else fingerprint(known),
        accuracy=None if known is None else float(np.mean((bounds.top == known) & ~bounds.tied)),
        reasons=reasons_of(settings),
        assumptions=assumptions_of(settings),
    )


def load(source: ArrayLike | str | Path, name: str) -> Array:
    """The array itself, or the memory-mapped array of a file."""
    return read_array(source, name=name) if isinstance(source, str | Path) else np.asarray(source)


def _privacy(
    mechanism: Mechanism | Queries | None, privacy: ApproximateDP | None, method: Method, delta: float | None
) -> ApproximateDP | None:
    """The (ε, δ) that the method uses: given, or accounted from the mechanism for method `paper`."""
    if mechanism is None or privacy is not None:
        if mechanism is not None:
            raise ValueError("privacy must not be given together with mechanism: it follows from it")
        return privacy
    if method is not Method.PAPER:
        return None
    if delta is None:
        raise ValueError("delta = None: method paper needs the delta at which the mechanism is accounted")
    from fedproof.accounting import account

    return ApproximateDP(epsilon=account(mechanism, delta=delta)["paper"], delta=delta)


def _sizes(settings: Settings, bounds: ClassBounds) -> tuple[Integers, tuple[float, ...] | None]:
    """Certified sizes (-1: abstain) and the paper's real-valued ones."""
    if settings.method is not Method.PAPER:
        curve = curve_of(settings.mechanism, settings.privacy, settings.threat)
        return mean_sizes(bounds.top_lower, bounds.rival_upper, curve, settings.max_size), None
    assert settings.privacy is not None
    known = {"epsilon": settings.privacy.epsilon, "delta": settings.privacy.delta}
    real = np.minimum(real_size(bounds.top_lower, bounds.rival_upper, **known), settings.max_size + 1.0)
    whole = np.minimum(certified_size(bounds.top_lower, bounds.rival_upper, **known), settings.max_size)
    open_ = bounds.tied | (bounds.top_lower <= bounds.rival_upper)
    return np.where(open_, -1, whole).astype(np.int64), tuple(real.tolist())


def _optional(values: Integers, known: NDArray[np.bool_]) -> tuple[int | None, ...]:
    pairs: Sequence[tuple[int, bool]] = list(zip(values.tolist(), known.tolist(), strict=True))
    return tuple(value if decided else None for value, decided in pairs)
