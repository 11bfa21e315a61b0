"""The inverse problems: which noise, rounds or sampling certify k units, and which noise gives a target ε.

Every answer is checked once more in the direction that counts and rounded to the safe side, so a certificate
computed with the planned value holds.
"""

import math
from bisect import bisect_left
from collections.abc import Callable

from fedproof import check
from fedproof.accounting.epsilon import ACCOUNTANTS, pld_epsilon
from fedproof.accounting.tradeoff import RESOLUTION, curve_of
from fedproof.mechanisms import FixedSize, Poisson, Queries, Query, Sampling
from fedproof.threat import Relation, ThreatModel

_LARGEST_NOISE = 1e5
_MOST_ROUNDS = 1_000_000
_PRECISION = 1e-4


def certifies(query: Query, threat: ThreatModel, *, size: int, top: float, rival: float) -> bool:
    """Whether `size` poisoned units cannot lift a rival of confidence `rival` over `top`, by the means."""
    curve = curve_of((query,), threat.relation, size, RESOLUTION)
    return bool(curve.lower(top) > curve.upper(rival))


def noise_for_size(
    *, size: int, top: float, rival: float, sampling: Sampling, rounds: int, threat: ThreatModel
) -> float:
    """The smallest noise multiplier (to four digits, rounded up) that certifies `size` units.

    `top` and `rival` are the expected confidences of the predicted class and of its strongest rival.

    >>> tenth, threat = Poisson(probability=0.1), ThreatModel()
    >>> noise_for_size(size=10, top=0.95, rival=0.05, sampling=tenth, rounds=3, threat=threat)
    1.891
    """
    holds = _question(size, top, rival, threat)
    check.count(rounds=rounds)
    what = f"size = {size} with top = {top} and rival = {rival}"
    return _smallest(lambda noise: holds(noise, sampling, rounds), what)


def rounds_for_size(
    *, size: int, top: float, rival: float, sampling: Sampling, noise_multiplier: float, threat: ThreatModel
) -> int:
    """The most rounds (or steps) after which `size` units are still certified; zero if there are none."""
    holds = _question(size, top, rival, threat)
    return _largest(lambda rounds: holds(noise_multiplier, sampling, rounds), _MOST_ROUNDS)


def cohort_for_size(
    *,
    size: int,
    top: float,
    rival: float,
    users: int,
    noise_multiplier: float,
    rounds: int,
    threat: ThreatModel,
    fixed: bool = False,
) -> int:
    """The largest (expected, or with `fixed` exact) cohort out of `users` that certifies; zero if none."""
    holds = _question(size, top, rival, threat)
    check.count(users=users, rounds=rounds)

    def drawn(cohort: int) -> Sampling:
        return FixedSize(cohort=cohort, users=users) if fixed else Poisson(probability=cohort / users)

    return _largest(lambda cohort: holds(noise_multiplier, drawn(cohort), rounds), users)


def noise_for_epsilon(
    *, epsilon: float, delta: float, sampling: Sampling, rounds: int, accountant: str = "pld"
) -> float:
    """The smallest noise multiplier (to four digits, rounded up) that is (ε, δ)-DP for one unit.

    By `pld`, or by `rdp`; other accountants answer as published.

    >>> noise_for_epsilon(epsilon=0.2114, delta=0.0029, sampling=Poisson(probability=0.1), rounds=3)
    1.8
    """
    check.positive(epsilon=epsilon)
    check.open_probability(delta=delta)
    check.count(rounds=rounds)
    if accountant not in ACCOUNTANTS:
        raise ValueError(f"accountant = {accountant!r} must be one of {', '.join(ACCOUNTANTS)}")
    cost = ACCOUNTANTS[accountant] if accountant != "pld" else pld_epsilon

    def enough(noise_multiplier: float) -> bool:
        query = Query(noise_multiplier=noise_multiplier, sampling=sampling, count=rounds)
        return cost(Queries(queries=(query,)), delta) <= epsilon

    return _smallest(enough, f"epsilon = {epsilon} at delta = {delta}")


def lead_for_size(size: int, relation: Relation) -> int:
    """The lead over every other class, in units, beyond which one release withstands `size` units.

    Guarantee: see `exact_sizes`; noise is part of the lead, and needs no margin of its own.

    >>> lead_for_size(20, Relation.REPLACE), lead_for_size(20, Relation.JOIN)
    (40, 20)
    """
    check.count(size=size)
    return int(size) * (1 if relation is Relation.JOIN else 2)


def _question(
    size: int, top: float, rival: float, threat: ThreatModel
) -> Callable[[float, Sampling, int], bool]:
    """Whether noise, sampling and rounds certify `size` units at these confidences, once they are checked."""
    check.count(size=size)
    for name, value in (("top", top), ("rival", rival)):
        if not 0 <= value <= 1:
            raise ValueError(f"{name} = {value!r} must be in [0, 1]")
    if not top > rival:
        raise ValueError(f"top = {top!r} must be larger than rival = {rival!r}: no noise certifies a tie")

    def holds(noise_multiplier: float, sampling: Sampling, rounds: int) -> bool:
        query = Query(noise_multiplier=noise_multiplier, sampling=sampling, count=rounds)
        return certifies(query, threat, size=int(size), top=top, rival=rival)

    return holds


def _smallest(enough: Callable[[float], bool], question: str) -> float:
    """The smallest noise multiplier for which `enough` holds, to relative precision, rounded up."""
    high = 1.0
    while not enough(high):
        high *= 4
        if high > _LARGEST_NOISE:
            raise ValueError(f"{question}: no noise multiplier up to {_LARGEST_NOISE:g} is enough")
    low = high / 4
    while enough(low):
        low, high = low / 4, low
        if low < 1e-3:
            return high
    while high - low > _PRECISION * high:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if enough(middle) else (middle, high)
    return _few_digits(enough, high)


def _few_digits(enough: Callable[[float], bool], value: float) -> float:
    """`value` to four significant digits, rounded down where that is still enough and up otherwise."""
    scale = 10.0 ** (3 - math.floor(math.log10(value)))
    down = math.floor(value * scale) / scale
    return down if enough(down) else math.ceil(value * scale) / scale


def _largest(holds: Callable[[int], bool], most: int) -> int:
    """The largest number from 1 to `most` for which `holds`, found by doubling and bisection; else zero."""
    if not holds(1):
        return 0
    low = 1
    while low < most and holds(min(2 * low, most)):
        low = min(2 * low, most)
    beyond = min(2 * low, most + 1)
    return bisect_left(range(beyond), True, lo=low + 1, key=lambda number: not holds(number)) - 1
