"""Trade-off curves: how small, or large, a probability can become when k units are poisoned.

For clean and poisoned output distributions P and Q, and every [0,1]-valued statistic φ of the model,

    E_Q φ ∈ [L(E_P φ), U(E_P φ)],   L(p) = inf{Q(E) : P(E) >= p},   U(p) = 1 - L(1 - p).

L is the supremum of the lines (p - H_α(P||Q))/α over α > 0. Any set of α with upper bounds on H_α therefore
gives a valid lower bound, which is how every curve here stays on the safe side.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache, reduce
from typing import Protocol

import numpy as np
from dp_accounting import DpEvent
from numpy.typing import ArrayLike
from scipy.special import ndtr, ndtri

from fedproof import check
from fedproof.accounting.events import queries_of
from fedproof.accounting.loss import LossDistribution
from fedproof.accounting.pairs import FixedSizePair, MonotonePair, fixed_size_pair, poisson_pair
from fedproof.accounting.sampling import adversaries_drawn, joined_drawn
from fedproof.accounting.spread import SpreadPair
from fedproof.arrays import Floats
from fedproof.mechanisms import Everyone, FixedSize, Mechanism, Poisson, Query, Sampling
from fedproof.threat import Relation, ThreatModel

# Grid points per standard deviation of one release's loss; the bound is valid for any value.
RESOLUTION = 40.0
_MOST_LINES = 8192
# Of a tangent: steeper lines help nowhere below p = 1 - 1e-9, and slope * p would lose its digits.
_STEEPEST = 1e9
# Cells of the grid times components of the mixture: bounds the memory of one pair to some 100 MB.
_MOST_WORK = 1 << 21
_MOST_CELLS = 1 << 16

Pair = MonotonePair | FixedSizePair | SpreadPair


class Tradeoff(Protocol):
    """A convex, increasing L with L(0) = 0, and U(p) = 1 - L(1 - p)."""

    def lower(self, probability: ArrayLike) -> Floats:
        """Smallest probability under poisoning of what has `probability` on clean data."""

    def upper(self, probability: ArrayLike) -> Floats:
        """Largest probability under poisoning of what has `probability` on clean data."""

    def tangent(self, probability: ArrayLike) -> tuple[Floats, Floats]:
        """Slopes and intercepts of lines that lie below L everywhere and touch it at `probability`."""


@dataclass(frozen=True, kw_only=True)
class GaussianTradeoff:
    """The curve of N(0, 1) against N(shift, 1), in closed form: L(p) = Φ(Φ⁻¹(p) - shift).

    Reference: Dong, Roth, Su 2022 (Gaussian differential privacy), arXiv:1905.02383v3, Definition 2.6.

    >>> round(float(GaussianTradeoff(shift=1.0).lower(0.97)), 4)
    0.8108
    """

    shift: float

    def lower(self, probability: ArrayLike) -> Floats:
        """Smallest probability under poisoning, elementwise."""
        return np.asarray(ndtr(ndtri(np.asarray(probability, dtype=np.float64)) - self.shift))

    def upper(self, probability: ArrayLike) -> Floats:
        """Largest probability under poisoning, elementwise."""
        return np.asarray(ndtr(ndtri(np.asarray(probability, dtype=np.float64)) + self.shift))

    def tangent(self, probability: ArrayLike) -> tuple[Floats, Floats]:
        """The tangent at each probability; L'(p) = exp(shift Φ⁻¹(p) - shift²/2).

        Next to one it touches a little earlier, where it is not yet too steep to be computed with.
        """
        steepest = math.log(_STEEPEST) / self.shift + self.shift / 2 if self.shift > 0 else 8.0
        quantile = np.clip(ndtri(np.asarray(probability, dtype=np.float64)), -8.0, min(8.0, steepest))
        slope = np.exp(self.shift * quantile - self.shift**2 / 2)
        intercept = ndtr(quantile - self.shift) - slope * ndtr(quantile)
        return slope, intercept - _rounding_of_line(slope)


@dataclass(frozen=True, kw_only=True)
class PiecewiseTradeoff:
    """The supremum of lines given by privacy profiles, both read at `epsilons` >= 0.

    L(p) >= (p - δ(ε)) e^{-ε}                 with δ(ε)  >= H_{e^ε}(P || Q)   (`forward`)
    L(p) >= 1 - δ'(ε) - (1 - p) e^{ε}         with δ'(ε) >= H_{e^ε}(Q || P)   (`backward`)
    """

    epsilons: Floats  # increasing, not negative
    forward: Floats  # upper bounds on δ(ε)
    backward: Floats  # upper bounds on δ'(ε)
    full: float = 1.0  # L(1); one where P and Q have the same support, as with any noise

    @cached_property
    def _shallow(self) -> Floats:
        """Increasing: beyond which p a line of `forward` is overtaken by the next steeper one."""
        shrink = np.exp(-self.epsilons)
        return _breaks(self.forward * shrink, shrink)

    @cached_property
    def _steep(self) -> Floats:
        """Increasing: beyond which 1 - p a line of `backward` is overtaken by the next shallower one."""
        return _breaks(self.backward, -np.exp(self.epsilons))

    def lower(self, probability: ArrayLike) -> Floats:
        """Smallest probability under poisoning, elementwise."""
        p = np.asarray(probability, dtype=np.float64)
        return self._value(p, 1 - p)

    def upper(self, probability: ArrayLike) -> Floats:
        """Largest probability under poisoning, elementwise.

        1 - L(1 - p), from p itself: 1 - p would be one for every p below 1e-16, and L(1) says nothing of it.
        """
        p = np.asarray(probability, dtype=np.float64)
        return 1 - self._value(1 - p, p)

    def tangent(self, probability: ArrayLike) -> tuple[Floats, Floats]:
        """The line that is active at each probability."""
        p = np.asarray(probability, dtype=np.float64)
        slope, intercept, value = self._lines(p, np.maximum(1 - p, 1 / _STEEPEST))
        useful = value > 0
        rounded_down = intercept - _rounding_of_line(slope)
        return np.where(useful, slope, 0.0), np.where(useful, rounded_down, 0.0)

    def _value(self, p: Floats, rest: Floats) -> Floats:
        """L at p = 1 - rest, where the smaller of the two is exact."""
        *_, value = self._lines(p, rest)
        return np.where(rest <= 0, self.full, np.clip(value, 0.0, 1.0))

    def _lines(self, p: Floats, rest: Floats) -> tuple[Floats, Floats, Floats]:
        """Slope and intercept of the best line at each p = 1 - rest, and its value there."""
        last = len(self.epsilons) - 1
        best_slope, best_intercept, best = np.zeros_like(p), np.zeros_like(p), np.zeros_like(p)
        near_shallow = last - np.searchsorted(self._shallow, p)
        near_steep = last - np.searchsorted(self._steep, rest)
        for near, steeper in ((near_shallow, False), (near_steep, True)):
            for offset in (-1, 0, 1):  # neighbours too: a rounded break must not cost anything
                index = np.clip(near + offset, 0, last)
                if steeper:
                    slope = np.exp(self.epsilons[index])
                    top = 1 - self.backward[index]
                    intercept, value = top - slope, top - slope * rest
                else:
                    slope = np.exp(-self.epsilons[index])
                    intercept = -self.forward[index] * slope
                    value = slope * p + intercept
                better = value > best
                best = np.where(better, value, best)
                best_slope = np.where(better, slope, best_slope)
                best_intercept = np.where(better, intercept, best_intercept)
        return best_slope, best_intercept, best


def _breaks(intercepts: Floats, slopes: Floats) -> Floats:
    """Where each of the lines `slope * x - intercept` meets the next, from the last to the first."""
    with np.errstate(divide="ignore", invalid="ignore"):
        meet = (intercepts[:-1] - intercepts[1:]) / (slopes[:-1] - slopes[1:])
    return np.asarray(np.maximum.accumulate(np.nan_to_num(meet[::-1], nan=0.0)))


def _rounding_of_line(slope: Floats) -> Floats:
    """What slope * p + intercept may have lost, for all p in [0, 1]."""
    return np.asarray(4 * np.finfo(np.float64).eps * (1 + slope))


IDENTITY = GaussianTradeoff(shift=0.0)
NOTHING = PiecewiseTradeoff(epsilons=np.zeros(1), forward=np.ones(1), backward=np.ones(1), full=0.0)
LARGEST = 10**7  # sums over more units take minutes


def check_units(**sizes: int) -> None:
    """Raise ValueError unless every size is a number of poisoned units that a curve can be computed for."""
    check.not_negative_count(**sizes)
    for name, size in sizes.items():
        if size > LARGEST:
            raise ValueError(f"{name} = {size} must be at most {LARGEST}")


def tradeoff(source: Mechanism | DpEvent, threat: ThreatModel, size: int) -> Tradeoff:
    """The curve for `size` poisoned units.

    Guarantee: for every [0,1]-valued statistic of the trained model, its expectation after `size` units were
    poisoned lies between `lower` and `upper` of its expectation on clean data.
    Assumes: the mechanism's sampling, clipping and noise were executed as described.

    >>> from fedproof.mechanisms import UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> curve = tradeoff(mechanism, ThreatModel(unit="user", relation="replace"), size=11)
    >>> bool(curve.lower(0.97) > curve.upper(0.03))
    True
    """
    check_units(size=size)
    if isinstance(source, DpEvent):
        return curve_of(queries_of(source), threat.relation, int(size), RESOLUTION)
    if source.unit != threat.unit:
        raise ValueError(
            f"unit = '{threat.unit}' must be '{source.unit}': {type(source).__name__} protects one "
            f"{source.unit}"
        )
    return curve_of(source.certified_queries or queries_of(source), threat.relation, int(size), RESOLUTION)


@lru_cache(maxsize=512)
def sampling_curve(sampling: Poisson | FixedSize, relation: Relation, size: int) -> Tradeoff:
    """The curve of units drawn once and trained on in any way, without noise.

    Let w_0 be the probability that no adversary is drawn. Clean and poisoned training agree in that case and
    may differ arbitrarily otherwise. `replace`: H_α <= 1 - w_0 for all α >= 1, hence L(p) = p - (1 - w_0).
    `join`: P = R and Q = w_0 R + (1 - w_0) X with any X, so H_α(P || Q) = 1 - α w_0 and
    H_α(Q || P) = 1 - w_0; it is read both ways, and the second time the adversaries are among the users
    trained on. L is the largest convex curve below both readings. Where no cohort can be drawn without the
    adversaries nothing is said, of what is certain neither.

    Reference: theory.md, section 3, "Certificates from sampling alone"; Cao, Jia, Gong 2021 (Ensemble-FL),
    arXiv:2102.01854 for votes under `replace`.

    >>> curve = sampling_curve(FixedSize(cohort=5, users=1000), Relation.REPLACE, 20)
    >>> round(float(curve.lower(1.0)), 4), round(float(curve.lower(0.95)), 4)
    (0.9037, 0.8537)
    """
    if size == 0:
        return IDENTITY
    users = sampling.drawn_from or size
    if relation == Relation.REPLACE and size > users:
        raise ValueError(f"size = {size} must be at most the number of users = {users}")
    among = adversaries_drawn(sampling, min(size, users))
    if relation == Relation.REPLACE:
        lost = np.array([among.any])
        return PiecewiseTradeoff(epsilons=np.zeros(1), forward=lost, backward=lost, full=among.none)
    if _too_few(sampling, size):
        return NOTHING
    joined = joined_drawn(sampling, size)
    epsilons = np.zeros(1)
    if joined.none > among.none > 0:  # from this slope on, the second reading says no more than the first
        epsilons = np.array([0.0, math.log(joined.none / among.none) + 2 * joined.given_away])
    return PiecewiseTradeoff(
        epsilons=epsilons,
        forward=np.full(len(epsilons), among.any),
        backward=np.array([among.any, joined.any])[: len(epsilons)],
        full=joined.none,
    )


@lru_cache(maxsize=512)
def curve_of(queries: tuple[Query, ...], relation: Relation, size: int, resolution: float) -> Tradeoff:
    """The curve of several queries, one after another; of one without noise, from its sampling alone."""
    if size == 0:
        return IDENTITY
    drawn = [query.sampling for query in queries if not query.noise_multiplier]
    if drawn:
        return sampling_curve(_alone(drawn, len(queries)), relation, size)
    if all(_takes_everyone(query) for query in queries):
        factor = 1 if relation == Relation.JOIN else 2
        shift = math.sqrt(sum(query.count / query.noise_multiplier**2 for query in queries))
        return GaussianTradeoff(shift=factor * size * shift)
    if relation == Relation.JOIN and any(_too_few(query.sampling, size) for query in queries):
        return NOTHING
    forward, backward = composed_losses(queries, relation, size, resolution)
    return _from_losses(forward, backward, symmetric=relation == Relation.JOIN)


def _alone(drawn: list[Sampling], num_queries: int) -> Poisson | FixedSize:
    """The sampling of a query without noise; no curve is known for one beside others."""
    if num_queries != 1 or isinstance(drawn[0], Everyone):
        raise ValueError(f"queries = {num_queries} must be one, of sampled units, where there is no noise")
    return drawn[0]


def _too_few(sampling: Sampling, size: int) -> bool:
    """Whether a cohort of fixed size could not be drawn without the adversaries."""
    return isinstance(sampling, FixedSize) and size > sampling.users - sampling.cohort


def _takes_everyone(query: Query) -> bool:
    always = isinstance(query.sampling, Everyone) or query.sampling == Poisson(probability=1.0)
    return always and query.selection_probability == 1


def dominating_pair(query: Query, relation: Relation, size: int) -> Pair:
    """The pair that dominates one of the query's releases when `size` units are poisoned."""
    if query.selection_probability < 1:
        return SpreadPair(query=query, relation=relation, size=size)
    if query.sampling.closed:
        return fixed_size_pair(query, relation, size)
    return poisson_pair(query, relation, size)


def grid_step(pairs: Sequence[Pair], resolution: float) -> float:
    """The common grid of pairs that are composed: any step is sound, a small one is tight.

    `resolution` points per standard deviation of the narrowest loss, as far as memory allows for the widest.
    """
    wanted, least = math.inf, 1e-12
    for pair in pairs:
        spread, reach = pair.spread_and_reach()
        most_cells = min(_MOST_CELLS, _MOST_WORK // pair.num_components)
        wanted, least = min(wanted, spread / resolution), max(least, 2 * reach / most_cells)
    return max(wanted, least)


def composed_losses(
    queries: tuple[Query, ...], relation: Relation, size: int, resolution: float = RESOLUTION
) -> tuple[LossDistribution, LossDistribution]:
    """Losses of all queries together: log(P/Q) under P and log(Q/P) under Q."""
    pairs = [dominating_pair(query, relation, size) for query in queries]
    step = grid_step(pairs, resolution)
    discrete = [pair.discretise(step) for pair in pairs]
    counts = [query.count for query in queries]
    forward = _one_after_another([pair.forward for pair in discrete], counts)
    if relation == Relation.REPLACE:  # the pair is symmetric
        return forward, forward
    return forward, _one_after_another([pair.backward for pair in discrete], counts)


def _one_after_another(releases: list[LossDistribution], counts: list[int]) -> LossDistribution:
    repeated = [release.repeat(count) for release, count in zip(releases, counts, strict=True)]
    return reduce(LossDistribution.then, repeated)


def _from_losses(
    forward: LossDistribution, backward: LossDistribution, *, symmetric: bool
) -> PiecewiseTradeoff:
    """Lines from the two profiles; `symmetric` takes the worse one for both (`join` is read both ways)."""
    (eps_f, delta_f), (eps_b, delta_b) = forward.profile(), backward.profile()
    epsilons = eps_f if eps_f[-1] >= eps_b[-1] else eps_b
    if len(epsilons) > _MOST_LINES:
        epsilons = epsilons[np.unique(np.linspace(0, len(epsilons) - 1, _MOST_LINES).astype(int))]
    # Between grid points δ is convex in e^ε, so interpolating in e^ε rounds up; beyond the last, so does
    # keeping it constant.
    first, second = (
        np.interp(np.exp(epsilons), np.exp(eps), delta) for eps, delta in ((eps_f, delta_f), (eps_b, delta_b))
    )
    if symmetric:
        first = second = np.maximum(first, second)
    return PiecewiseTradeoff(epsilons=epsilons, forward=first, backward=second)
