"""What is computed of the paper's mechanisms without training: ε, and certificates of exact shares."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np

from fedproof.accounting import account
from fedproof.accounting.epsilon import dopamine_epsilon, paper_epsilon
from fedproof.certificates import Group, Method, certify_means
from fedproof.mechanisms import FixedSize, InstanceFedSGD
from fedproof.threat import Relation, ThreatModel
from paper.published import Published
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
                pld=round(account(entry.mechanism, entry.delta, ["pld"])["pld"], 4),
            )
            for entry in published.table
            if (printed := entry.epsilon) is not None
        )
    )


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
                pld=(round(account(mechanisms[-1], setting.delta, ["pld"])["pld"], 4),),
            )
        )
    return Dopamine(curves=tuple(curves))


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
