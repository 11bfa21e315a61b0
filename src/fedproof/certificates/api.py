"""Certify anybody's retrained models from their class confidences."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedproof import check
from fedproof.accounting.events import Source, is_event, queries_of, unsupported
from fedproof.arrays import Bools, Floats, Integers, votes_of
from fedproof.certificates.certificate import Certificate, Method, Settings
from fedproof.certificates.compute import certified_sizes
from fedproof.certificates.confidence import Bound, Spending, betting_lower, share
from fedproof.certificates.paper_theorems import Group
from fedproof.certificates.privacy import ApproximateDP, check_relation, curve_of_units, epsilon_delta
from fedproof.certificates.rules import Rule
from fedproof.certificates.scores import (
    Array,
    check_counted,
    check_labels,
    check_means,
    check_scores,
    input_parts,
    load,
    repeated_scores,
)
from fedproof.certificates.soundness import assumptions_of, copies, unmet_by
from fedproof.digests import fingerprint
from fedproof.mechanisms import Mechanism, Queries, Releases, is_certified
from fedproof.statements import Statement, stated
from fedproof.threat import ThreatModel

_EMPTY = "queries are empty: what releases nothing has nothing to certify"
_DEFAULT_BOUND = {
    Method.PAPER: Bound.BETTING,
    Method.RENYI: Bound.CLOPPER_PEARSON,
    Method.MEAN: Bound.BETTING,
    Method.MARGIN: Bound.BETTING,
    Method.VOTE: Bound.CLOPPER_PEARSON,
    Method.EXACT: Bound.NONE,
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
    rule: Rule | str = Rule.PLURALITY,
    simultaneous: bool = False,
    declared: int | None = None,
    asked: int | None = None,
    replied: int | None = None,
    unmet: Sequence[Statement | str] = (),
    unmet_otherwise: Sequence[Statement | str] = (),
    assumptions: Sequence[Statement | str] = (),
) -> Certificate:
    """The certificate of the ensemble whose replicas gave `scores` (replicas, inputs, classes).

    Scores and labels are arrays or paths of `.npy` or `.npz` files; files are read in parts. Give the
    `mechanism` (a description, or a `DpEvent` together with a `threat`), or `privacy` if only ε and δ of one
    unit are known. Method `paper` with a mechanism accounts ε at `delta`. A `Partition` takes method vote and
    neither a bound nor a failure probability. `bound` defaults to the method's own. `sequential` says that
    replicas were added until enough was decided, which bound betting allows for methods mean, vote and paper.
    `served` is the failure probability of an ensemble of as many replicas that is retrained under attack and
    must give the certified label itself. `rule` is how the models elect a class, chosen before the scores
    were seen. `simultaneous` spends both failure probabilities over all inputs. `declared`, `asked` and
    `replied` are numbers of users, where each was asked for one upload. `unmet` are conditions that are not
    met, `assumptions` what is taken for granted besides: words of whoever trained, kept in the
    file.

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
        rule=rule,
        simultaneous=simultaneous,
        declared=declared,
        asked=asked,
        replied=replied,
        unmet=unmet,
        unmet_otherwise=unmet_otherwise,
        assumptions=assumptions,
    )
    array = load(scores, "scores")
    check_any(settings, array)
    return certificate_of_scores(settings, array, labels)


def check_any(settings: Settings, scores: Array) -> None:
    """Raise ValueError unless these are scores of the kind that the settings speak of."""
    if settings.exact:
        check_counted(scores)
    else:
        check_scores(scores)


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
    unmet: Sequence[Statement | str] = (),
    assumptions: Sequence[Statement | str] = (),
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
        unmet=unmet,
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
    delta: float | None,
    unmet: Sequence[Statement | str],
    unmet_otherwise: Sequence[Statement | str] = (),
    assumptions: Sequence[Statement | str],
    bound: Bound | str | None = None,
    failure_probability: float = 0.0,
    rule: Rule | str = Rule.PLURALITY,
    exact: bool = False,
    **others: Any,
) -> Settings:
    """Settings with everything that follows from what was asked for; `exact`: for means.

    `others` are fields of `Settings` from which nothing follows.
    """
    chosen = Method(method)
    described_as, threat = described(mechanism, threat)
    counted = described_as is not None and described_as.releases is not Releases.REPLICAS  # not estimated
    if exact and chosen is Method.MARGIN:
        raise ValueError("method = 'margin' needs the scores of every replica, not means: use method mean")
    if exact and rule != Rule.PLURALITY:
        raise ValueError(f"rule = '{rule}' needs the scores of every replica, not means")
    if exact and others.get("served") is not None:
        raise ValueError("served must be None for means: how many replicas are served is not known")
    if exact and counted:
        raise ValueError("nothing is estimated here: give the scores of the models themselves, not means")
    if chosen is Method.RENYI:
        check_relation(described_as, threat.relation)
    if not exact and not counted:
        check.open_probability(failure_probability=failure_probability)
    return Settings(
        mechanism=described_as,
        privacy=epsilon_delta(described_as, privacy, wanted=chosen is Method.PAPER, delta=delta),
        threat=threat,
        method=chosen,
        bound=Bound.NONE if exact or counted else Bound(bound or _DEFAULT_BOUND[chosen]),
        failure_probability=0.0 if exact or counted else failure_probability,
        rule=rule,  # type: ignore[arg-type]  # a name becomes a member
        stated_unmet=stated(unmet, "unmet", "unmet-as-stated"),
        unmet_otherwise=stated(unmet_otherwise, "unmet_otherwise", "unmet-as-stated"),
        stated_assumptions=stated(assumptions, "assumptions", "stated"),
        **others,
    )


def described(source: Source | None, threat: ThreatModel | None) -> tuple[Mechanism | None, ThreatModel]:
    """The mechanism in a form that can be written down, and the threat it is certified against.

    Another library's event becomes its queries. It names neither what one unit is nor what may happen to it,
    so the threat must; its noise multipliers are read as `dp_accounting` defines them, over the largest norm
    of what one unit adds to a sum. (One over the distance of two such vectors, as some write for units that
    are replaced, is smaller or equal for sums that may be zero, so it is never read as more noise.)
    """
    if is_event(source):
        if threat is None:
            raise ValueError(
                "threat = None: an event does not say what one unit is, give "
                "threat=ThreatModel(unit=..., relation=...)"
            )
        return Queries(queries=queries_of(source), unit=threat.unit), threat
    threat = threat or ThreatModel()
    if source is not None and not is_certified(source):
        raise unsupported(source.unaccounted) if source.unaccounted else ValueError(_EMPTY)
    if source is not None and source.unit != threat.unit:
        raise ValueError(
            f"threat.unit = '{threat.unit}' must be '{source.unit}', what the mechanism protects"
        )
    return source, threat


def certificate_of_scores(
    settings: Settings, scores: Array, labels: ArrayLike | str | Path | None
) -> Certificate:
    """The certificate for complete settings and checked scores, or means if they have two dimensions."""
    num_inputs, num_classes = scores.shape[-2:]
    known = None if labels is None else check_labels(load(labels, "labels"), num_inputs, num_classes)
    found = certified_sizes(settings, scores)
    num_replicas = len(scores) if scores.ndim == 3 else None
    copied, alike = _repeated(settings, scores)
    unmet = (*unmet_by(settings, exact=num_replicas is None), *copies(copied, len(scores)))
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
        unmet=unmet,
        assumptions=assumptions_of(
            settings, numbers=scores.dtype.name, num_replicas=num_replicas, alike=alike
        ),
    )


def _repeated(settings: Settings, scores: Array) -> tuple[int, int]:
    """Replicas that repeat another one: against an unmet condition, and by chance, as without noise."""
    if scores.ndim == 2 or settings.certain:
        return 0, 0
    telling, others = repeated_scores(scores)
    noisy = settings.mechanism is None or settings.mechanism.noisy
    return (telling, others) if noisy else (0, telling + others)


def _optional(values: Integers, known: Bools) -> tuple[int | None, ...]:
    pairs = zip(values.tolist(), known.tolist(), strict=True)
    return tuple(value if decided else None for value, decided in pairs)


# --- replicas added until enough is decided: lawful, because bets on means hold at all times ----------------


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


def decided(certificate: Certificate, scores: Array, size: int) -> Bools:
    """Which inputs are certified for `size`, or shown to be beyond this method at that size."""
    certified = np.array([found is not None and found >= size for found in certificate.certified_size])
    settings = certificate.settings.for_each(certificate.num_inputs)
    tradeoff = curve_of_units(settings.mechanism, settings.privacy, settings.threat)(size)
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
    for _, part in input_parts(scores, votes=settings.votes):
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
