"""What is computed of the paper's mechanisms without training: ε, and certificates of exact shares."""

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from scipy.signal import fftconvolve
from scipy.stats import norm

from fedproof.accounting import account
from fedproof.accounting.epsilon import dopamine_epsilon, paper_epsilon
from fedproof.accounting.events import Source
from fedproof.certificates import Group, Method, certify_means
from fedproof.mechanisms import FixedSize, InstanceFedSGD, Queries, UserFedAvg
from fedproof.threat import Relation, ThreatModel
from paper.published import Budget, Published
from paper.results import BudgetCell, Budgets, Dopamine, DopamineCurve, Renyi, RenyiCurve, Result


def budgets(published: Published) -> Budgets:
    """Every ε that the paper prints, beside ours to four decimals."""
    return Budgets(
        rows=tuple(
            BudgetCell(
                experiment=entry.experiment,
                sigma=entry.sigma,
                rounds=entry.rounds,
                published=printed,
                paper=round(paper_epsilon(entry.mechanism, entry.delta), 4),
                pld=_sound(entry.mechanism, entry.delta),
                **_replaced(published, entry, printed),
            )
            for entry in published.table
            if (printed := entry.epsilon) is not None
        )
    )


def _sound(source: Source, delta: float) -> float:
    return round(account(source, delta, ["pld"])["pld"], 4)


def _replaced(published: Published, entry: Budget, printed: float) -> dict[str, float]:
    """What the paper's training spends where its theorems need it; at instance level cohorts are whole."""
    if not isinstance(entry.mechanism, UserFedAvg):
        return {}
    users, cohort = published.cohort(entry.experiment)
    drawn = replace(entry.mechanism, sampling=FixedSize(cohort=cohort, users=users))
    shown = delta_of_two(cohort / users, entry.sigma, entry.rounds, printed)
    return {"replaced": _sound(drawn, entry.delta), "shown": _three_digits(shown)}


def _three_digits(value: float) -> float:
    """Rounded down.

    >>> _three_digits(0.0029999), _three_digits(1.23456e-05)
    (0.00299, 1.23e-05)
    """
    if not value:
        return 0.0
    place = 2 - math.floor(math.log10(value))
    return float(round(math.floor(value * 10**place) / 10**place, place))


_STEP = 1e-3  # of losses, which are rounded down
_PLACES, _FAR = 200_001, 40.0  # where losses are known; so many standard deviations out
_NOISE = 1e-15  # of Fourier's sums, in each place


def delta_of_two(chance: float, noise: float, rounds: int, epsilon: float) -> float:
    """A δ that cohorts of a fixed size have at ε, at least, where one user may be replaced.

    Proof: all users of D send the same update of one clip norm, in D' one of them its opposite. Every cohort
    of D has the same sum; one of D' falls short of it by two clip norms with the `chance` of being drawn. In
    that direction a round shows N(0, σ²) or (1 - q) N(0, σ²) + q N(2, σ²), and rounds are independent. So
    δ(ε) is at least the mean of (1 - e^(ε - L))₊ over the sum L of the rounds' losses, each rounded down.
    What sums by Fourier may be off is taken away.

    >>> delta_of_two(0.1, 1.8, 3, 0.6298) > 0.0029  # MNIST, as printed
    True
    """
    places = np.linspace(-_FAR * noise, 2 + _FAR * noise, _PLACES)
    near, far = (norm.logpdf(places, centre, noise) for centre in (0.0, 2.0))
    losses = np.logaddexp(np.log1p(-chance) + near, np.log(chance) + far) - near  # rising
    below = (1 - chance) * norm.cdf(places, 0, noise) + chance * norm.cdf(places, 2, noise)
    steps = np.floor(losses[:-1] / _STEP).astype(np.int64)
    first = int(steps.min())
    one = np.bincount(steps - first, weights=np.diff(below))
    every = one
    for _ in range(rounds - 1):
        every = np.clip(fftconvolve(every, one), 0.0, None)
    total = (np.arange(len(every)) + rounds * first) * _STEP
    above = total > epsilon
    found = float(np.sum(every[above] * -np.expm1(epsilon - total[above])))
    return max(0.0, found - rounds * len(every) * _NOISE)


def dopamine(published: Published) -> Dopamine:
    """ε over the rounds of InsDP-FedSGD, by its own accounting and by Dopamine's."""
    setting, curves = published.dopamine, []
    for cohort in setting.cohorts:
        rounds = tuple(range(10, setting.rounds + 1, 10))
        mechanisms = [
            InstanceFedSGD(
                rounds=count,
                noise_multiplier=setting.sigma,
                clip_norm=setting.clip_norm,
                sampling=FixedSize(cohort=cohort, users=setting.users),
                batch_probability=setting.batch_probability,
            )
            for count in rounds
        ]
        curves.append(
            DopamineCurve(
                cohort=cohort,
                rounds=rounds,
                own=tuple(round(paper_epsilon(one, setting.delta), 4) for one in mechanisms),
                dopamine=tuple(round(dopamine_epsilon(one, setting.delta), 4) for one in mechanisms),
                pld=(_sound(mechanisms[-1], setting.delta),),
                dopamine_pld=(_sound(_drawn_for_sure(mechanisms[-1]), setting.delta),),
            )
        )
    return Dopamine(curves=tuple(curves))


def _drawn_for_sure(mechanism: InstanceFedSGD) -> Queries:
    """As Dopamine accounts it: the choice of users hides nothing."""
    return Queries(queries=tuple(replace(one, selection_probability=1.0) for one in mechanism.queries))


_SHARES = (*(round(0.5 + 0.01 * step, 2) for step in range(1, 50)), 0.995, 0.999, 0.9999)
_TRAININGS = {"MNIST, σ = 1.8": ("user-mnist", 1.8, 3), "CIFAR, σ = 3.0": ("user-cifar", 3.0, 1)}


def renyi(published: Published) -> Renyi:
    """Certified users over the share of votes: Rényi's two groupings, (ε, δ), and the trade-off curve."""
    means = np.array([[share, 1 - share] for share in _SHARES])
    curves = []
    for name, training in _TRAININGS.items():
        entry = published.find(*training)
        assert entry is not None
        ways: dict[str, dict[str, Any]] = {
            "Rényi, α/2ᵏ as published": {"method": Method.RENYI, "group": Group.PAPER},
            "Rényi, log₂ k halvings": {"method": Method.RENYI, "group": Group.TIGHT},
            "(ε, δ), the paper's formula": {"method": Method.PAPER, "delta": entry.delta},
            "trade-off curve (fedproof)": {"method": Method.VOTE},
        }
        sized = partial(
            certify_means, means, mechanism=entry.mechanism, threat=ThreatModel(relation=Relation.JOIN)
        )
        found = {way: sized(**asked).certified_size for way, asked in ways.items()}
        sizes = {way: tuple(size or 0 for size in every) for way, every in found.items()}
        curves.append(RenyiCurve(training=name, sizes=sizes))
    return Renyi(shares=_SHARES, curves=tuple(curves))


COMPUTED: dict[str, Callable[[Published], Result]] = {
    "budgets": budgets,
    "dopamine": dopamine,
    "renyi": renyi,
}
