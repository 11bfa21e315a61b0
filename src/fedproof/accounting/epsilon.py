"""ε of a mechanism under every accountant, of an ensemble, and of users with accounts of their own.

Rényi curves are converted in three ways: the paper's, the improved one, and with Wang et al.'s bound.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import lru_cache

import dp_accounting as dp
import numpy as np
from dp_accounting import DpEvent
from dp_accounting.rdp import RdpAccountant, compute_epsilon
from dp_accounting.rdp.rdp_privacy_accountant import compute_delta
from scipy.special import gammaln, logsumexp

from fedproof import check
from fedproof.accounting.events import queries_of
from fedproof.accounting.tradeoff import composed_losses
from fedproof.arrays import Floats
from fedproof.mechanisms import Everyone, FixedSize, InstanceFedAvg, Mechanism, Poisson, Queries, Query
from fedproof.threat import Relation

# The orders of the paper's implementation: 1.1, 1.2, …, 10.9 and 12, 13, …, 63.
PAPER_ORDERS: tuple[float, ...] = tuple(1 + i / 10 for i in range(1, 100)) + tuple(map(float, range(12, 64)))
# Wide enough that neither end of the grid decides ε.
WIDE_ORDERS: tuple[float, ...] = (
    tuple(1 + 2.0**i for i in np.linspace(-10, 5, 76))
    + tuple(map(float, range(34, 129, 2)))
    + tuple(float(round(2**i)) for i in np.linspace(7.125, 13, 48))
)
_MOST_STEPS = 1 << 20  # of an integral over which a Rényi divergence is computed


def rdp(source: Mechanism | DpEvent, orders: Sequence[float]) -> Floats:
    """Rényi divergence of one unit (add or remove; replace for cohorts of fixed size) at each order.

    Guarantee: rounded up, by more than the logarithm of a moment near one and the sums may have lost. All
    queries are for one relation: beside cohorts of fixed size a unit is replaced in every other query too. It
    holds for any unit of any owner, so k units are k steps of it however they are spread over owners.
    """
    lost = 1e-14 / (np.asarray(orders, dtype=np.float64) - 1)
    replaced, queries = natural_relation(source) is Relation.REPLACE, queries_of(source)
    curves = [query.count * (_rdp_once(query, tuple(orders), replaced) + lost) for query in queries]
    return np.asarray(np.sum(curves, axis=0)) * (1 + 1e-12)


def _rdp_once(query: Query, orders: tuple[float, ...], replaced: bool = False) -> Floats:
    noise = query.noise_multiplier
    match query.sampling:
        case Everyone():
            curve = np.asarray(orders) / (2 * (noise / (1 + replaced)) ** 2)
        case Poisson(probability=probability):
            curve = np.array([poisson_rdp(probability, noise, order, replaced) for order in orders])
        case FixedSize(cohort=cohort, users=users):
            # Replacing one member moves the sum by twice the clip norm.
            halved = dp.GaussianDpEvent(query.noise_multiplier / 2)
            event = dp.SampledWithoutReplacementDpEvent(users, cohort, halved)
            curve = RdpAccountant(orders, dp.NeighboringRelation.REPLACE_ONE).compose(event).rdp
    return _revealed(curve, np.asarray(orders, dtype=np.float64), query.selection_probability)


@lru_cache(maxsize=1 << 16)
def poisson_rdp(probability: float, noise_multiplier: float, order: float, replaced: bool = False) -> float:
    """Rényi divergence of the Poisson-sampled Gaussian mechanism at any order above one.

    With r(z) = (1-q) + q exp((2z-1)/(2σ²)) the divergence is log E[r(z)^α] / (α-1) over z ~ N(0, σ²), and for
    a unit that is replaced log E[r(z)^α r(-z)^(1-α)] / (α-1). The trapezoidal rule converges exponentially on
    these analytic integrands once the step resolves their bumps and their nearest singularities, at distance
    πσ² from the real line. (`dp_accounting` has a series, which gives up at fractional orders when the noise
    is small.) Where that takes too many steps, an upper bound is given: by Minkowski's inequality the norm of
    r in L^α is at most (1-q) + q exp((α-1)/(2σ²)); r(-z) is at least 1-q, and a divergence no larger than if
    units are drawn for certain.

    Reference: Mironov, Talwar, Zhang 2019, arXiv:1908.10530v1, Theorem 5 and equation (3); pairs: `pairs`.
    """
    variance = noise_multiplier**2
    if probability == 1:
        return order * (1 + 3 * replaced) / (2 * variance)
    step = min(noise_multiplier / 8, math.pi * variance / 6)
    begin, end = -13 * noise_multiplier, order * (1 + replaced) + 13 * noise_multiplier
    if (end - begin) / step > _MOST_STEPS:
        drawn = math.log(probability) + (order - 1) / (2 * variance)
        added = float(order / (order - 1) * np.logaddexp(math.log1p(-probability), drawn))
        return min(2 * order / variance, added - math.log1p(-probability)) if replaced else added

    def log_ratio(x: Floats) -> Floats:
        drawn = np.log(probability) + (2 * x - 1) / (2 * variance)
        return np.asarray(np.logaddexp(np.log1p(-probability), drawn))

    z = np.arange(begin, end, step)
    powers = order * log_ratio(z) + ((1 - order) * log_ratio(-z) if replaced else 0.0)
    moment = logsumexp(powers - z**2 / (2 * variance)) + math.log(
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


def paper_epsilon(source: Mechanism | DpEvent, delta: float) -> float:
    """ε in the convention of the paper's published tables: the smallest rdp(α) + log(1/δ)/(α - 1).

    Cohorts of fixed size are accounted as if Poisson-sampled and InsDP-FedSGD as if every instance were drawn
    independently with the product of both probabilities; that is what was published, and is not sound.
    Reference: Mironov 2017, arXiv:1702.07476v3, Proposition 3, for the conversion.

    >>> from fedproof.mechanisms import UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> round(paper_epsilon(mechanism, delta=0.0029), 4)
    0.6298
    """
    return float(np.min(_paper_rdp(source) + math.log(1 / delta) / (np.asarray(PAPER_ORDERS) - 1)))


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


# --- privacy-loss distributions, and all accountants beside each other --------------------------------------

# ε is rounded up to the next of these, so that a printed number is never below the computed one.
_DIGITS = 10
_MANY = 1e6  # from which on a float64 has no such digits

Accountant = Callable[[Mechanism | DpEvent, float], float]


def natural_relation(source: Mechanism | DpEvent) -> Relation:
    """The relation ε is stated for: one unit added or removed, or replaced if cohorts have a fixed size."""
    fixed = any(query.sampling.closed for query in queries_of(source))
    return Relation.REPLACE if fixed else Relation.JOIN


def pld_epsilon(source: Mechanism | DpEvent, delta: float) -> float:
    """The tightest known ε: privacy-loss distributions, composed.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> round(pld_epsilon(mechanism, delta=0.0029), 3)
    0.211
    """
    forward, backward = composed_losses(queries_of(source), natural_relation(source), size=1)
    return max(forward.epsilon(delta), backward.epsilon(delta))


def replaced_epsilon(mechanism: Mechanism, delta: float) -> float:
    """ε for one unit that is replaced by another, rounded up; `account` is for one added or removed.

    >>> from fedproof.mechanisms import OneRound
    >>> from fedproof.mechanisms.uploads import Rows
    >>> rows = OneRound(upload=Rows(features=16, classes=10), noise_multiplier=5.0)
    >>> round(account(rows, 5e-4, ["pld"])["pld"], 3), round(replaced_epsilon(rows, 5e-4), 3)
    (0.502, 1.126)
    """
    forward, backward = composed_losses(mechanism.replaced, Relation.REPLACE, size=1)
    return round_up(max(forward.epsilon(delta), backward.epsilon(delta)))


def sum_epsilon(mechanism: Mechanism, delta: float) -> dict[str, float] | None:
    """ε of the released sum alone, where users add noise themselves, by the relation it is for; rounded up.

    None where the server adds it: the sum is then all that there is to see.

    Guarantee: (ε, δ)-DP towards whoever sees the sum and nothing of what is sent, if as many users as the
    mechanism says add their noise. Proof: by `Local` the sum is a Gaussian query but for a chance τ, so it is
    (ε, δ' + (1 + e^ε) τ)-DP wherever the query is (ε, δ'). With half of δ for δ' there is a first ε; what is
    left of δ beside its (1 + e^ε) τ gives a smaller one, whose own is smaller too. The sum is computed from
    what the server sees: the ε towards the server holds as well.

    >>> from fedproof.mechanisms import Local
    >>> from fedproof.mechanisms.uploads import Ball
    >>> local = Local(upload=Ball(features=16, classes=10), noise_multiplier=1.0, honest=500)
    >>> {relation: round(value, 3) for relation, value in (sum_epsilon(local, 5e-4) or {}).items()}
    {'join': 0.086, 'replace': 0.196}
    """
    if mechanism.honest is None:
        return None
    server = {
        Relation.JOIN: round_up(pld_epsilon(mechanism, delta)),
        Relation.REPLACE: replaced_epsilon(mechanism, delta),
    }
    return {
        relation.value: min(most, round_up(_sum_epsilon(mechanism, delta, relation)))
        for relation, most in server.items()
    }


def _sum_epsilon(mechanism: Mechanism, delta: float, relation: Relation) -> float:
    seen = mechanism.sum_query(relation)
    if seen is None:
        return math.inf
    query, chance = seen
    losses = composed_losses((query,), relation, size=1)
    first = max(loss.epsilon(delta / 2) for loss in losses)
    lost = (1 + math.exp(first)) * chance
    return max(loss.epsilon(delta - lost) for loss in losses) if lost <= delta / 2 else math.inf


def pld_delta(source: Mechanism | DpEvent, epsilon: float) -> float:
    """δ for a given ε, by privacy-loss distributions."""
    check.not_negative(epsilon=epsilon)
    forward, backward = composed_losses(queries_of(source), natural_relation(source), size=1)
    return max(forward.delta(epsilon), backward.delta(epsilon))


def dopamine_epsilon(mechanism: Mechanism, delta: float) -> float:
    """ε of InsDP-FedSGD without amplification by the choice of users, in the paper's convention.

    Reference: Malekzadeh, Hasircioglu, Mital, Katarya, Ozfatura, Gündüz 2021 (Dopamine), arXiv:2101.11693v2.
    """
    everyone = tuple(replace(query, selection_probability=1.0) for query in mechanism.queries)
    return paper_epsilon(Queries(queries=everyone), delta)


ACCOUNTANTS: dict[str, Accountant] = {
    "paper": paper_epsilon,
    "rdp": rdp_epsilon,
    "rdp-without-replacement": without_replacement_epsilon,
    "pld": pld_epsilon,
}


def account(
    source: Mechanism | DpEvent, delta: float, accountants: Sequence[str] = ("paper", "rdp", "pld")
) -> dict[str, float]:
    """ε of one unit for a given δ under each accountant, rounded up.

    Guarantee: `rdp` and `pld` are (ε, δ)-DP for one unit added or removed (replaced, for cohorts of fixed
    size). `paper` and `rdp-without-replacement` reproduce what was published (`soundness.unproved`).

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=1, noise_multiplier=6, sampling=Poisson(probability=0.2))
    >>> {name: round(value, 3) for name, value in account(mechanism, delta=0.0029).items()}
    {'paper': 0.145, 'rdp': 0.056, 'pld': 0.036}
    """
    check.open_probability(delta=delta)
    for name in accountants:
        if name not in ACCOUNTANTS:
            raise ValueError(f"accountant = {name!r} must be one of {', '.join(ACCOUNTANTS)}")
    return {name: round_up(ACCOUNTANTS[name](source, delta)) for name in accountants}


def account_delta(source: Mechanism | DpEvent, epsilon: float) -> dict[str, float]:
    """δ of one unit for a given ε under each accountant.

    >>> from fedproof.mechanisms import Poisson, UserFedAvg
    >>> mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    >>> {name: round(value, 4) for name, value in account_delta(mechanism, epsilon=0.6298).items()}
    {'paper': 0.0029, 'rdp': 0.0001, 'pld': 0.0}
    """
    check.not_negative(epsilon=epsilon)
    return {
        "paper": paper_delta(source, epsilon),
        "rdp": rdp_delta(source, epsilon),
        "pld": pld_delta(source, epsilon),
    }


def ensemble_account(source: Mechanism | DpEvent, delta: float, replicas: int) -> dict[str, float]:
    """ε of publishing all replicas: the paper's product, and one composition of all their rounds.

    Guarantee: the `parallel` models of disjoint units that one training makes cost together what one of them
    costs (proof: `NoisyPartition`), so as many times that are paid as there are trainings. So do draws around
    one release (`Smoothed`), however many.

    >>> from fedproof.mechanisms import NoisyPartition
    >>> noisy = NoisyPartition(groups=50, noise_multiplier=5.0)
    >>> ensemble_account(noisy, 1e-3, 50)["pld"] == account(noisy, 1e-3)["pld"]
    True
    """
    check.open_probability(delta=delta)
    check.count(replicas=replicas)
    replicas = -(-int(replicas) // parallel_of(source))
    repeated = tuple(replace(query, count=query.count * replicas) for query in queries_of(source))
    return {
        "paper": round_up(replicas * paper_epsilon(source, delta)),
        "pld": round_up(pld_epsilon(Queries(queries=repeated), delta)),
    }


def parallel_of(source: Mechanism | DpEvent) -> int:
    """How many models of a source cost together what one costs; an event of another library knows of none."""
    return source.parallel if isinstance(source, Mechanism) else 1


def user_accounts(
    mechanism: InstanceFedAvg,
    delta: float,
    *,
    user_sizes: Sequence[int],
    batch_size: int,
    participation: Sequence[int],
    accountant: str = "pld",
) -> list[float]:
    """ε of each user's own instances in InsDP-FedAvg, from its batches and the rounds it took part in.

    Guarantee: users hold disjoint instances, so the ε of the whole is the largest of these (parallel
    composition; McSherry 2009). A user that never took part has spent nothing. The chance of an instance to
    enter a batch is the one that is executed: the declared one, whatever the user's size, or `by_size` the
    batch size over that size, which is then taken to be the same with the instance and without it.
    """
    check.count(batch_size=batch_size)
    if len(user_sizes) != len(participation):
        raise ValueError(f"{len(user_sizes)} user_sizes and {len(participation)} participation must agree")
    known: dict[tuple[float, int], float] = {}
    spent = []
    for size, rounds in zip(user_sizes, participation, strict=True):
        if not rounds:
            spent.append(0.0)
            continue
        (chance,) = mechanism.batch_probabilities(np.array([size]), batch_size).tolist()
        if (chance, rounds) not in known:
            own = replace(mechanism, batch_probability=chance, rounds=rounds)
            known[chance, rounds] = account(own, delta, [accountant])[accountant]
        spent.append(known[chance, rounds])
    return spent


def round_up(value: float) -> float:
    """The value rounded up in its tenth decimal: never below what was computed."""
    scale = 10.0**_DIGITS
    return max(value, math.ceil(value * scale) / scale) if value < _MANY else value
