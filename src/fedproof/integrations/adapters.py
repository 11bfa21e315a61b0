"""What other libraries write down about a training, as fedproof reads it. None of them is imported.

jax-privacy hands out a `DpEvent` (`jax_privacy.accounting.dpsgd_event`, or the `dp_event` of a plan), which
`account` and `certify` take as it is. Opacus keeps a history of tuples, pfl an accountant with a few numbers.
"""

from collections.abc import Iterable

import dp_accounting as dp
from dp_accounting import DpEvent

from fedproof import check
from fedproof.mechanisms import Poisson, Queries, Query
from fedproof.statements import Statement
from fedproof.threat import Unit


def opacus_event(history: Iterable[tuple[float, float, int]]) -> DpEvent:
    """The event of `privacy_engine.accountant.history`: (noise multiplier, sample rate, number of steps).

    Assumes: `poisson_sampling=True` in `make_private`, Opacus's default. With an ordinary data loader the
    batches are not what the accountant has counted, and there is no event.

    >>> opacus_event([(1.1, 0.01, 300)])
    ... # doctest: +ELLIPSIS
    SelfComposedDpEvent(event=PoissonSampledDpEvent(sampling_probability=0.01, ...), count=300)
    """
    events: list[DpEvent] = []
    for noise_multiplier, sample_rate, steps in history:
        check.positive(noise_multiplier=noise_multiplier)
        check.probability(sample_rate=sample_rate)
        check.count(steps=steps)
        one = dp.PoissonSampledDpEvent(sample_rate, dp.GaussianDpEvent(noise_multiplier))
        events.append(dp.SelfComposedDpEvent(one, steps))
    if not events:
        raise ValueError("history is empty: no step has been accounted")
    return events[0] if len(events) == 1 else dp.ComposedDpEvent(events)


PFL_SAMPLERS = {
    "poisson": (),  # brought by the user: pfl has none
    "random": (Statement.of("drawn-with-replacement"),),
    "minimize_reuse": (Statement.of("drawn-in-order"),),
}


def pfl_mechanism(
    *,
    noise_parameter: float,
    num_compositions: int,
    sampling_probability: float,
    noise_scale: float = 1.0,
    sampler: str = "random",
) -> Queries:
    """The mechanism of a pfl simulation, from the numbers of its privacy accountant and its user sampler.

    pfl accounts Poisson sampling. Its own samplers do something else, which the doubts of the result say and
    a certificate keeps. With a `noise_scale` below one, pfl adds less noise than it accounts, to imitate a
    larger cohort; the result has the noise that was added.

    Assumes: users are weighted equally.

    >>> pfl_mechanism(noise_parameter=2.0, num_compositions=5, sampling_probability=0.1).doubts[0].sentence
    "pfl's sampler draws a cohort with replacement, but Poisson sampling is accounted"
    """
    check.positive(noise_parameter=noise_parameter)
    check.probability(noise_scale=noise_scale)
    if sampler not in PFL_SAMPLERS:
        raise ValueError(f"sampler = {sampler!r} must be one of {', '.join(PFL_SAMPLERS)}")
    query = Query(
        noise_multiplier=noise_parameter * noise_scale,
        sampling=Poisson(probability=sampling_probability),
        count=num_compositions,
    )
    return Queries(queries=(query,), unit=Unit.USER, doubts=PFL_SAMPLERS[sampler])
