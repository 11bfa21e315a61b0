"""From complete settings and scores to sizes: one branch per certificate."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.renyi import rdp
from fedproof.certificates.certificate import Settings
from fedproof.certificates.closed_form import certified_size, real_size
from fedproof.certificates.confidence import Bound, share
from fedproof.certificates.curves import curve_of, steps_per_unit
from fedproof.certificates.margin import margin_sizes_by_levels
from fedproof.certificates.margin_betting import margin_sizes_by_betting
from fedproof.certificates.method import Method
from fedproof.certificates.partition import partition_sizes, vote_counts
from fedproof.certificates.renyi import renyi_sizes
from fedproof.certificates.scores import Array
from fedproof.certificates.tight import ClassBounds, class_bounds, mean_sizes, ranking
from fedproof.protocol import Partition

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

_MARGIN = {Bound.LEVELS: margin_sizes_by_levels, Bound.BETTING: margin_sizes_by_betting}


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """Per input: the class tested, the class that leads, a tie, the size (-1: abstain), the bounds used."""

    top: Integers
    leader: Integers
    tied: NDArray[np.bool_]
    sizes: Integers
    bounds: ClassBounds | None
    real: Floats | None


def outcome_of(settings: Settings, scores: Array) -> Outcome:
    """The certified sizes for scores (replicas, inputs, classes) or exact means (inputs, classes)."""
    if isinstance(settings.mechanism, Partition):
        return _partition(settings.mechanism, settings.max_size, scores)
    if settings.method is Method.MARGIN:
        return _margin(settings, scores)
    bounds = (
        _exact(np.asarray(scores, dtype=np.float64)) if scores.ndim == 2 else _estimated(settings, scores)
    )
    real = None
    match settings.method:
        case Method.PAPER:
            sizes, real = _paper(settings, bounds)
        case Method.RENYI:
            sizes = _renyi(settings, bounds)
        case _:
            curve = curve_of(settings.mechanism, settings.privacy, settings.threat)
            sizes = mean_sizes(bounds.top_lower, bounds.rival_upper, curve, settings.max_size)
    return Outcome(top=bounds.top, leader=bounds.top, tied=bounds.tied, sizes=sizes, bounds=bounds, real=real)


def _partition(mechanism: Partition, max_size: int, scores: Array) -> Outcome:
    if len(scores) != mechanism.groups:
        raise ValueError(f"scores are of {len(scores)} models, must be of groups = {mechanism.groups}")
    top, sizes = partition_sizes(vote_counts(scores))
    tied = np.zeros(len(top), dtype=np.bool_)  # the first of equal classes wins
    return Outcome(top=top, leader=top, tied=tied, sizes=np.minimum(sizes, max_size), bounds=None, real=None)


def _estimated(settings: Settings, scores: Array) -> ClassBounds:
    each = share(settings.failure_probability, scores.shape[2], settings.spending)
    votes = settings.method in (Method.VOTE, Method.RENYI)
    return class_bounds(scores, settings.bound, each, votes=votes, sequential=settings.sequential)


def _exact(means: Floats) -> ClassBounds:
    top, second, tied = ranking(means)
    rows = np.arange(len(means))
    return ClassBounds(top=top, tied=tied, top_lower=means[rows, top], rival_upper=means[rows, second])


def _margin(settings: Settings, scores: Array) -> Outcome:
    curve = curve_of(settings.mechanism, settings.privacy, settings.threat)
    found = _MARGIN[settings.bound](
        scores, curve, failure_probability=settings.failure_probability, max_size=settings.max_size
    )
    return Outcome(
        top=found.top, leader=found.leader, tied=found.tied, sizes=found.sizes, bounds=None, real=None
    )


def _paper(settings: Settings, bounds: ClassBounds) -> tuple[Integers, Floats]:
    """Integer sizes and the paper's real-valued ones; both end where the search ends."""
    assert settings.privacy is not None
    known = {"epsilon": settings.privacy.epsilon, "delta": settings.privacy.delta}
    real = np.minimum(real_size(bounds.top_lower, bounds.rival_upper, **known), settings.max_size + 1.0)
    whole = np.minimum(certified_size(bounds.top_lower, bounds.rival_upper, **known), settings.max_size)
    return np.where(bounds.top_lower > bounds.rival_upper, whole, -1).astype(np.int64), real


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
