"""From complete settings and scores to sizes, one branch per certificate; and several ways side by side."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.epsilon import account, natural_relation, rdp
from fedproof.accounting.tradeoff import tradeoff
from fedproof.arrays import Floats, Integers
from fedproof.certificates import version_one
from fedproof.certificates.certificate import Method, Settings
from fedproof.certificates.confidence import MIXTURE, Bound, Spending, share
from fedproof.certificates.margin import margin_sizes_by_betting, margin_sizes_by_levels
from fedproof.certificates.paper_theorems import certified_size, real_size, renyi_sizes
from fedproof.certificates.privacy import curve_of_units, largest_size, steps_per_unit, unit_privacy
from fedproof.certificates.rules import Rule, counted_sizes, pairwise_bounds, rule_share, run_off_estimates
from fedproof.certificates.scores import Array, betting_order, check_copies
from fedproof.certificates.tight import (
    CertifiedSizes,
    ClassBounds,
    class_bounds,
    exact_sizes,
    mean_sizes,
    observed_sizes,
    ranking,
    served_gap,
)
from fedproof.mechanisms import Mechanism, Releases, is_private
from fedproof.release import Release
from fedproof.threat import Relation, ThreatModel


def certified_sizes(settings: Settings, scores: Array) -> CertifiedSizes:
    """The certified sizes for scores (replicas, inputs, classes) or exact means (inputs, classes)."""
    settings = settings.for_each(scores.shape[-2])
    mechanism = settings.mechanism
    if settings.counted:
        return _counted(settings, scores)
    if settings.exact:
        top, sizes = exact_sizes(scores[0], settings.threat.relation, settings.max_size)
        return CertifiedSizes(top=top, leader=top, tied=sizes < 0, sizes=sizes)
    if scores.ndim == 3:
        check_copies(scores)
    if settings.method is Method.MARGIN:
        return _margin(settings, scores)
    if settings.rule is Rule.RUN_OFF:
        return _run_off(settings, scores)
    bounds = _bounds(settings, scores)
    real = None
    match settings.method:
        case Method.PAPER:
            sizes, real = _paper(settings, bounds)
        case Method.RENYI:
            sizes = _renyi(settings, bounds)
        case _:
            curve = curve_of_units(mechanism, settings.privacy, settings.threat)
            gap, most = _gap(settings, scores), _most(settings)
            sizes = mean_sizes(bounds.top_lower, bounds.rival_upper, curve, most, gap=gap)
    return CertifiedSizes(
        top=bounds.top, leader=bounds.top, tied=bounds.tied, sizes=sizes, bounds=bounds, real=real
    )


def _gap(settings: Settings, scores: Array) -> float:
    """The lead that is asked for: none, unless a finite ensemble is served."""
    return 0.0 if settings.served is None else served_gap(len(scores), scores.shape[2], settings.served)


def _most(settings: Settings) -> int:
    return largest_size(settings.mechanism, settings.threat, settings.max_size)


def _counted(settings: Settings, scores: Array) -> CertifiedSizes:
    assert settings.mechanism is not None
    groups = settings.mechanism.models(len(scores))
    if len(scores) != groups:
        raise ValueError(f"scores are of {len(scores)} models, must be of groups = {groups}")
    own_vote = settings.mechanism.apart and settings.threat.relation is Relation.JOIN
    top, sizes = counted_sizes(settings.rule, scores, settings.max_size, own_vote=own_vote)
    tied = np.zeros(len(top), dtype=np.bool_)  # the first of equal classes wins
    return CertifiedSizes(top=top, leader=top, tied=tied, sizes=sizes)


def _run_off(settings: Settings, scores: Array) -> CertifiedSizes:
    num_replicas, _, num_classes = scores.shape
    psi, served = settings.failure_probability, settings.served
    return run_off_estimates(
        scores,
        settings.bound,
        rule_share(settings.rule, psi, num_classes, settings.spending),
        curve_of_units(settings.mechanism, settings.privacy, settings.threat),
        _most(settings),
        votes=settings.votes,
        bets=MIXTURE,
        gap=0.0 if served is None else served_gap(num_replicas, 2 * num_classes - 1, served),
    )


def _bounds(settings: Settings, scores: Array) -> ClassBounds:
    first = settings.version == 1
    if scores.ndim == 2:
        return exact_bounds(scores, rounded=not first)
    if settings.rule is Rule.PAIRWISE:
        each = rule_share(settings.rule, settings.failure_probability, scores.shape[2], settings.spending)
        return pairwise_bounds(scores, settings.bound, each, MIXTURE)
    split = version_one.share if first else share
    return class_bounds(
        scores,
        settings.bound,
        split(settings.failure_probability, scores.shape[2], settings.spending),
        votes=settings.votes,
        bets=version_one.bets(settings.sequential) if first else MIXTURE,
    )


def exact_bounds(means: Array, *, rounded: bool) -> ClassBounds:
    """Bounds of exact means; if `rounded`, exact but for their type's rounding and what a row misses one by.

    A mean of 1 that is stored as float16 may be anything above 0.9997. Rounding to nearest moves a number in
    [0, 1] by half the distance of 1 to the number below it at most; the whole of it is given away. Rows of
    confidences add up to one: what they miss it by is an error of unknown place, so each bound gives it away.
    """
    exact = np.asarray(means, dtype=np.float64)
    top, second, tied = ranking(exact)
    rows = np.arange(len(exact))
    lower, upper = exact[rows, top], exact[rows, second]
    if rounded:
        error = np.finfo(means.dtype).epsneg + np.abs(exact.sum(axis=1) - 1)
        lower, upper = np.maximum(lower - error, 0.0), np.minimum(upper + error, 1.0)
    return ClassBounds(top=top, tied=tied, top_lower=lower, rival_upper=upper)


def _margin(settings: Settings, scores: Array) -> CertifiedSizes:
    curve = curve_of_units(settings.mechanism, settings.privacy, settings.threat)
    gap, psi, most = _gap(settings, scores), settings.failure_probability, _most(settings)
    if settings.bound is Bound.LEVELS:
        return margin_sizes_by_levels(scores, curve, failure_probability=psi, max_size=most, gap=gap)
    order = betting_order(scores) if settings.version > 1 else None
    return margin_sizes_by_betting(
        scores, curve, failure_probability=psi, max_size=most, gap=gap, order=order
    )


def _paper(settings: Settings, bounds: ClassBounds) -> tuple[Integers, Floats]:
    """Integer sizes and the paper's real-valued ones; both end where the search ends."""
    epsilon, delta = unit_privacy(settings.mechanism, settings.privacy, settings.threat)
    real = real_size(bounds.top_lower, bounds.rival_upper, epsilon=epsilon, delta=delta)
    sizes = _whole(bounds, epsilon, delta, settings.max_size)
    return sizes, np.minimum(real, settings.max_size + 1.0)


def _whole(bounds: ClassBounds, epsilon: float, delta: float, max_size: int) -> Integers:
    """The paper's sizes, -1 where the bounds do not tell the top class from a rival."""
    size = certified_size(bounds.top_lower, bounds.rival_upper, epsilon=epsilon, delta=delta)
    known = bounds.top_lower > bounds.rival_upper
    return np.where(known, np.minimum(size, max_size), -1).astype(np.int64)


def _renyi(settings: Settings, bounds: ClassBounds) -> Integers:
    mechanism = settings.mechanism
    assert mechanism is not None
    return renyi_sizes(
        bounds.top_lower,
        bounds.rival_upper,
        lambda orders: rdp(mechanism, orders.tolist()),
        max_size=settings.max_size,
        group=settings.group,
        steps_per_unit=steps_per_unit(mechanism, settings.threat.relation, settings.group),
    )


# --- the same scores certified several ways: what a report draws and a reader compares ----------------------


@dataclass(frozen=True, kw_only=True)
class Curve:
    """Certified accuracy over the number of poisoned units, for one way of certifying.

    Attributes:
        method: `paper` or `mean`, and `vote` for the counted votes of a partition.
        relation: the threat; None for the paper's formula, whose relation is that of its accounting.
        failure_probability: of the Monte-Carlo bounds; None if the means are taken as exact.
        accuracy: share of the inputs predicted correctly and certified for size 0, 1, 2, …
    """

    method: str
    relation: Relation | None
    failure_probability: float | None
    accuracy: tuple[float, ...]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One flat row per size."""
        for size, accuracy in enumerate(self.accuracy):
            yield {
                "method": self.method,
                "relation": self.relation.value if self.relation else "",
                "failure_probability": self.failure_probability if self.failure_probability else "",
                "size": size,
                "certified_accuracy": accuracy,
            }


def compare(
    scores: Array,
    labels: Integers,
    *,
    mechanism: Mechanism,
    delta: float,
    failure_probability: float = 0.01,
    max_size: int = 100,
    rule: Rule = Rule.PLURALITY,
) -> tuple[Curve, ...]:
    """The paper's formula and the tight mean certificates, without and with Monte-Carlo confidence.

    A mechanism without privacy has the tight ones only.

    The paper's bounds are Hoeffding's, each at the full failure probability; ours are betting bounds that
    share it soundly. The groups of a partition elect by `rule`.
    """
    drawn = partial(_drawn, labels=labels, max_size=max_size)
    if mechanism.releases is Releases.GROUPS:
        # units that come or go matter less than those that are replaced only where each is a group
        relations = (Relation.REPLACE, Relation.JOIN)[: 1 + mechanism.apart]
        counted = partial(counted_sizes, rule, scores, max_size)
        return tuple(drawn("vote", each, *counted(own_vote=each is Relation.JOIN)) for each in relations)
    if mechanism.releases is Releases.MODEL:
        both = (Relation.REPLACE, Relation.JOIN)
        return tuple(drawn("exact", each, *exact_sizes(scores[0], each, max_size)) for each in both)
    exact = exact_bounds(scores.mean(axis=0, dtype=np.float64), rounded=False)  # as if O were infinite
    num_classes = scores.shape[2]
    sure = class_bounds(scores, Bound.BETTING, share(failure_probability, num_classes, Spending.SOUND))
    curves = []
    if is_private(mechanism) and not mechanism.one_release:  # which has an ε, but not of each replica
        epsilon = account(mechanism, delta, ["paper"])["paper"]
        whole = share(failure_probability, num_classes, Spending.PAPER)
        hoeffding = class_bounds(scores, Bound.HOEFFDING, whole)
        curves += [
            drawn("paper", None, bounds.top, _whole(bounds, epsilon, delta, max_size), chance=chance)
            for bounds, chance in ((exact, None), (hoeffding, failure_probability))
        ]
    for relation in relations_of(mechanism):
        threat = ThreatModel(unit=mechanism.unit, relation=relation)
        curve, most = partial(tradeoff, mechanism, threat), largest_size(mechanism, threat, max_size)
        for bounds, chance in ((exact, None), (sure, failure_probability)):
            sizes = mean_sizes(bounds.top_lower, bounds.rival_upper, curve, most)
            curves.append(drawn("mean", relation, bounds.top, sizes, chance=chance))
    return tuple(curves)


def _drawn(
    method: str,
    relation: Relation | None,
    top: Integers,
    sizes: Integers,
    *,
    labels: Integers,
    max_size: int,
    chance: float | None = None,
) -> Curve:
    """The curve of certified `sizes`: accuracy at sizes 0, 1, … up to the first that is zero."""
    correct = np.where(top == labels, sizes, -1)
    shown = range(min(max(0, int(correct.max())) + 1, max_size) + 1)
    accuracy = tuple(float(np.mean(correct >= size)) for size in shown)
    return Curve(method=method, relation=relation, failure_probability=chance, accuracy=accuracy)


def observed(
    release: Release, added: Integers, features: NDArray[np.generic], labels: Integers, max_size: int
) -> Curve:
    """The curve of a release against replaced units, by what each was seen to add; not private."""
    top, sizes = observed_sizes(release, added, features, max_size)
    return _drawn("observed", Relation.REPLACE, top, sizes, labels=labels, max_size=max_size)


def relations_of(mechanism: Mechanism) -> tuple[Relation, ...]:
    """Those that the mechanism's curve is known for."""
    fixed = is_private(mechanism) and natural_relation(mechanism) is Relation.REPLACE
    return (Relation.REPLACE,) if fixed else (Relation.JOIN, Relation.REPLACE)
