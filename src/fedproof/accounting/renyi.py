"""Rényi curves and their conversion to ε: the paper's way, the improved one, and Wang et al.'s bound."""

import math
from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy.special import gammaln, logsumexp

from fedproof.accounting.events import queries_of
from fedproof.arrays import Floats
from fedproof.mechanisms import Everyone, FixedSize, Mechanism, Poisson, Query

# The orders of the paper's implementation: 1.1, 1.2, …, 10.9 and 12, 13, …, 63.
PAPER_ORDERS: tuple[float, ...] = tuple(1 + i / 10 for i in range(1, 100)) + tuple(map(float, range(12, 64)))
# Wide enough that neither end of the grid decides ε.
WIDE_ORDERS: tuple[float, ...] = (
    tuple(1 + 2.0**i for i in np.linspace(-10, 5, 76))
    + tuple(map(float, range(34, 129, 2)))
    + tuple(float(round(2**i)) for i in np.linspace(7.125, 13, 48))
)


def rdp(source: Mechanism | DpEvent, orders: Sequence[float]) -> Floats:
    """Rényi divergence of one unit (add or remove; replace for cohorts of fixed size) at each order.

    Guarantee: rounded up, by more than the logarithm of a moment near one and the sums may have lost. It
    holds for any unit of any owner, so k units are k steps of it however they are spread over owners.
    """
    lost = 1e-14 / (np.asarray(orders, dtype=np.float64) - 1)
    curves = [query.count * (_rdp_once(query, tuple(orders)) + lost) for query in queries_of(source)]
    return np.asarray(np.sum(curves, axis=0)) * (1 + 1e-12)


def _rdp_once(query: Query, orders: tuple[float, ...]) -> Floats:
    match query.sampling:
        case Everyone():
            curve = np.asarray(orders) / (2 * query.noise_multiplier**2)
        case Poisson(probability=probability):
            curve = np.array([poisson_rdp(probability, query.noise_multiplier, order) for order in orders])
        case FixedSize(cohort=cohort, users=users):
            # Replacing one member moves the sum by twice the clip norm.
            halved = dp.GaussianDpEvent(query.noise_multiplier / 2)
            event = dp.SampledWithoutReplacementDpEvent(users, cohort, halved)
            curve = RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE).compose(event).rdp
    return _revealed(curve, np.asarray(orders, dtype=np.float64), query.selection_probability)


@lru_cache(maxsize=1 << 16)
def poisson_rdp(probability: float, noise_multiplier: float, order: float) -> float:
    """Rényi divergence of the Poisson-sampled Gaussian mechanism at any order above one.

    The divergence is log E[((1-q) + q exp((2z-1)/(2σ²)))^α] / (α-1) over z ~ N(0, σ²). The trapezoidal rule
    converges exponentially on this analytic integrand once the step resolves both its bumps and its nearest
    singularity, at distance πσ² from the real line. (`dp_accounting` has a series for it, which gives up at
    fractional orders when the noise is small.)

    Reference: Mironov, Talwar, Zhang 2019, arXiv:1908.10530v1, Theorem 5 and equation (3).
    """
    variance = noise_multiplier**2
    if probability == 1:
        return order / (2 * variance)
    step = min(noise_multiplier / 8, math.pi * variance / 6)
    z = np.arange(-13 * noise_multiplier, order + 13 * noise_multiplier, step)
    ratio = np.logaddexp(np.log1p(-probability), np.log(probability) + (2 * z - 1) / (2 * variance))
    moment = logsumexp(order * ratio - z**2 / (2 * variance)) + math.log(
        step / (noise_multiplier * math.sqrt(2 * math.pi))
    )
    return max(0.0, float(moment) / (order - 1))


def _revealed(curve: Floats, orders: Floats, probability: float) -> Floats:
    """Curve of a release that is made, openly, with `probability` only.

    The divergence's exponential moment is the average of those of the two cases.
    """
    if probability == 1:
        return curve
    moment = np.logaddexp(np.log1p(-probability), np.log(probability) + (orders - 1) * curve)
    return np.asarray(moment / (orders - 1))


def classical_epsilon(orders: Sequence[float], curve: Floats, delta: float) -> float:
    """The smallest rdp(α) + log(1/δ)/(α - 1): Mironov 2017, arXiv:1702.07476v3, Proposition 3."""
    return float(np.min(curve + math.log(1 / delta) / (np.asarray(orders) - 1)))


def paper_epsilon(source: Mechanism | DpEvent, delta: float) -> float:
    """ε in the convention of the paper's published tables.

    Cohorts of fixed size are accounted as if Poisson-sampled and InsDP-FedSGD as if every instance were drawn
    independently with the product of both probabilities; that is what was published, and is not sound.

    >>> from fedproof.mechanisms import UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> round(paper_epsilon(mechanism, delta=0.0029), 4)
    0.6298
    """
    return classical_epsilon(PAPER_ORDERS, _paper_rdp(source), delta)


def paper_delta(source: Mechanism | DpEvent, epsilon: float) -> float:
    """δ in the convention of the paper's published tables: the smallest exp((α - 1)(rdp(α) - ε))."""
    exponents = (np.asarray(PAPER_ORDERS) - 1) * (_paper_rdp(source) - epsilon)
    return min(1.0, float(np.exp(np.minimum(exponents, 0.0)).min()))


def _paper_rdp(source: Mechanism | DpEvent) -> Floats:
    """Rényi curve at the paper's orders, everything taken as Poisson-sampled."""
    total = np.zeros(len(PAPER_ORDERS))
    for query in queries_of(source):
        probability = query.sampling.probability * query.selection_probability
        sampled = replace(query, sampling=Poisson(probability=probability), selection_probability=1.0)
        total += sampled.count * _rdp_once(sampled, PAPER_ORDERS)
    return total


def rdp_epsilon(source: Mechanism | DpEvent, delta: float) -> float:
    """ε by the improved conversion over a wide grid of orders.

    Reference: Canonne, Kamath, Steinke 2020, arXiv:2004.00010v6, Proposition 12 (through `dp_accounting`).
    """
    epsilon, _ = compute_epsilon(WIDE_ORDERS, rdp(source, WIDE_ORDERS), delta)
    return float(epsilon)


def rdp_delta(source: Mechanism | DpEvent, epsilon: float) -> float:
    """δ by the improved conversion over a wide grid of orders."""
    delta, _ = compute_delta(WIDE_ORDERS, rdp(source, WIDE_ORDERS), epsilon)
    return float(delta)


def without_replacement_epsilon(source: Mechanism | DpEvent, delta: float) -> float:
    """ε by the paper's proposition: sampling without replacement as bounded by Wang et al.

    The bound with ε(α) = α/(2σ²) and the conversion log((α-1)/α) - (log δ + log α)/(α-1), at integer orders.

    Reference: Wang, Balle, Kasiviswanathan 2019, arXiv:1808.00087v3, Theorem 9; conversion of Balle et al.
    2020, arXiv:1905.09982v2, Theorem 21.
    """
    orders = np.unique(np.round(2 ** np.linspace(1, 11, 120))).astype(int)
    total = np.zeros(len(orders))
    for query in queries_of(source):
        probability = query.sampling.probability * query.selection_probability
        once = [_wang_bound(int(order), probability, query.noise_multiplier) for order in orders]
        total += query.count * np.array(once)
    conversion = np.log1p(-1 / orders) - (math.log(delta) + np.log(orders)) / (orders - 1)
    return max(0.0, float(np.min(total + conversion)))


def _wang_bound(order: int, probability: float, noise_multiplier: float) -> float:
    """Rényi divergence at an integer order after sampling without replacement."""
    base = 1 / (2 * noise_multiplier**2)  # ε(α) = base · α, ε(∞) = ∞
    if probability == 1:
        return order * base
    terms = [0.0]
    pair = 2 * math.log(probability) + math.log(order * (order - 1) / 2)
    terms.append(pair + min(math.log(4 * math.expm1(2 * base)), 2 * base + math.log(2)))
    j = np.arange(3, order + 1)
    choose = gammaln(order + 1) - gammaln(j + 1) - gammaln(order - j + 1)
    terms.extend(j * math.log(probability) + choose + (j - 1) * j * base + math.log(2))
    return float(logsumexp(terms) / (order - 1))
