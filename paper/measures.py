"""What is measured of an experiment: plain numbers, small enough to be committed."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.arrays import replica_accuracies
from fedproof.certificates import Method, certify
from fedproof.certificates.certificate import ONLY_METHOD
from fedproof.certificates.comparison import compare, relations_of
from fedproof.certificates.confidence import hoeffding_width
from fedproof.certificates.paper_theorems import certified_size, real_size
from fedproof.certificates.rules import Rule
from fedproof.folder import secret_of
from fedproof.mechanisms import FedAvg, Releases, UserFedAvg, is_certified
from fedproof.robustness.outcome import train
from fedproof.statements import sentences
from fedproof.threat import Relation, ThreatModel, Unit
from fedproof.training import certify_task
from fedproof.training import train as train_all
from paper.attacked import attacked, costed, needed
from paper.results import (
    AS_PRINTED,
    CertifiedCurve,
    Clean,
    LargestSize,
    Recorded,
    Result,
    RuleCurve,
    RunTime,
)
from paper.work import Work, clean_outcome, one_model, paper_epsilon_of, trained


def certified(work: Work) -> Clean:
    """Accuracy, and certified accuracy over k: the paper's way and ours, from the same scores."""
    config, task = work.config, work.task
    scores = clean_outcome(work).scores
    clean = trained(work, scores)
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
    found = _sizes(work, scores)
    return replace(
        clean,
        curves=(*compared, *_as_published(work, scores), *margins),
        paper_largest=found[0].all,
        sizes=found,
        certify_seconds=round(time.perf_counter() - start, 3),
    )


def sizes(work: Work) -> Clean:
    """Accuracy, and the paper's K with its uncertainty."""
    scores = clean_outcome(work).scores
    found = _sizes(work, scores)
    return replace(trained(work, scores), paper_largest=found[0].all, sizes=found)


def accuracy(work: Work) -> Clean:
    """Accuracy alone."""
    return trained(work, clean_outcome(work).scores)


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


_PART = 250  # replicas of a part: four of an ensemble of the paper's size


def _sizes(work: Work, scores: NDArray[np.float32]) -> tuple[LargestSize, ...]:
    """The paper's largest K: at the ε spent, with confidence, and where it differs at the ε it prints."""
    chance = work.config.certificate.failure_probability
    spent, printed = paper_epsilon_of(work), paper_epsilon_of(work, printed=True)
    ways = [(spent, None), (spent, chance), *([(printed, None)] if printed != spent else [])]
    parts = [scores[begin : begin + _PART] for begin in range(0, len(scores) - _PART + 1, _PART)]

    def largest(part: NDArray[np.float32], epsilon: float, chance: float | None) -> float:
        means = np.sort(part.mean(axis=0, dtype=np.float64), axis=-1)
        width = 0.0 if chance is None else hoeffding_width(len(part), chance)
        delta = work.config.mechanism.delta
        top, rival = means[:, -1] - width, np.minimum(means[:, -2] + width, 1.0)
        return round(float(real_size(top, rival, epsilon=epsilon, delta=delta).max()), 3)

    return tuple(
        LargestSize(
            epsilon=round(epsilon, 6),
            failure_probability=chance,
            all=largest(scores, epsilon, chance),
            parts=tuple(largest(part, epsilon, chance) for part in parts if len(parts) > 1),
        )
        for epsilon, chance in ways
    )


def _as_published(work: Work, scores: NDArray[np.float32]) -> Iterator[CertifiedCurve]:
    """The paper's curve at the ε that it prints, where a panel asks for it."""
    epsilon, delta = paper_epsilon_of(work, printed=True), work.config.mechanism.delta
    if not work.panel.printed:
        return
    means = scores.mean(axis=0, dtype=np.float64)
    ordered = np.sort(means, axis=-1)
    found = certified_size(ordered[:, -1], ordered[:, -2], epsilon=epsilon, delta=delta)
    right = np.where(means.argmax(axis=-1) == work.task.federation.test_labels, found, -1)
    shares = [np.mean(right >= size) for size in range(work.config.certificate.max_size + 1)]
    yield CertifiedCurve(
        method=AS_PRINTED, relation=None, failure_probability=None, accuracy=_until_zero(shares)
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
        **one_model(work),
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
        reasons=sentences(certificate.unmet),
    )


MEASURES: dict[str, Callable[[Work], Result]] = {
    "certified": certified,
    "accuracy": accuracy,
    "sizes": sizes,
    "attacked": attacked,
    "costs": costed,
    "needed": needed,
    "run-time": run_time,
    "record": record,
}


def _rounded(values: Any) -> tuple[float, ...]:
    return tuple(round(float(value), 5) for value in values)


def _until_zero(values: Any) -> tuple[float, ...]:
    """The values up to the first that is zero."""
    found = _rounded(values)
    return found[: found.index(0.0) + 1] if 0.0 in found else found
