"""ε of a mechanism under every accountant, of an ensemble, and of users with accounts of their own."""

import math
from collections.abc import Callable, Sequence
from dataclasses import replace

from dp_accounting import DpEvent

from fedproof import check
from fedproof.accounting.events import queries_of
from fedproof.accounting.renyi import (
    paper_delta,
    paper_epsilon,
    rdp_delta,
    rdp_epsilon,
    without_replacement_epsilon,
)
from fedproof.accounting.tradeoff import composed_losses
from fedproof.mechanisms import InstanceFedAvg, Local, Mechanism, Queries
from fedproof.threat import Relation

# ε is rounded up to the next of these, so that a printed number is never below the computed one.
_DIGITS = 10

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


def sum_epsilon(mechanism: Local, delta: float) -> dict[str, float]:
    """ε of the released sum alone, where users add noise themselves, by the relation it is for; rounded up.

    Guarantee: (ε, δ)-DP towards whoever sees the sum and nothing of what is sent, if as many users as the
    mechanism says add their noise. Proof: by `Local` the sum is a Gaussian query but for a chance τ, so it is
    (ε, δ' + (1 + e^ε) τ)-DP wherever the query is (ε, δ'). With half of δ for δ' there is a first ε; what is
    left of δ beside its (1 + e^ε) τ gives a smaller one, whose own is smaller too. The sum is computed from
    what the server sees: the ε towards the server holds as well.

    >>> from fedproof.mechanisms.uploads import Ball
    >>> local = Local(upload=Ball(features=16, classes=10), noise_multiplier=1.0, honest=500)
    >>> {relation: round(value, 3) for relation, value in sum_epsilon(local, 5e-4).items()}
    {'join': 0.085, 'replace': 0.197}
    """
    server = {
        Relation.JOIN: pld_epsilon(mechanism, delta),
        Relation.REPLACE: replaced_epsilon(mechanism, delta),
    }
    return {
        relation.value: round_up(min(most, _sum_epsilon(mechanism, delta, relation)))
        for relation, most in server.items()
    }


def _sum_epsilon(mechanism: Local, delta: float, relation: Relation) -> float:
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
    size). `paper` reproduces published tables.

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
    replicas = -(-replicas // parallel_of(source))
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
    """ε of each user's own instances in InsDP-FedAvg, from its size and the rounds it took part in.

    Guarantee: users hold disjoint instances, so the ε of the whole is the largest of these (parallel
    composition; McSherry 2009). A user that never took part has spent nothing.
    """
    check.count(batch_size=batch_size)
    if len(user_sizes) != len(participation):
        raise ValueError(f"{len(user_sizes)} user_sizes and {len(participation)} participation must agree")
    known: dict[tuple[float, int], float] = {}
    spent = []
    for size, rounds in zip(user_sizes, participation, strict=True):
        key = (min(1.0, batch_size / size), rounds)
        if rounds and key not in known:
            own = replace(mechanism, batch_probability=key[0], rounds=rounds)
            known[key] = account(own, delta, [accountant])[accountant]
        spent.append(known[key] if rounds else 0.0)
    return spent


def round_up(value: float) -> float:
    """The value rounded up in its tenth decimal: never below what was computed."""
    if not math.isfinite(value):
        return value
    scale = 10.0**_DIGITS
    return math.ceil(value * scale) / scale
