"""Clean and attacked ensembles: their scores, what they cost an attacker, what they say of certificates."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import check
from fedproof.arrays import Floats, votes_of
from fedproof.attacks import Attack, Goal
from fedproof.certificates import Bound, Certificate, Rule
from fedproof.certificates.confidence import mean_lower, mean_upper
from fedproof.certificates.rules import counted_sizes, duels, elected
from fedproof.ensemble import (
    Task,
    first_updates,
    one_round,
    predict,
    shares_first_round,
    sizes_for,
    train_replicas,
)
from fedproof.ensemble.memory import part_size_for
from fedproof.mechanisms import Releases
from fedproof.models.model import as_inputs
from fedproof.progress import Tally
from fedproof.robustness.poisoned import attacked_first_updates, under_attack


@dataclass(frozen=True, kw_only=True)
class AttackOutcome:
    """What is kept of an ensemble, clean or attacked, once it is trained.

    Attributes:
        scores: `(replicas, inputs, classes)` on the test inputs; of a single release counted in units.
        losses: `(replicas,)` for each goal, the attacker's loss.
        answers: `(2, inputs, classes)` for each goal: what the replicas say to its inputs, added up, in
            confidences and in votes.
        missed: `(replicas,)` for each goal: share of its inputs not answered as it wants, a cost in [0, 1].
    """

    scores: NDArray[np.floating]
    losses: tuple[NDArray[np.float64], ...]
    answers: tuple[NDArray[np.float64], ...] = ()
    missed: tuple[NDArray[np.float64], ...] = ()


def train(
    task: Task,
    num_replicas: int,
    goals: Sequence[Goal],
    *,
    first: Tensor | None = None,
    progress: Tally = lambda done, total: None,
) -> AttackOutcome:
    """Scores, and losses for each goal, of replicas that are trained in parts whose models are not kept.

    The task is clean, or from `under_attack`; `first` are its round-one updates, see `first_updates` and
    `attacked_first_updates`.
    """
    if task.mechanism.releases is Releases.MODEL:
        return _released(task, goals)
    scores: list[NDArray[np.float32]] = []
    found: list[list[NDArray[np.float64]]] = [[] for _ in goals]
    missed: list[list[NDArray[np.float64]]] = [[] for _ in goals]
    answers = [np.zeros((2, 1, 1))] * len(goals)
    step = part_size_for(task)
    for begin in range(0, num_replicas, step):
        part = train_replicas(task, range(begin, min(begin + step, num_replicas)), first_updates=first)
        scores.append(part.scores)
        for place, goal in enumerate(goals):
            said = scores_on(task, part.models, goal.inputs)
            found[place].append(losses(said, goal))
            missed[place].append(answer_costs(said, goal).mean(axis=1))
            answers[place] = answers[place] + np.stack(
                [said.sum(axis=0, dtype=np.float64), votes_of(said).sum(axis=0)]
            )
        progress(min(begin + step, num_replicas), num_replicas)
    return AttackOutcome(
        scores=np.concatenate(scores),
        losses=tuple(np.concatenate(parts) for parts in found),
        answers=tuple(answers),
        missed=tuple(np.concatenate(parts) for parts in missed),
    )


def run_attack(
    task: Task,
    attack: Attack,
    num_replicas: int,
    *,
    clean_first: Tensor | None = None,
    progress: Tally = lambda done, total: None,
) -> AttackOutcome:
    """The ensemble of the clean `task` under `attack`, and its losses for the attack's goal.

    Honest users' first updates are taken from `clean_first`, the result of `first_updates(task)`.
    """
    attacked, first = under_attack(task, attack), None
    # Where users have left, rows of the clean updates are no longer those of the same users.
    if shares_first_round(task) and attacked.federation.num_users >= task.federation.num_users:
        clean_first = first_updates(task) if clean_first is None else clean_first
        first = attacked_first_updates(attacked, attack.adversaries, clean_first)
    goal = attack.goal(task.federation)
    num_replicas = attacked.mechanism.models(attacked.units.num_users) or num_replicas
    return train(attacked, num_replicas, [goal], first=first, progress=progress)


def _released(task: Task, goals: Sequence[Goal]) -> AttackOutcome:
    """What the one model of a single release answers; its noise follows from the seed, clean or attacked."""
    if task.secure_noise:
        raise ValueError(
            f"ensemble.secure_noise = true must be false to attack kind = '{task.mechanism.kind}': its "
            "certificate is about the same noise with and without the attack"
        )
    found = one_round.release(task)
    said = [found.scores(goal.inputs) for goal in goals]
    missed = tuple(answer_costs(one, goal).mean(keepdims=True) for one, goal in zip(said, goals, strict=True))
    return AttackOutcome(
        scores=found.scores(task.federation.test_features)[None],
        losses=missed,
        answers=tuple(np.stack([one, votes_of(one[None])[0]]) for one in said),
        missed=missed,
    )


# --- the attacker's cost: the loss of a model on the attack's own test set ----------------------------------

_LEAST = 1e-300  # a score of zero costs much, not infinity


def scores_on(task: Task, models: Mapping[str, Tensor], inputs: NDArray[np.generic]) -> NDArray[np.float32]:
    """Scores `(replicas, inputs, classes)` of trained models, named parameters `(replicas, ...)`."""
    device = torch.device(task.device)
    params = torch.cat([models[name].flatten(1) for name in task.model.layout.names], dim=1)
    return predict(
        task.model.to(device, task.dtype),
        params.to(device, task.dtype),
        as_inputs(inputs, device, task.dtype),
        cells=sizes_for(task).cells,
    )


def losses(scores: NDArray[np.floating], goal: Goal) -> NDArray[np.float64]:
    """The attacker's loss `(replicas,)` from scores (replicas, inputs, classes) on the goal's inputs.

    The mean over the inputs of -log f_y*, y* being the wanted class; where every wrong class will do, of
    -log(1 - f_y), y being the right one.

    Reference: the paper, Examples 1 and 2.

    >>> goal = Goal(inputs=np.zeros((1, 2)), labels=np.array([0]))
    >>> losses(np.array([[[0.5, 0.5]], [[1.0, 0.0]]]), goal).round(4).tolist()
    [0.6931, -0.0]
    """
    chosen = np.take_along_axis(scores, goal.labels[None, :, None], axis=2)[:, :, 0].astype(np.float64)
    if not goal.wanted:
        chosen = scores.astype(np.float64).sum(axis=2) - chosen
    return np.asarray(-np.log(np.clip(chosen, _LEAST, 1.0)).mean(axis=1))


def answer_costs(scores: NDArray[np.floating], goal: Goal) -> Floats:
    """The cost `(..., inputs)` of models' answers: 0 where they are what the attacker wants, else 1.

    >>> answer_costs(np.array([[5.0, 7.5]]), Goal(inputs=np.zeros((1, 2)), labels=np.array([0]))).tolist()
    [1.0]
    """
    return np.asarray((scores.argmax(axis=-1) == goal.labels) != goal.wanted, dtype=np.float64)


def success_rate(answers: NDArray[np.float64], goal: Goal) -> float:
    """Share of the goal's inputs that get the answer the attacker wants, from `answers` (inputs, classes).

    >>> goal = Goal(inputs=np.zeros((2, 3)), labels=np.array([1, 1]))
    >>> success_rate(np.array([[0.2, 0.8], [0.9, 0.1]]), goal)
    0.5
    """
    return float(np.mean((answers.argmax(axis=1) == goal.labels) == goal.wanted))


def costs(losses: NDArray[np.float64], cost_bound: float) -> NDArray[np.float64]:
    """The bounded cost `(replicas,)`: the loss, clipped to [0, C̄] before anything is averaged.

    >>> costs(np.array([0.2, 3.0]), 0.5).tolist()
    [0.2, 0.5]
    """
    check.positive(cost_bound=cost_bound)
    return np.clip(losses, 0.0, cost_bound)


# --- whether an attacked ensemble contradicts what is certified, beyond Monte-Carlo error -------------------


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """What became of the predictions that are certified against an attack's size.

    Attributes:
        certified: number of test inputs certified for that size.
        kept: how many of them the attacked ensemble answers as before.
        contradicted: how many it provably answers otherwise; kept + contradicted may be less than certified,
            because a finite ensemble cannot tell near ties apart.
    """

    certified: int
    kept: int
    contradicted: int


def certified_at(certificate: Certificate, size: int) -> NDArray[np.int64]:
    """Indices of the inputs certified against `size` units."""
    pairs = enumerate(certificate.certified_size)
    return np.array([i for i, found in pairs if found is not None and found >= size], dtype=np.int64)


def verdict(
    scores: NDArray[np.floating], certificate: Certificate, size: int, *, failure_probability: float
) -> Verdict:
    """What the attacked ensemble's `scores` (replicas, inputs, classes) say about the certified inputs.

    Guarantee: if the certificate holds, an input counts as contradicted with at most `failure_probability`,
    all inputs together.
    """
    rows = certified_at(certificate, size)
    if not len(rows):
        return Verdict(certified=0, kept=0, contradicted=0)
    if certificate.settings.certain:
        return _certain(scores, certificate, rows)
    rule, votes = certificate.settings.rule, certificate.settings.votes
    wanted = np.array([certificate.prediction[row] for row in rows])
    if rule is Rule.RUN_OFF:
        return _run_off(scores[:, rows].astype(np.float64), wanted, votes, failure_probability)
    paired = rule is Rule.PAIRWISE
    margins = _margins(votes_of(scores[:, rows]) if votes and not paired else scores[:, rows], wanted)
    if paired:
        margins = np.sign(margins)
    lost = margins.mean(axis=0) <= 0  # columns: each rival of each input
    sure = np.zeros(lost.shape, dtype=np.bool_)
    if lost.any():
        each = failure_probability / lost.size
        sure[lost] = mean_upper((margins[:, lost] + 1) / 2, Bound.BETTING, each) < 0.5
    return Verdict(
        certified=len(rows), kept=int(np.sum(~lost.any(axis=1))), contradicted=int(np.sum(sure.any(axis=1)))
    )


def _certain(scores: NDArray[np.floating], certificate: Certificate, rows: NDArray[np.int64]) -> Verdict:
    """Votes of disjoint groups, and one model, are no estimate: a prediction is kept or contradicted."""
    settings, found = certificate.settings, scores[:, rows]
    top = found[0].argmax(axis=1) if settings.exact else counted_sizes(settings.rule, found, 0)[0]
    kept = int(np.sum(top == [certificate.prediction[row] for row in rows]))
    return Verdict(certified=len(rows), kept=kept, contradicted=len(rows) - kept)


def _run_off(scores: Floats, wanted: NDArray[np.int64], votes: bool, failure_probability: float) -> Verdict:
    """Lost for sure: two classes are ahead for sure, or one that meets the wanted class for sure beats it."""
    first = votes_of(scores) if votes else scores
    winner, _ = elected(Rule.RUN_OFF, first.mean(axis=0), duels(scores))
    lost, num_classes = np.flatnonzero(winner != wanted), scores.shape[2]
    each = failure_probability / (len(wanted) * num_classes * (num_classes + 1))
    contradicted = 0
    for index in lost:
        label, mine = wanted[index], first[:, index]
        leads = (mine[:, :, None] - mine[:, None, :]).reshape(len(mine), -1)
        ahead = _surely_positive(leads, each).reshape(num_classes, num_classes)
        beats = _surely_positive(np.sign(scores[:, index] - scores[:, index, [label]]), each)
        third = (np.arange(num_classes) != label) & ~np.eye(num_classes, dtype=np.bool_)
        meets = (ahead | ~third).all(axis=1)
        contradicted += bool(ahead[:, label].sum() >= 2 or (beats & meets).any())
    return Verdict(certified=len(wanted), kept=len(wanted) - len(lost), contradicted=contradicted)


def _surely_positive(leads: Floats, failure_probability: float) -> NDArray[np.bool_]:
    """Whether the mean of each column of leads in [-1, 1] is above zero, beyond Monte-Carlo error."""
    return np.asarray(mean_lower((leads + 1) / 2, Bound.BETTING, failure_probability) > 0.5)


def interval(values: Floats, bound: float, failure_probability: float) -> tuple[float, float]:
    """Confidence interval of the mean of `values` (replicas,) in [0, bound]."""
    column = values[:, None] / bound
    low = mean_lower(column, Bound.BETTING, failure_probability / 2)
    high = mean_upper(column, Bound.BETTING, failure_probability / 2)
    return float(low[0]) * bound, float(high[0]) * bound


def _margins(scores: NDArray[np.floating], wanted: NDArray[np.int64]) -> Floats:
    """Margins `(replicas, inputs, classes - 1)` of the wanted class over each other."""
    classes = scores.shape[2]
    others = np.array([[c for c in range(classes) if c != want] for want in wanted])
    scores = scores.astype(np.float64)
    top = np.take_along_axis(scores, wanted[None, :, None], axis=2)
    return np.asarray(top - np.take_along_axis(scores, others[None], axis=2))
