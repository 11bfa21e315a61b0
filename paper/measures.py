"""What is measured of an experiment: plain numbers, small enough to be committed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting import account, ensemble_account
from fedproof.accounting.epsilon import dopamine_epsilon
from fedproof.accounting.renyi import paper_epsilon
from fedproof.certificates import CostMethod, Group, Method, certify, certify_means, inefficacy
from fedproof.certificates.comparison import compare, relations_of
from fedproof.certificates.paper_theorems import inefficacy_bounds, real_size
from fedproof.config import Config
from fedproof.ensemble import Task, ensemble_accuracy, replica_accuracies
from fedproof.experiment import SharedWork
from fedproof.mechanisms import FedAvg, FixedSize, InstanceFedSGD, UserFedAvg, is_certified, is_private
from fedproof.robustness import AttackRow
from fedproof.robustness.evaluate import attack, series
from fedproof.robustness.outcome import AttackOutcome, costs, train
from fedproof.threat import Relation, ThreatModel
from paper.published import Published
from paper.rows import (
    AttackCell,
    Attacked,
    BudgetCell,
    Budgets,
    CertifiedCurve,
    Clean,
    Dopamine,
    DopamineCurve,
    Needed,
    Renyi,
    RenyiCurve,
    Result,
    RunTime,
)
from paper.study import Panel


@dataclass(frozen=True, kw_only=True)
class Work:
    """What a measurement may use.

    Attributes:
        panel: what is asked for.
        config: the experiment.
        task: its training.
        shared: data and first updates that neighbouring points have in common.
    """

    panel: Panel
    config: Config
    task: Task
    shared: SharedWork


def certified(work: Work) -> Clean:
    """Accuracy, and certified accuracy over k: the paper's way and ours, from the same scores."""
    config, task = work.config, work.task
    scores = _clean(work).scores
    clean = _trained(work, scores)
    if not is_certified(task.mechanism):
        return clean
    start = time.perf_counter()
    chance = config.certificate.failure_probability
    curves = compare(
        scores,
        task.federation.test_labels,
        mechanism=task.mechanism,
        delta=config.mechanism.delta,
        failure_probability=chance,
        max_size=config.certificate.max_size,
    )
    compared = [
        CertifiedCurve(
            method=str(curve.method),
            relation=curve.relation.value if curve.relation else None,
            failure_probability=curve.failure_probability,
            accuracy=_rounded(curve.accuracy),
        )
        for curve in curves
    ]
    margins = [_margin(work, scores, relation, chance) for relation in relations_of(task.mechanism)]
    return replace(
        clean,
        curves=(*compared, *margins),
        paper_largest=_paper_largest(work, scores),
        certify_seconds=round(time.perf_counter() - start, 3),
    )


def accuracy(work: Work) -> Clean:
    """Accuracy alone."""
    return _trained(work, _clean(work).scores)


def _margin(work: Work, scores: NDArray[np.float32], relation: Relation, chance: float) -> CertifiedCurve:
    """The default certificate of fedproof, for one relation."""
    task, most = work.task, work.config.certificate.max_size
    certificate = certify(
        scores,
        task.federation.test_labels,
        mechanism=task.mechanism,
        threat=ThreatModel(unit=task.mechanism.unit, relation=relation),
        method=Method.MARGIN,
        failure_probability=chance,
        max_size=most,
    )
    accuracy = certificate.certified_accuracy(range(most + 1))
    return CertifiedCurve(
        method="margin",
        relation=relation.value,
        failure_probability=chance,
        accuracy=_until_zero(accuracy),
    )


def _paper_largest(work: Work, scores: NDArray[np.float32]) -> float:
    """The largest real K of the paper's formula over the test inputs, with means taken as exact."""
    means = np.sort(scores.mean(axis=0, dtype=np.float64), axis=-1)
    delta = work.config.mechanism.delta
    epsilon = account(work.task.mechanism, delta, ["paper"])["paper"]
    return round(float(real_size(means[:, -1], means[:, -2], epsilon=epsilon, delta=delta).max()), 3)


def attacked(work: Work) -> Attacked:
    """Attacked ensembles beside the bounds, for every attack and number of poisoned units."""
    config, task = work.config, work.task
    first = work.shared.first_updates(config, task)
    rows = attack(config, work.panel.attacks, work.panel.sizes, task=task, first=first)
    return Attacked(
        accuracy=rows[0].clean_replica_accuracy,
        attacks=tuple(
            AttackCell(**row.values() | {"reasons": row.reasons}, paper_lower_exact=_paper_lower(work, row))
            for row in rows
        ),
        cost_bound=config.attack.cost_bound,
        **_privacy(work),
    )


def _cell(work: Work, row: AttackRow) -> AttackCell:
    columns = row.values() | {"reasons": row.reasons}
    return AttackCell(**columns, paper_lower_exact=_paper_lower(work, row))


def _paper_lower(work: Work, row: AttackRow) -> float | None:
    """The paper's lower bound as the paper draws it: from the mean, without confidence."""
    delta, bound = work.config.mechanism.delta, work.config.attack.cost_bound
    if not is_private(work.task.mechanism):
        return None
    epsilon = account(work.task.mechanism, delta, ["paper"])["paper"]
    lower, _ = inefficacy_bounds(
        row.clean_cost, row.adversaries, cost_bound=bound, epsilon=epsilon, delta=delta
    )
    return float(lower)


def needed(work: Work) -> Needed:
    """How many units it takes to divide the attacker's cost by τ: the paper's bound and ours."""
    config, task = work.config, work.task
    [(_, goal_of)] = series(config, work.panel.attacks[0], [1], task)
    outcome = _clean(work, goal_of.goal(task.federation))
    found = costs(outcome.losses[0], config.attack.cost_bound)

    def units(tau: float, method: CostMethod, bound: str) -> float | None:
        return inefficacy(
            found,
            cost_bound=config.attack.cost_bound,
            mechanism=task.mechanism,
            threat=config.threat_model,
            sizes=(),
            method=method,
            bound=bound,
            failure_probability=config.certificate.failure_probability,
            tau=tau,
            delta=config.mechanism.delta,
        ).needed

    def by_formula(tau: float) -> float:
        count = units(tau, CostMethod.PAPER, "none")
        assert count is not None, "a formula has a value for every τ"
        return count

    clean = _trained(work, outcome.scores)
    return Needed(
        accuracy=clean.accuracy,
        accuracy_std=clean.accuracy_std,
        ensemble_accuracy=clean.ensemble_accuracy,
        cost=float(found.mean()),
        taus=work.panel.taus,
        paper=tuple(map(by_formula, work.panel.taus)),
        tight=tuple(units(tau, CostMethod.MEAN, "betting") for tau in work.panel.taus),
        **_privacy(work),
    )


def run_time(work: Work) -> RunTime:
    """Seconds of a round of one replica, without and with clipping and noise, and of a certificate."""
    task, count = work.task, work.config.ensemble.replicas
    assert isinstance(task.mechanism, UserFedAvg)
    plain = replace(task, mechanism=FedAvg(rounds=task.mechanism.rounds, sampling=task.mechanism.sampling))
    seconds = {}
    for name, one in {"fedavg": plain, "user-dp-fedavg": task}.items():
        train(one, 2, ())  # warm up
        start = time.perf_counter()
        scores = train(one, count, ()).scores
        seconds[name] = (time.perf_counter() - start) / (count * task.mechanism.rounds)
    start = time.perf_counter()
    certify(scores, mechanism=task.mechanism, threat=work.config.threat_model)
    return RunTime(seconds_per_round=seconds, certify_seconds=time.perf_counter() - start)


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


MEASURES: dict[str, Callable[[Work], Result]] = {
    "certified": certified,
    "accuracy": accuracy,
    "attacked": attacked,
    "needed": needed,
    "run-time": run_time,
}
COMPUTED: dict[str, Callable[[Published], Result]] = {
    "budgets": budgets,
    "dopamine": dopamine,
    "renyi": renyi,
}


def _clean(work: Work, *goals: Any) -> AttackOutcome:
    first = work.shared.first_updates(work.config, work.task)
    return train(work.task, work.config.ensemble.replicas, goals, first=first)


def _trained(work: Work, scores: NDArray[np.float32]) -> Clean:
    """Accuracy and privacy of the replicas, nothing certified yet."""
    labels = work.task.federation.test_labels
    single = replica_accuracies(scores, labels)
    return Clean(
        accuracy=round(float(single.mean()), 5),
        accuracy_std=round(float(single.std()), 5),
        ensemble_accuracy=round(ensemble_accuracy(scores, labels), 5),
        **_privacy(work),
    )


def _privacy(work: Work) -> dict[str, Any]:
    """What `Trained` says of privacy; nothing where there is none."""
    mechanism, delta = work.task.mechanism, work.config.mechanism.delta
    if not is_private(mechanism):
        return {}
    together = ensemble_account(mechanism, delta, work.config.ensemble.replicas)
    return {
        "epsilon": {name: round(value, 6) for name, value in account(mechanism, delta).items()},
        "ensemble_epsilon": {name: round(value, 4) for name, value in together.items()},
        "delta": delta,
    }


def _rounded(values: Any) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def _until_zero(values: Any) -> tuple[float, ...]:
    """The values up to the first that is zero."""
    found = _rounded(values)
    return found[: found.index(0.0) + 1] if 0.0 in found else found
