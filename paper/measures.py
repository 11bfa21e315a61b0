"""What is measured of an experiment: plain numbers, small enough to be committed."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting import account, ensemble_account
from fedproof.accounting.epsilon import dopamine_epsilon, paper_epsilon
from fedproof.certificates import CostMethod, Method, certify, inefficacy
from fedproof.certificates.certificate import ONLY_METHOD
from fedproof.certificates.comparison import compare, relations_of
from fedproof.certificates.paper_theorems import inefficacy_bounds, real_size
from fedproof.certificates.rules import Rule
from fedproof.config import Config
from fedproof.ensemble import Task, ensemble_accuracy, replica_accuracies
from fedproof.experiment import SharedWork
from fedproof.folder import secret_of
from fedproof.mechanisms import (
    FedAvg,
    FixedSize,
    InstanceFedSGD,
    Releases,
    UserFedAvg,
    is_certified,
    is_private,
)
from fedproof.robustness import AttackRow
from fedproof.robustness.evaluate import attack, series
from fedproof.robustness.outcome import AttackOutcome, costs, train
from fedproof.threat import Relation, ThreatModel, Unit
from fedproof.training import certify_task
from fedproof.training import train as train_all
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
    Recorded,
    Result,
    RuleCurve,
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


def record(work: Work) -> Recorded:
    """Certified accuracy at the panel's sizes by every rule; against units that join by the announced one.

    The scores are the same for all rules, so that what is announced beforehand is one of several that were
    looked at: all of them are kept, and none of them is chosen here.
    """
    config, task = work.config, work.task
    if max(work.panel.sizes) > config.certificate.max_size:
        raise ValueError(
            f"sizes of {work.panel.name} must be at most certificate.max_size = {config.certificate.max_size}"
        )
    known = task.mechanism.models(task.units.num_users)
    scores = train_all(task, known or config.ensemble.replicas).scores
    certain, section = task.mechanism.releases is not Releases.REPLICAS, config.certificate
    rules = [None] if task.mechanism.releases is Releases.MODEL else list(Rule)
    labels = task.federation.test_labels
    announced = None if rules == [None] else section.rule
    curves = [_rule_curve(work, scores, rule, Relation.REPLACE) for rule in rules]
    if Relation.JOIN in relations_of(task.mechanism):
        curves.append(_rule_curve(work, scores, announced, Relation.JOIN))
    return Recorded(
        accuracy=round(float(replica_accuracies(scores, labels).mean()), 5),
        **_one_model(work),
        inputs=len(labels),
        unit=task.mechanism.unit.value,
        units=task.federation.num_users if task.mechanism.unit is Unit.USER else len(task.federation.labels),
        announced=announced and announced.value,
        sizes=work.panel.sizes,
        most=section.max_size,
        curves=tuple(curves),
        failure_probability=None if certain else section.failure_probability,
        simultaneous=section.simultaneous,
    )


def _rule_curve(work: Work, scores: NDArray[np.floating], rule: Rule | None, relation: Relation) -> RuleCurve:
    section, task = work.config.certificate, work.task
    certificate = certify_task(
        task,
        scores,
        task.federation.test_labels,
        threat=ThreatModel(unit=task.mechanism.unit, relation=relation),
        seed=secret_of(work.config),
        method=ONLY_METHOD.get(task.mechanism.releases, section.method),
        rule=rule or Rule.PLURALITY,
        failure_probability=section.failure_probability,
        simultaneous=section.simultaneous,
        max_size=section.max_size,
        delta=work.config.mechanism.delta,
    )
    every = certificate.certified_accuracy(range(section.max_size + 1))
    return RuleCurve(
        rule=rule.value if rule else None,
        relation=relation.value,
        accuracy=_rounded(every[size] for size in work.panel.sizes),
        half=max((size for size, share in enumerate(every) if share >= 0.5), default=0),
        reasons=certificate.reasons,
    )


MEASURES: dict[str, Callable[[Work], Result]] = {
    "certified": certified,
    "accuracy": accuracy,
    "attacked": attacked,
    "needed": needed,
    "run-time": run_time,
    "record": record,
}
COMPUTED: dict[str, Callable[[Published], Result]] = {"budgets": budgets, "dopamine": dopamine}


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
    return _one_model(work) | {
        "ensemble_epsilon": {name: round(value, 4) for name, value in together.items()}
    }


def _one_model(work: Work) -> dict[str, Any]:
    """ε and δ of one model, or of the one release; nothing where there are none."""
    mechanism, delta = work.task.mechanism, work.config.mechanism.delta
    if not is_private(mechanism):
        return {}
    found = account(mechanism, delta).items()
    return {"epsilon": {name: round(value, 6) for name, value in found}, "delta": delta}


def _rounded(values: Any) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def _until_zero(values: Any) -> tuple[float, ...]:
    """The values up to the first that is zero."""
    found = _rounded(values)
    return found[: found.index(0.0) + 1] if 0.0 in found else found
