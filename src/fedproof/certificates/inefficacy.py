"""Certified attack inefficacy: how little an attack with k units can achieve.

Costs are clipped to [0, C̄] (or [-C̄, 0]) before anything else; the clipped cost is what is certified, and the
share of clipped ones is reported.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from fedproof.accounting.events import Source
from fedproof.arrays import Floats
from fedproof.certificates.api import described
from fedproof.certificates.certificate import CostMethod, CostSettings, check_columns
from fedproof.certificates.confidence import MIXTURE, Bets, Bound, binomial_lower, mean_lower, mean_upper
from fedproof.certificates.paper_theorems import adversaries_needed, inefficacy_bounds
from fedproof.certificates.privacy import (
    ApproximateDP,
    curve_of_units,
    epsilon_delta,
    largest_size,
    unit_privacy,
)
from fedproof.certificates.scores import Array, check_costs, load
from fedproof.certificates.soundness import cost_assumptions, unmet_by_costs
from fedproof.certificates.tight import SLACK, TradeoffBySize
from fedproof.digests import fingerprint
from fedproof.mechanisms import Releases
from fedproof.statements import Statement, check_statements, stated
from fedproof.threat import ThreatModel

Interval = Callable[[int], tuple[float, float]]  # size -> bounds on the expected share under poisoning

_NUM_LEVELS = 64


@dataclass(frozen=True, kw_only=True)
class Inefficacy:
    """Bounds on the attacker's expected cost J(D') for each size.

    Guarantee: with probability at least 1 - ψ over the replicas, `lower[i] ≤ J(D') ≤ upper[i]` for every
    adversary of the threat with at most `sizes[i]` units, all sizes together, and dividing a positive J by τ
    (multiplying a negative one) takes at least `needed` units; None: more than `max_size`. This holds if
    `unmet` is empty and the `assumptions` hold.
    """

    settings: CostSettings
    cost: float
    lower: tuple[float, ...]
    upper: tuple[float, ...]
    needed: float | None
    clipped_share: float
    num_replicas: int
    costs_sha256: str
    unmet: tuple[Statement, ...]
    assumptions: tuple[Statement, ...]

    def __post_init__(self) -> None:
        check_statements(unmet=self.unmet, assumptions=self.assumptions)
        check_columns(self, ("lower", "upper"), len(self.sizes))

    @property
    def sizes(self) -> tuple[int, ...]:
        """The numbers of poisoned units that `lower` and `upper` are for."""
        return self.settings.sizes

    @property
    def sound(self) -> bool:
        """Whether every condition of the theorem holds; if not, `unmet` says which does not."""
        return not self.unmet

    @property
    def headline(self) -> dict[str, Any]:
        """The numbers people ask for first, as `--json` prints them."""
        return {
            "sizes": list(self.sizes),
            "lower": list(self.lower),
            "upper": list(self.upper),
            "needed": self.needed,
            "cost": self.cost,
            "clipped_share": self.clipped_share,
            "replicas": self.num_replicas,
            "sound": self.sound,
            "unmet": [statement.document() for statement in self.unmet],
        }


def inefficacy(
    costs: ArrayLike | str | Path,
    *,
    cost_bound: float,
    mechanism: Source | None = None,
    privacy: ApproximateDP | None = None,
    threat: ThreatModel | None = None,
    sizes: Iterable[int] = range(11),
    method: CostMethod | str = CostMethod.MEAN,
    bound: Bound | str | None = None,
    failure_probability: float = 0.01,
    tau: float | None = None,
    negative: bool = False,
    max_size: int = 200,
    delta: float | None = None,
    unmet: Sequence[Statement | str] = (),
    assumptions: Sequence[Statement | str] = (),
) -> Inefficacy:
    """Bounds on the attacker's expected cost from its value `costs` (replicas) in each clean replica.

    Mechanism, privacy, threat, unmet and assumptions as for `certify`. Method `paper` with a mechanism
    accounts ε at `delta`. The bound defaults to levels for method distribution and to betting for the others,
    which holds at all numbers of replicas together; ψ/2 is spent on each of the two ends.

    Guarantee: see `Inefficacy`.

    >>> privacy = ApproximateDP(epsilon=0.5, delta=0.0, relation="replace")
    >>> found = inefficacy([0.4, 0.4], cost_bound=0.5, privacy=privacy, sizes=[0, 1], bound="none", tau=10)
    >>> [round(value, 4) for value in found.lower], found.needed
    ([0.4, 0.3351], 5)
    """
    settings = cost_settings_for(
        cost_bound=cost_bound,
        negative=negative,
        mechanism=mechanism,
        privacy=privacy,
        threat=threat,
        method=method,
        bound=bound,
        failure_probability=failure_probability,
        sizes=sizes,
        tau=tau,
        max_size=max_size,
        delta=delta,
        unmet=unmet,
        assumptions=assumptions,
    )
    array = load(costs, "costs")
    check_costs(array)
    return bounds_of_costs(settings, array)


def cost_settings_for(
    *,
    mechanism: Source | None,
    privacy: ApproximateDP | None,
    threat: ThreatModel | None,
    method: CostMethod | str,
    bound: Bound | str | None,
    sizes: Iterable[int],
    delta: float | None,
    unmet: Sequence[Statement | str],
    assumptions: Sequence[Statement | str],
    **others: Any,
) -> CostSettings:
    """Settings with everything that follows from what was asked for; `others` as in `CostSettings`."""
    chosen = CostMethod(method)
    described_as, threat = described(mechanism, threat)
    if described_as is not None and described_as.releases is not Releases.REPLICAS:
        raise ValueError(
            f"kind = '{described_as.kind}' has no replicas, whose costs are bounded here: what its own "
            "models cost under attack follows from their certificate"
        )
    paper = chosen is CostMethod.PAPER
    return CostSettings(
        mechanism=described_as,
        privacy=epsilon_delta(described_as, privacy, wanted=paper, delta=delta),
        threat=threat,
        method=chosen,
        bound=Bound(bound or (Bound.LEVELS if chosen is CostMethod.DISTRIBUTION else Bound.BETTING)),
        sizes=tuple(sizes),
        stated_unmet=stated(unmet, "unmet", "unmet-as-stated"),
        stated_assumptions=stated(assumptions, "assumptions", "stated"),
        **others,
    )


def bounds_of_costs(settings: CostSettings, costs: Array) -> Inefficacy:
    """The bounds for complete settings and checked costs."""
    sign = -1.0 if settings.negative else 1.0
    raw = sign * costs.astype(np.float64) / settings.cost_bound
    shares = np.clip(raw, 0.0, 1.0)
    low, high = clean_interval(shares, settings.bound, settings.failure_probability / 2)
    interval = _interval(settings, shares, low, high)
    ends = np.array([interval(size) for size in settings.sizes]).reshape(-1, 2) * settings.cost_bound
    lower, upper = (-ends[:, 1], -ends[:, 0]) if settings.negative else (ends[:, 0], ends[:, 1])
    return Inefficacy(
        settings=settings,
        cost=float(sign * shares.mean() * settings.cost_bound),
        lower=tuple(lower.tolist()),
        upper=tuple(upper.tolist()),
        needed=_needed(settings, interval, low, high),
        clipped_share=float(np.mean(raw != shares)),
        num_replicas=len(costs),
        costs_sha256=fingerprint(costs),
        unmet=unmet_by_costs(settings),
        assumptions=cost_assumptions(settings),
    )


def _interval(settings: CostSettings, shares: Floats, low: float, high: float) -> Interval:
    if settings.method is CostMethod.PAPER:
        return paper_interval(low, high, *unit_privacy(settings.mechanism, settings.privacy, settings.threat))
    curve = curve_of_units(settings.mechanism, settings.privacy, settings.threat)
    if settings.method is CostMethod.MEAN:
        return mean_interval(low, high, curve)
    return distribution_interval(shares, curve, settings.failure_probability / 2)


def _needed(settings: CostSettings, interval: Interval, low: float, high: float) -> float | None:
    """Units without which the goal τ is out of reach.

    More are needed the larger |J| is (L_k(x)/x increases in x, U_k(x)/x decreases), so methods that know the
    mean only take its lower bound for both the start and the goal. A goal that is missed by float error
    alone is within reach.
    """
    tau, privacy = settings.tau, settings.privacy
    if tau is None:
        return None
    if settings.method is CostMethod.PAPER:
        epsilon, delta = unit_privacy(settings.mechanism, privacy, settings.threat)
        start, negative = -low if settings.negative else low, settings.negative
        needed = adversaries_needed(
            start, tau, cost_bound=1.0, epsilon=epsilon, delta=delta, negative=negative
        )
        return float(needed) if np.isfinite(needed) else None
    if settings.method is CostMethod.MEAN:
        high = low
        interval = mean_interval(low, low, curve_of_units(settings.mechanism, privacy, settings.threat))
    most = largest_size(settings.mechanism, settings.threat, settings.max_size)
    if settings.negative:
        if tau * low > 1 + SLACK:  # no share of the bound is larger than all of it
            return None
        return needed_size(lambda size: interval(size)[1] >= tau * low - SLACK, most)
    return needed_size(lambda size: interval(size)[0] <= high / tau + SLACK, most)


# --- how far k units move an expected cost, a share of its bound C̄ in [0, 1] -------------------------------


def clean_interval(
    shares: Floats, bound: Bound, failure_probability: float, bets: Bets = MIXTURE
) -> tuple[float, float]:
    """Bounds on the expected share without poisoning; each fails with at most `failure_probability`."""
    if bound is Bound.LEVELS:
        return _from_levels(shares, failure_probability), 1 - _from_levels(1 - shares, failure_probability)
    column = shares[:, None]
    low = mean_lower(column, bound, failure_probability, bets=bets)
    return float(low[0]), float(mean_upper(column, bound, failure_probability, bets=bets)[0])


def paper_interval(low: float, high: float, epsilon: float, delta: float) -> Interval:
    """The paper's bounds, from bounds on the clean expectation and (ε, δ) of one unit."""

    def interval(size: int) -> tuple[float, float]:
        lower, _ = inefficacy_bounds(low, size, cost_bound=1.0, epsilon=epsilon, delta=delta)
        _, upper = inefficacy_bounds(high, size, cost_bound=1.0, epsilon=epsilon, delta=delta)
        return float(lower), float(upper)

    return interval


def mean_interval(low: float, high: float, curve: TradeoffBySize) -> Interval:
    """[L_k(J), U_k(J)], from bounds on the clean expectation.

    Reference: theory.md, section 3.

    >>> from fedproof.accounting.tradeoff import GaussianTradeoff
    >>> lower, upper = mean_interval(0.5, 0.5, lambda k: GaussianTradeoff(shift=k / 4))(4)
    >>> round(lower, 4), round(upper, 4)
    (0.1587, 0.8413)
    """
    return lambda size: (float(curve(size).lower(low)), float(curve(size).upper(high)))


def distribution_interval(shares: Floats, curve: TradeoffBySize, failure_probability: float) -> Interval:
    """[∫ L_k(Pr[C > a]) da, 1 - ∫ L_k(Pr[1 - C > a]) da], from bands of the two survival functions.

    Guarantee: each end fails with at most `failure_probability`, for all sizes together, because the bands do
    not depend on the size.
    Reference: theory.md, section 3.
    """
    down, up = _band(shares, failure_probability), _band(1 - shares, failure_probability)

    def interval(size: int) -> tuple[float, float]:
        tradeoff = curve(size)
        return float(tradeoff.lower(down).mean()), float(1 - tradeoff.lower(up).mean())

    return interval


def needed_size(reached: Callable[[int], bool], max_size: int) -> int | None:
    """Smallest size with `reached`, which must be monotone; None if `max_size` is not enough.

    Sizes are doubled before they are halved, so that none is asked for that is far larger than needed.

    >>> needed_size(lambda size: size >= 5, 10**18)
    5
    """
    low, high = -1, 0
    while not reached(high):
        if high == max_size:
            return None
        low, high = high, min(max(1, 2 * high), max_size)
    return bisect_left(range(high), True, lo=low + 1, key=reached)


def _band(shares: Floats, failure_probability: float) -> Floats:
    """Lower bounds on Pr[share >= a] at the levels a = 1/n, 2/n, ..., 1, all together."""
    levels = np.arange(1, _NUM_LEVELS + 1) / _NUM_LEVELS
    counts = np.sum(shares[:, None] >= levels, axis=0)
    return np.asarray(binomial_lower(len(shares), failure_probability / _NUM_LEVELS)[counts])


def _from_levels(shares: Floats, failure_probability: float) -> float:
    return float(_band(shares, failure_probability).mean())
