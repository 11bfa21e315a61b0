"""Whether the executed code is less private than it is accounted: canaries, and what they prove.

A guarantee says how far the probability of any event may move between two federations. Events here are
"the statistic is above t". Clopper-Pearson bounds at both federations put the pair of probabilities into a
box; a guarantee that no point of the box satisfies is contradicted.

Canaries are units that move the model as far as the clip norm lets them, in a direction that is known. The
model has two classes and starts from zero. The gradient of an instance (x, y) is then (p - y) xᵀ, which for
two classes always points along ±(1, -1) xᵀ: canaries own x = `_PULL` e₁ and label one, and are clipped
whatever the model. Their opposite has label zero, everybody else owns x = 0 and does not move the direction.
The clip norm is so small against `_PULL` that no canary is ever shorter than it.
"""

from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from numpy.typing import ArrayLike
from scipy.special import betainc
from scipy.stats import chisquare
from scipy.stats import f as f_distribution
from torch import Tensor, nn

from fedproof import check, exact
from fedproof.accounting import Tradeoff
from fedproof.arrays import Floats
from fedproof.certificates.confidence import binomial_lower
from fedproof.ensemble import Task, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import LocalTraining, Mechanism
from fedproof.models.model import StackedModel, stacked
from fedproof.models.tape import Tape, Weights, layer
from fedproof.threat import Relation

_OFF = 2.0**-10  # of a step: how far float64 may lose what a model was made of
_PILOT = 4  # one replica in four chooses the thresholds, the others are counted


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Bounds on the probabilities of events "above t", for every t in `thresholds`, on two federations.

    Guarantee: all bounds hold together, except with probability at most `false_alarm`.
    """

    thresholds: Floats  # (events,)
    clean_lower: Floats  # bounds on the probability on the first federation, and on the second
    clean_upper: Floats
    poisoned_lower: Floats
    poisoned_upper: Floats
    false_alarm: float  # chance that any of them is wrong

    def contradictions(self, curve: Tradeoff) -> Floats:
        """Thresholds of the events that move further than `curve` allows.

        Guarantee: empty for a valid curve, except with probability at most `false_alarm`.
        """
        too_high = self.poisoned_lower > curve.upper(self.clean_upper)
        too_low = self.poisoned_upper < curve.lower(self.clean_lower)
        return self.thresholds[too_high | too_low]

    def epsilon_lower(self, delta: float) -> float:
        """An ε that the mechanism exceeds: no smaller one is (ε, `delta`)-DP for these two federations.

        Guarantee: true except with probability at most `false_alarm`.
        """
        pairs = (
            (self.poisoned_lower, self.clean_upper),
            (self.clean_lower, self.poisoned_upper),
            (1 - self.poisoned_upper, 1 - self.clean_lower),
            (1 - self.clean_upper, 1 - self.poisoned_lower),
        )
        ratios = [(high - delta) / np.maximum(low, 1e-300) for high, low in pairs]
        return float(np.log(np.maximum(1.0, np.concatenate(ratios))).max())


def evidence(
    clean: ArrayLike, poisoned: ArrayLike, *, false_alarm: float = 1e-6, num_thresholds: int = 32
) -> Evidence:
    """Evidence from the statistic of independent replicas `(replicas,)` of each of two federations.

    The first quarter of the replicas chooses the thresholds, the rest is counted, so that a threshold does
    not depend on what is counted with it.

    >>> rng = np.random.default_rng(0)
    >>> found = evidence(rng.normal(size=4000), rng.normal(1.0, size=4000))
    >>> 0.5 < found.epsilon_lower(1e-3) < 4
    True
    """
    check.open_probability(false_alarm=false_alarm)
    check.count(num_thresholds=num_thresholds)
    samples = [np.asarray(sample, dtype=np.float64) for sample in (clean, poisoned)]
    for sample in samples:
        if sample.ndim != 1 or len(sample) < 2 * _PILOT or not np.isfinite(sample).all():
            raise ValueError(f"a statistic must be {2 * _PILOT} finite numbers or more, one for each replica")
    cuts = [len(sample) // _PILOT for sample in samples]
    pilot = np.concatenate([sample[:cut] for sample, cut in zip(samples, cuts, strict=True)])
    thresholds = np.quantile(pilot, (np.arange(num_thresholds) + 0.5) / num_thresholds)
    share = false_alarm / (4 * num_thresholds)  # two federations, two sides
    bounds = [_bounds(sample[cut:], thresholds, share) for sample, cut in zip(samples, cuts, strict=True)]
    return Evidence(
        thresholds=thresholds,
        clean_lower=bounds[0][0],
        clean_upper=bounds[0][1],
        poisoned_lower=bounds[1][0],
        poisoned_upper=bounds[1][1],
        false_alarm=false_alarm,
    )


def _bounds(counted: Floats, thresholds: Floats, failure_probability: float) -> tuple[Floats, Floats]:
    """Clopper-Pearson bounds `(thresholds,)` on the chance of being above each threshold."""
    above = np.count_nonzero(counted[:, None] > thresholds, axis=0)
    table = binomial_lower(len(counted), failure_probability)
    return table[above], 1 - table[len(counted) - above]


def dependence(noise: ArrayLike) -> float:
    """Chance that independent Gaussian rows of one scale look as much alike as those of `noise`.

    Two tests share it: the most similar pair of rows (|cos| of two independent directions follows a Beta
    law), and a component common to all rows (the squared length of their mean follows an F law).

    Assumes: rows `(replicas, dim)` without signal; the same standard deviation in all entries.

    >>> rows = np.random.default_rng(0).normal(size=(100, 20))
    >>> dependence(rows) > 1e-6, dependence(np.repeat(rows, 2, axis=0)) < 1e-6
    (True, True)
    """
    rows = np.asarray(noise, dtype=np.float64)
    count, dim = rows.shape
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    if not (lengths > 0).all():
        raise ValueError("noise holds rows that are zero: there is no noise at all")
    directions = rows / lengths
    largest = 0.0
    for start in range(0, count, 1024):
        cosines = np.abs(directions[start : start + 1024] @ directions.T)
        cosines[np.arange(len(cosines)), start + np.arange(len(cosines))] = 0.0
        largest = max(largest, float(cosines.max()))
    # The upper tail as a lower one in 1 - cos², where it does not lose its digits.
    one_pair = betainc((dim - 1) / 2, 0.5, max(0.0, 1 - largest**2))
    pairs = min(1.0, count * (count - 1) / 2 * float(one_pair))
    mean = rows.mean(axis=0)
    within = np.square(rows - mean).sum() / ((count - 1) * dim)
    common = f_distribution.sf(
        count * np.square(mean).mean() / max(float(within), 1e-300), dim, (count - 1) * dim
    )
    return float(min(1.0, 2 * min(pairs, float(common))))


def bits(steps: ArrayLike) -> float:
    """Chance that noise which is rounded as `fedproof.exact` says has digits like these.

    Rows `(replicas, dim)` are noise in steps of its grid. No number may lie off the grid. Their last eight
    binary digits must be uniform, those of large and of small numbers alike; and of two numbers that are one,
    eight or half a row apart, where samplers make them in pairs, the last four of both together.

    >>> rows = np.random.default_rng(0).normal(size=(100, 64)) * 2.0**24
    >>> bits(np.rint(rows)) > 1e-6, bits(rows) < 1e-6, bits(np.rint(rows / 4) * 4) < 1e-6
    (True, True, True)
    """
    rows = np.asarray(steps, dtype=np.float64)
    whole = np.rint(rows)
    if np.abs(rows - whole).max() > _OFF:
        return 0.0
    digits, large = whole.astype(np.int64), np.abs(whole) > np.median(np.abs(whole))
    tables = [digits[large] & 255, digits[~large] & 255]
    tables += [
        ((digits[:, :-lag] & 15) * 16 + (digits[:, lag:] & 15)).ravel()
        for lag in (1, 8, rows.shape[1] // 2)
        if lag < rows.shape[1]
    ]
    chances = [chisquare(np.bincount(table, minlength=256)).pvalue for table in tables]
    return float(min(1.0, len(chances) * min(chances)))


# --- canaries -----------------------------------------------------------------------------------------------

_FEATURES = 32
_PULL = 100.0  # against the bias, which takes 1/√(1 + _PULL²) of a clipped update with it
_LONGEST = 1e-3  # clip norms above this would move the model far enough to shorten a canary


def audit(
    mechanism: Mechanism,
    relation: Relation,
    *,
    size: int = 1,
    crowd: float = 0.0,
    num_users: int = 4,
    num_replicas: int = 4000,
    seed: int = 0,
    secure_noise: bool = False,
    false_alarm: float = 1e-6,
) -> Evidence:
    """Evidence on what `size` canaries do to the model, from `num_replicas` trainings with and without them.

    Guarantee: `audit(...).contradictions(tradeoff(mechanism, threat, size))` is empty if the mechanism was
    executed as it is accounted, except with probability at most `false_alarm`.

    Args:
        mechanism: executed by `train_replicas`, with noise and a clip norm of at most 0.001.
        relation: JOIN compares canaries with nobody, REPLACE with their opposites.
        size: number of canaries: users, or instances of one user. Where they join, one side has them and
            the other does not: units are added for real, and none stands idle in their place.
        crowd: -1 lets all others pull against the canaries, 0 aside.
        num_users: users beside the canaries.
        num_replicas: trainings of each federation.
        seed: of the first federation; the second takes the next one.
        secure_noise: whether noise and cohorts come from the operating system instead.
        false_alarm: chance of evidence against a mechanism that has done no wrong.
    """
    tasks = canary_pair(mechanism, relation, size=size, crowd=crowd, num_users=num_users, seed=seed)
    clean, poisoned = (statistics(replace(task, secure_noise=secure_noise), num_replicas) for task in tasks)
    return evidence(clean, poisoned, false_alarm=false_alarm)


def canary_pair(
    mechanism: Mechanism,
    relation: Relation,
    *,
    size: int = 1,
    crowd: float = 0.0,
    num_users: int = 4,
    seed: int = 0,
) -> tuple[Task, Task]:
    """The federation that the canaries poison, and the one they have poisoned; see `audit`."""
    check.count(size=size, num_users=num_users)
    if mechanism.clip_norm > _LONGEST:
        raise ValueError(f"clip_norm = {mechanism.clip_norm!r} must be at most {_LONGEST} for canaries")
    if relation is Relation.JOIN and mechanism.sampling.closed and _draws_units(mechanism):
        raise ValueError("relation = 'join' is not defined for cohorts of a fixed size: use 'replace'")
    poisoned = _Side(size=size, canaries=size, pull=1.0, crowd=crowd, num_users=num_users)
    absent = relation is Relation.JOIN  # before they join; who is replaced pulled the other way
    clean = replace(poisoned, canaries=0, pull=0.0) if absent else replace(poisoned, pull=-1.0)
    return _task(mechanism, clean, seed), _task(mechanism, poisoned, seed + 1)


def statistics(task: Task, num_replicas: int) -> Floats:
    """The noisy sum `(replicas,)` along the canaries' direction, in clip norms, of freshly trained replicas.

    The divisor is undone: it is public, and fixed before anybody joins.
    """
    trained = train_replicas(task, range(num_replicas))
    weights = _weights(trained.models)
    along = (weights[:, :, 1, 0] - weights[:, :, 0, 0]).sum(axis=1)
    return np.asarray(along / np.sqrt(2 * weights.shape[1]) * _scale(task))


def noise_rows(
    mechanism: Mechanism, *, num_users: int = 4, num_replicas: int = 1000, seed: int = 0
) -> Floats:
    """Weights `(replicas, dim)` that hold nothing but noise, of a federation in which nobody pulls."""
    return _rows(_still(mechanism, num_users, seed), num_replicas)


def noise_in_steps(
    mechanism: Mechanism,
    *,
    step: float | None = None,
    num_users: int = 4,
    num_replicas: int = 1000,
    seed: int = 0,
) -> Floats:
    """Noise `(replicas, dim)` of trainings in which nobody pulls, in steps of its grid; for `bits`.

    `step` is that of the grid, if it is not to be computed as the executor does.
    """
    task = replace(_still(mechanism, num_users, seed), dtype=torch.float64)
    grid = exact.grid_of(mechanism.noise_multiplier, mechanism.clip_norm)
    return np.asarray(
        _rows(task, num_replicas) * (_scale(task) * mechanism.clip_norm / (step or float(grid.step)))
    )


@dataclass(frozen=True, kw_only=True)
class _Side:
    """One of the two federations."""

    size: int  # canaries that there are on one side at least
    canaries: int  # how many there are on this one
    pull: float  # which way they pull
    crowd: float  # which way all others do
    num_users: int  # beside the canaries


def _still(mechanism: Mechanism, num_users: int, seed: int) -> Task:
    """A federation in which nobody pulls."""
    return _task(mechanism, _Side(size=0, canaries=0, pull=0.0, crowd=0.0, num_users=num_users), seed)


def _rows(task: Task, num_replicas: int) -> Floats:
    """The heads' weights `(replicas, dim)` of trained replicas."""
    return _weights(train_replicas(task, range(num_replicas)).models).reshape(num_replicas, -1)


def _task(mechanism: Mechanism, side: _Side, seed: int) -> Task:
    return Task(
        federation=_federation(side, alone=_draws_units(mechanism)),
        model=_model(mechanism.clipping.num_layers or 1),
        mechanism=_declared(mechanism, side),
        local=LocalTraining(batch_size=1, learning_rate=1.0),
        seed=seed,
    )


def _declared(mechanism: Mechanism, side: _Side) -> Mechanism:
    """The mechanism for as many units as there are with the canaries: those who are absent change no rate."""
    if mechanism.sampling.closed:
        return mechanism
    canaries = side.size if _draws_units(mechanism) else 0
    return mechanism.altered(population=mechanism.population or side.num_users + canaries)


def _federation(side: _Side, *, alone: bool) -> Federation:
    """Canaries are users of one instance, as all are, or the last of users with four has them besides.

    Absent ones are not there at all.
    """
    crowd = side.num_users * (1 if alone else 4)
    pulls = np.concatenate([np.full(crowd, side.crowd), np.full(side.canaries, side.pull)])
    starts = np.arange(len(pulls)) if alone else 4 * np.arange(side.num_users)
    features = np.zeros((len(pulls), _FEATURES), dtype=np.float32)
    features[:, 0] = _PULL * np.abs(pulls)
    return Federation(
        features=features,
        labels=(pulls > 0).astype(np.int64),
        offsets=np.append(starts, len(pulls)),
        test_features=np.zeros((1, _FEATURES), dtype=np.float32),
        test_labels=np.zeros(1, dtype=np.int64),
        class_names=("against", "with"),
        name="canaries",
    )


def _model(num_layers: int) -> StackedModel:
    model = stacked(partial(_Heads, num_layers), partial(_forward, num_layers=num_layers), 2)
    return replace(model, start=torch.zeros(model.layout.dim))


class _Heads(nn.Module):
    """A linear classifier as a sum of equal ones, each a layer that canaries pull as far as it is clipped."""

    def __init__(self, num_layers: int) -> None:
        super().__init__()
        for index in range(num_layers):
            self.add_module(f"head{index}", nn.Linear(_FEATURES, 2))

    def forward(self, inputs: Tensor) -> Tensor:
        """Logits `(batch, 2)`."""
        return torch.stack([head(inputs) for head in self.children()]).sum(0)


def _forward(weights: Weights, inputs: Tensor, tape: Tape | None, num_layers: int) -> Tensor:
    heads = [layer(weights, f"head{index}", inputs, tape) for index in range(num_layers)]
    return torch.stack(heads).sum(0)


def _weights(models: dict[str, Tensor]) -> Floats:
    """The heads' weights `(replicas, layers, 2, features)` in float64."""
    found = [value.double().numpy() for name, value in models.items() if name.endswith("weight")]
    return np.stack(found, axis=1)


def _scale(task: Task) -> float:
    mechanism = task.mechanism
    divisor = mechanism.divisor(task.federation.num_users) / mechanism.clip_norm
    if _draws_units(mechanism):
        return divisor
    return divisor * task.local.batch_size / task.local.learning_rate


def _draws_units(mechanism: Mechanism) -> bool:
    """Whether canaries are drawn one by one, not within the batch of a user who holds them."""
    return mechanism.draws is mechanism.unit
