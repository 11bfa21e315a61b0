"""From complete settings and scores to sizes: one branch per certificate."""

import numpy as np

from fedproof.accounting.epsilon import rdp
from fedproof.arrays import Floats, Integers
from fedproof.certificates.certificate import Method, Settings
from fedproof.certificates.confidence import MIXTURE, Bound, share
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
    ranking,
    served_gap,
)
from fedproof.threat import Relation


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
    top, sizes = counted_sizes(settings.rule, scores, settings.max_size, own_votes=(own_vote,))
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
    if scores.ndim == 2:
        return exact_bounds(scores, rounded=True)
    if settings.rule is Rule.PAIRWISE:
        each = rule_share(settings.rule, settings.failure_probability, scores.shape[2], settings.spending)
        return pairwise_bounds(scores, settings.bound, each, MIXTURE)
    return class_bounds(
        scores,
        settings.bound,
        share(settings.failure_probability, scores.shape[2], settings.spending),
        votes=settings.votes,
        bets=MIXTURE,
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
    return margin_sizes_by_betting(
        scores, curve, failure_probability=psi, max_size=most, gap=gap, order=betting_order(scores)
    )


def _paper(settings: Settings, bounds: ClassBounds) -> tuple[Integers, Floats]:
    """Integer sizes and the paper's real-valued ones; both end where the search ends."""
    epsilon, delta = unit_privacy(settings.mechanism, settings.privacy, settings.threat)
    real = real_size(bounds.top_lower, bounds.rival_upper, epsilon=epsilon, delta=delta)
    sizes = paper_sizes(bounds, epsilon, delta, settings.max_size)
    return sizes, np.minimum(real, settings.max_size + 1.0)


def paper_sizes(bounds: ClassBounds, epsilon: float, delta: float, max_size: int) -> Integers:
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
