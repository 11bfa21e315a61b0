"""Mechanism description <-> `dp_accounting` event, and what of an event can be analysed.

Everything that accounts or certifies works on `Query` values; this file is the only door in and out.
"""

import math
from typing import Any

import dp_accounting as dp
from dp_accounting import DpEvent, UnsupportedEventError

from fedproof import check
from fedproof.mechanisms import Everyone, FixedSize, Mechanism, Poisson, Query, Sampling, is_private


def event_of(mechanism: Mechanism) -> DpEvent:
    """The `dp_accounting` event of a mechanism, for any accountant of the field.

    A user selection that the observer may know (InsDP-FedSGD) has no event of its own; it is left out, which
    is Dopamine's bound and never too small.

    Guarantee: accountants that read noise over the sensitivity, as they all do, get no ε that is too small.
    Cohorts of fixed size are accounted for one unit replaced, which moves a sum by two clip norms, so the
    noise of such an event is half the mechanism's. `queries_of` reads noise over one norm: made a mechanism
    of again, the event has half the noise, which is never too much.

    >>> from fedproof.mechanisms import UserFedAvg
    >>> event_of(UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))).count
    3
    """
    if not is_private(mechanism):
        return dp.NonPrivateDpEvent()
    moved = 2 if any(query.sampling.closed for query in mechanism.queries) else 1
    events = [dp.SelfComposedDpEvent(_one(query, moved), query.count) for query in mechanism.queries]
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


def _one(query: Query, moved: int) -> DpEvent:
    """One release of a sum that a unit moves by so many clip norms."""
    gaussian = dp.GaussianDpEvent(query.noise_multiplier / moved)
    match query.sampling:
        case Everyone():
            return gaussian
        case Poisson(probability=probability):
            return dp.PoissonSampledDpEvent(probability, gaussian)
        case FixedSize(cohort=cohort, users=users):
            return dp.SampledWithoutReplacementDpEvent(users, cohort, gaussian)


def queries_of(source: Mechanism | DpEvent) -> tuple[Query, ...]:
    """The Gaussian queries of a mechanism or of another library's event.

    >>> queries_of(dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.1, dp.GaussianDpEvent(2.0)), 5))
    (Query(noise_multiplier=2.0, sampling=Poisson(probability=0.1), count=5, selection_probability=1.0),)

    Raises:
        UnsupportedEventError: the event holds something else than sampled Gaussian queries.
    """
    if not isinstance(source, DpEvent):
        if not is_private(source):
            raise UnsupportedEventError(source.unaccounted)
        return source.queries
    merged: dict[tuple[float, Sampling], int] = {}
    for noise_multiplier, sampling, count in _walk(source, Everyone(), 1):
        merged[noise_multiplier, sampling] = merged.get((noise_multiplier, sampling), 0) + count
    if not merged:
        raise UnsupportedEventError(f"{source!r} releases nothing: there is nothing to account")
    return tuple(
        Query(noise_multiplier=noise, sampling=sampling, count=count)
        for (noise, sampling), count in merged.items()
    )


def _walk(event: DpEvent, sampling: Sampling, count: int) -> list[tuple[float, Sampling, int]]:
    """Flatten an event into (noise multiplier, sampling, count)."""
    match event:
        case dp.NoOpDpEvent():
            return []
        case dp.GaussianDpEvent():
            if not event.noise_multiplier > 0:
                raise UnsupportedEventError("a Gaussian event with noise_multiplier 0 gives no guarantee")
            return [(float(event.noise_multiplier), sampling, count)]
        case dp.SelfComposedDpEvent():
            return _walk(event.event, sampling, count * _whole(event.count, "count"))
        case dp.ComposedDpEvent():
            return [part for inner in event.events for part in _walk(inner, sampling, count)]
        case dp.PoissonSampledDpEvent():
            drawn: Sampling = Poisson(probability=float(event.sampling_probability))
            return [(_sampled_once(event.event, sampling), drawn, count)]
        case dp.SampledWithoutReplacementDpEvent():
            users = _whole(event.source_dataset_size, "source_dataset_size")
            drawn = FixedSize(cohort=_whole(event.sample_size, "sample_size"), users=users)
            return [(_sampled_once(event.event, sampling), drawn, count)]
    raise UnsupportedEventError(
        f"{type(event).__name__} cannot be analysed: allowed are Gaussian events, Poisson-sampled or sampled "
        "without replacement, and their compositions"
    )


def _whole(number: Any, name: str) -> int:
    """A count of an event, which may be a float that is whole; cut off it would be too small."""
    check.count(**{name: int(number) if isinstance(number, float) and number.is_integer() else number})
    return int(number)


def _sampled_once(event: DpEvent, sampling: Sampling) -> float:
    """Noise multiplier of all Gaussian queries made on one and the same sample, taken together."""
    if not isinstance(sampling, Everyone):
        raise UnsupportedEventError("sampling inside sampling cannot be analysed: sample once per query")
    queries = _walk(event, Everyone(), 1)
    if not queries or any(not isinstance(inner, Everyone) for _, inner, _ in queries):
        raise UnsupportedEventError(f"a sampled {type(event).__name__} must consist of Gaussian events")
    return 1 / math.sqrt(sum(count / noise**2 for noise, _, count in queries))
