"""Attacks on an experiment, beside what is certified for it: one row for each attack and number of units."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from fedproof.arrays import Floats, ensemble_accuracy, replica_accuracies
from fedproof.attacks import Attack, Goal, build_series
from fedproof.certificates import Certificate, CostMethod, Inefficacy, inefficacy
from fedproof.certificates.tight import exact_costs, partition_costs
from fedproof.config import Config
from fedproof.ensemble import Task, first_updates, shares_first_round
from fedproof.experiment import certify_scores, ensemble_size, make_task
from fedproof.mechanisms import is_certified, is_private
from fedproof.progress import Progress, silent
from fedproof.robustness import AttackRow
from fedproof.robustness.outcome import (
    AttackOutcome,
    answer_costs,
    costs,
    interval,
    run_attack,
    success_rate,
    train,
    verdict,
)
from fedproof.statements import Statement
from fedproof.threat import Relation

Certifier = Callable[[NDArray[np.float32]], Certificate | None]
"""Scores of the clean ensemble in, certificate with labels out; None where the mechanism has none."""

_ROUNDING = 1e-9  # of a mean of losses
_OPTIONS = (
    "poison_fraction", "source", "target", "trigger_size", "direction", "values", "gain", "spread",
    "user_instances",
)  # fmt: skip


def attack(
    config: Config,
    kinds: Sequence[str],
    sizes: Sequence[int],
    *,
    device: str = "cpu",
    task: Task | None = None,
    first: Tensor | None = None,
    progress: Progress = silent,
) -> list[AttackRow]:
    """Rows of every attack of `kinds` with each number of `sizes` of poisoned units.

    The clean ensemble is trained once; honest users' first updates are shared with the attacked ones.
    Attackers are chosen by `attack.seed`, those of a smaller size among those of a larger one; where
    `threat.relation` is join they are new units. Who has the task and its first updates already can give
    them; `device` is then the task's.
    """
    task = task or make_task(config, device)
    attacks = [one for kind in kinds for one in series(config, kind, sizes, task)]

    def certifier(scores: NDArray[np.float32]) -> Certificate | None:
        if not is_certified(task.mechanism):
            return None
        return certify_scores(config, task, scores, task.federation.test_labels)

    return evaluate_all(
        task,
        attacks,
        num_replicas=ensemble_size(config, task),
        certifier=certifier,
        cost_bound=config.attack.cost_bound,
        delta=config.mechanism.delta,
        first=first,
        progress=progress,
    )


def series(config: Config, kind: str, sizes: Sequence[int], task: Task) -> list[tuple[str, Attack]]:
    """The attack with each number of poisoned units, with the options the configuration gives it."""
    section = config.attack
    options: dict[str, Any] = {
        name: getattr(section, name) for name in _OPTIONS if getattr(section, name) is not None
    }
    return build_series(
        kind,
        sizes,
        num_users=task.federation.num_users,
        unit=config.threat.unit,
        relation=config.threat.relation,
        by_data=not task.mechanism.hands_in,
        seed=section.seed,
        scale=section.scale,
        **options,
    )


def evaluate_all(
    task: Task,
    attacks: Sequence[tuple[str, Attack]],
    *,
    num_replicas: int,
    certifier: Certifier,
    cost_bound: float,
    delta: float,
    failure_probability: float = 1e-3,
    first: Tensor | None = None,
    progress: Progress = silent,
) -> list[AttackRow]:
    """A row for every attack, with the name it has in `attacks`; the clean ensemble is trained once.

    Losses are clipped to the `cost_bound` C̄; the paper's ε is accounted at `delta`. Each comparison of the
    attacked ensemble with a bound fails with `failure_probability` at most. `first` are everybody's round-one
    updates in the clean task; None: computed here where replicas share them.
    """
    settings = {"cost_bound": cost_bound, "delta": delta, "failure_probability": failure_probability}
    if first is None and shares_first_round(task):
        first = first_updates(task)
    goals = [attack.goal(task.federation) for _, attack in attacks]
    outcome = train(task, num_replicas, goals, first=first, progress=partial(progress, "clean"))
    certificate = certifier(outcome.scores)
    rows: list[AttackRow] = []
    for index, (name, attack) in enumerate(attacks):
        clean = replace(outcome, losses=(outcome.losses[index],), answers=(outcome.answers[index],))
        told = partial(progress, f"{name}, k = {attack.size}")
        attacked = run_attack(task, attack, num_replicas, clean_first=first, progress=told)
        rows.append(
            evaluate(
                name, attack, task=task, certificate=certificate, clean=clean, attacked=attacked, **settings
            )
        )
    return rows


def evaluate(
    name: str,
    attack: Attack,
    *,
    task: Task,
    certificate: Certificate | None,
    clean: AttackOutcome,
    attacked: AttackOutcome,
    cost_bound: float,
    delta: float,
    failure_probability: float = 1e-3,
) -> AttackRow:
    """One row from the clean ensemble, its certificate, and the attacked ensemble; see `evaluate_all`.

    The `certificate` is of `clean.scores`, with the labels of the test inputs; None: there is none. `clean`
    has losses, and answers where there are any, for `attack.goal` alone. `attacked` is from `run_attack`.
    """
    labels = task.federation.test_labels
    votes = certificate is not None and certificate.settings.votes
    goal = attack.goal(task.federation)
    succeeded = [
        success_rate(one.answers[0][int(votes)], goal) if one.answers else None for one in (clean, attacked)
    ]
    before, after = costs(clean.losses[0], cost_bound), costs(attacked.losses[0], cost_bound)
    row = AttackRow(
        attack=name,
        adversaries=attack.size,
        replicas=len(attacked.scores),
        clean_replica_accuracy=float(replica_accuracies(clean.scores, labels).mean()),
        replica_accuracy=float(replica_accuracies(attacked.scores, labels).mean()),
        clean_accuracy=ensemble_accuracy(clean.scores, labels, votes=votes),
        accuracy=ensemble_accuracy(attacked.scores, labels, votes=votes),
        clean_success=succeeded[0],
        success=succeeded[1],
        clean_cost=float(before.mean()),
        cost=float(after.mean()),
        clipped_share=float(np.mean(attacked.losses[0] > cost_bound)),
        unmet=task.mechanism.unmet(Relation.REPLACE),
    )
    if certificate is None:
        return row
    why = certificate.unmet + not_covered(attack, certificate)
    row = _beside_predictions(row, attacked.scores, certificate, failure_probability)
    if certificate.settings.exact:
        row = _beside_answers(row, clean.answers[0][0], goal, certificate, cost_bound)
    else:
        row = _beside_costs(row, before, after, certificate, cost_bound, delta, failure_probability)
    return replace(row, sound=not why, unmet=why)


def not_covered(attack: Attack, certificate: Certificate) -> tuple[Statement, ...]:
    """Why the certificate says nothing about this attack; empty if it does."""
    threat = certificate.threat
    why: list[Statement] = []
    if attack.size and attack.unit != threat.unit:
        why.append(Statement.of("attack-unit", attack=attack.unit, certificate=threat.unit))
    if attack.size and attack.relation != threat.relation:
        why.append(Statement.of("attack-relation", attack=attack.relation, certificate=threat.relation))
    return tuple(why)


def _beside_predictions(
    row: AttackRow, scores: NDArray[np.float32], certificate: Certificate, failure_probability: float
) -> AttackRow:
    """The row with what became of certified predictions in the attacked ensemble's `scores`."""
    found = verdict(scores, certificate, row.adversaries, failure_probability=failure_probability)
    return replace(
        row,
        certified_accuracy=certificate.certified_accuracy([row.adversaries])[0],
        certified_inputs=found.certified,
        kept_on_certified=found.kept / found.certified if found.certified else None,
        holds_on_certified=found.contradicted == 0,
    )


def _beside_answers(
    row: AttackRow, scores: Floats, goal: Goal, certificate: Certificate, cost_bound: float
) -> AttackRow:
    """The row with bounds from the released model's `scores` on the goal's inputs, and whether they hold."""
    found = exact_costs(scores, answer_costs(scores, goal), certificate.threat.relation, row.adversaries)
    lower, upper = (min(bound, cost_bound) for bound in found)
    within = lower - _ROUNDING <= row.cost <= upper + _ROUNDING
    return replace(row, certified_lower=lower, certified_upper=upper, holds_on_cost=within)


def _beside_costs(
    row: AttackRow,
    before: NDArray[np.float64],
    after: NDArray[np.float64],
    certificate: Certificate,
    cost_bound: float,
    delta: float,
    failure_probability: float,
) -> AttackRow:
    """The row with bounds from the costs `before`, and whether those `after` the attack keep to them."""
    settings = certificate.settings
    if settings.counted:
        lower, upper = partition_costs(before, cost_bound, row.adversaries)
        within = bool(lower - _ROUNDING <= after.mean() <= upper + _ROUNDING)
        return replace(row, certified_lower=lower, certified_upper=upper, holds_on_cost=within)
    bound = partial(
        inefficacy,
        before,
        cost_bound=cost_bound,
        mechanism=settings.mechanism,
        privacy=settings.privacy if settings.mechanism is None else None,
        threat=settings.threat,
        sizes=[row.adversaries],
        failure_probability=settings.failure_probability or failure_probability,
        delta=delta,
    )
    tight: Inefficacy = bound(method=CostMethod.MEAN)
    # Without privacy there is no ε for the paper's bounds; that of one release is not of each replica.
    known = settings.mechanism
    private = known is None or (is_private(known) and not known.one_release)
    paper: Inefficacy | None = bound(method=CostMethod.PAPER) if private else None
    low, high = interval(after, cost_bound, failure_probability)
    return replace(
        row,
        certified_lower=tight.lower[0],
        certified_upper=tight.upper[0],
        paper_lower=paper.lower[0] if paper else None,
        paper_upper=paper.upper[0] if paper else None,
        holds_on_cost=high >= tight.lower[0] and low <= tight.upper[0],
    )
