"""What is measured of attacked ensembles, and of the units an attack needs."""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from fedproof.certificates import CostMethod, inefficacy
from fedproof.experiment import certify_scores
from fedproof.mechanisms import is_certified, is_private
from fedproof.robustness import AttackRow
from fedproof.robustness.evaluate import attack, evaluate, series
from fedproof.robustness.outcome import AttackOutcome, costs, run_attack, train
from fedproof.statements import sentences
from paper.results import WIDE, AttackCell, Attacked, CostCell, Needed
from paper.work import Work, clean_outcome, paper_epsilon_of, privacy, trained


def attacked(work: Work) -> Attacked:
    """Attacked ensembles beside the bounds, for every attack and number of poisoned units."""
    config, task = work.config, work.task
    first = work.shared.first_updates(config, task)
    rows = attack(config, work.panel.attacks, work.panel.sizes, task=task, first=first)
    return _attacked(work, [_cell(work, row) for row in rows])


def costed(work: Work) -> Attacked:
    """The same, with the attacker's cost measured four ways from the same replicas."""
    config, task = work.config, work.task
    first = work.shared.first_updates(config, task)
    count = config.ensemble.replicas
    attacks = [one for kind in work.panel.attacks for one in series(config, kind, work.panel.sizes, task)]
    goals = [one.goal(task.federation) for _, one in attacks]
    clean = train(task, count, goals, first=first)
    certificate = None
    if is_certified(task.mechanism):
        certificate = certify_scores(config, task, clean.scores, task.federation.test_labels)
    cells = []
    for index, (name, one) in enumerate(attacks):
        after = run_attack(task, one, count, clean_first=first)
        before = replace(
            clean,
            losses=(clean.losses[index],),
            answers=(clean.answers[index],),
            missed=(clean.missed[index],),
        )
        beside = partial(
            evaluate, name, one, task=task, certificate=certificate, delta=config.mechanism.delta
        )
        cell = _cell(work, beside(clean=before, attacked=after, cost_bound=config.attack.cost_bound))
        cells.append(replace(cell, costs=tuple(_costs(work, beside, before, after))))
    return _attacked(work, cells)


def _costs(
    work: Work, beside: Callable[..., AttackRow], before: AttackOutcome, after: AttackOutcome
) -> Iterator[CostCell]:
    """The loss under a bound that does not saturate, the attack's success, and the loss unclipped."""
    missed = [replace(one, losses=one.missed) for one in (before, after)]
    ways: list[tuple[str, float, AttackOutcome, AttackOutcome]] = [
        ("loss", WIDE, before, after),
        ("success", 1.0, missed[0], missed[1]),
    ]
    for kind, bound, clean, attacked in ways:
        row = beside(clean=clean, attacked=attacked, cost_bound=bound)
        yield CostCell(
            kind=kind,
            bound=bound,
            clean=row.clean_cost,
            attacked=row.cost,
            clean_clipped=float(np.mean(clean.losses[0] > bound)),
            clipped=row.clipped_share,
            lower=row.certified_lower,
            paper_lower=_paper_lower(work, row.clean_cost, row.adversaries, bound),
        )
    loss = float(before.losses[0].mean())
    yield CostCell(
        kind="loss",
        bound=None,
        clean=loss,
        attacked=float(after.losses[0].mean()),
        paper_lower=_paper_lower(work, loss, row.adversaries, work.config.attack.cost_bound),
    )


def _attacked(work: Work, cells: Sequence[AttackCell]) -> Attacked:
    return Attacked(
        accuracy=cells[0].clean_replica_accuracy,
        attacks=tuple(cells),
        cost_bound=work.config.attack.cost_bound,
        **privacy(work),
    )


def _cell(work: Work, row: AttackRow) -> AttackCell:
    values = {name: value for name, value in row.values().items() if name != "unmet"}
    lower = _paper_lower(work, row.clean_cost, row.adversaries, work.config.attack.cost_bound)
    return AttackCell(**values, reasons=sentences(row.unmet), paper_lower_exact=lower)


def _paper_lower(work: Work, cost: float, adversaries: int, bound: float) -> float | None:
    """The paper's lower bound as the paper draws it: from the mean, without confidence.

    A `cost` above `bound` was not clipped: no theorem covers it (`inefficacy_bounds` refuses it), the paper
    draws it.
    """
    if not is_private(work.task.mechanism):
        return None
    delta, epsilon = work.config.mechanism.delta, paper_epsilon_of(work)
    shrink = math.exp(-adversaries * epsilon)
    removed = (1 - shrink) / math.expm1(epsilon)
    return max(shrink * cost - removed * delta * bound, 0.0)


def needed(work: Work) -> Needed:
    """How many units it takes to divide the attacker's cost by τ: the paper's bound and ours."""
    config, task = work.config, work.task
    [(_, goal_of)] = series(config, work.panel.attacks[0], [1], task)
    outcome = clean_outcome(work, goal_of.goal(task.federation))
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

    clean = trained(work, outcome.scores)
    return Needed(
        accuracy=clean.accuracy,
        accuracy_std=clean.accuracy_std,
        ensemble_accuracy=clean.ensemble_accuracy,
        cost=float(found.mean()),
        taus=work.panel.taus,
        paper=tuple(map(by_formula, work.panel.taus)),
        tight=tuple(units(tau, CostMethod.MEAN, "betting") for tau in work.panel.taus),
        **privacy(work),
    )
