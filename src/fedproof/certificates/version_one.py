"""How certificates of file version 1 were computed: kept so that their files can still be checked.

Nothing new is certified like this. Stakes follow what was won so far, and the number of replicas (unless
`sequential`), so these bounds hold for one order of the replicas and for a number fixed beforehand; a file of
version 1 does not show whether that was so.

Reference: Waudby-Smith and Ramdas 2023, arXiv:2010.09686v7, Theorem 3 and equations (26)-(28).
"""

from functools import partial

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fedproof import check
from fedproof.arrays import Bools, Floats
from fedproof.certificates.certificate import Settings
from fedproof.certificates.confidence import SLACK, Bets, Spending
from fedproof.mechanisms import Mechanism

_TRUNCATION = 0.9  # the share of the capital that one value may cost at most
_FACTORS = 16  # factors multiplied before a logarithm is taken
_STEPS = 26  # halvings of the bracket
# The mechanisms of that time; a cohort drawn once without noise has got a name of its own since.
_KINDS = (
    "user-fedavg", "fedavg", "instance-fedsgd", "instance-fedavg", "cohort-once", "bagging", "partition",
    "queries",
)  # fmt: skip


def share(failure_probability: float, num_classes: int, spending: Spending) -> float:
    """Failure probability of each one-sided bound of one input: 2C bounds shared it, two for two classes."""
    check.open_probability(failure_probability=failure_probability)
    if spending is Spending.PAPER:
        return failure_probability
    return failure_probability / (2 if num_classes == 2 else 2 * num_classes)


def bets(sequential: bool) -> Bets:
    """The bets of version 1."""
    return Bets(
        lower=partial(_lower, sequential=sequential), rejects=partial(_rejects, sequential=sequential)
    )


def check_mechanism(mechanism: Mechanism | None) -> None:
    """Refuse mechanisms that no file of version 1 describes, as they came later.

    It has no words for what these take for granted, so a file that calls itself old would claim more.
    """
    if mechanism is not None and mechanism.kind not in _KINDS:
        raise ValueError(f"version = 1 must be 2: files of version 1 know no kind = '{mechanism.kind}'")


def assumptions_of(settings: Settings, *, exact: bool) -> tuple[str, ...]:
    """What a certificate said it takes for granted."""
    if settings.mechanism is not None and settings.counted:
        alone, group = settings.mechanism.assumptions
        return (alone, "the certified predictor is the class with most votes, the first of equal ones", group)
    source = (
        "the class confidences are exact expectations, without Monte-Carlo error"
        if exact
        else "the replicas are independent trainings by the same mechanism on the same data"
    )
    predictor = "most probable vote" if settings.votes else "mean confidence"
    ensemble = (
        f"the certified predictor is the {predictor} of the ensemble; a single replica has no certificate"
    )
    if settings.mechanism is not None:
        executed, *_, cohorts = settings.mechanism.assumptions
        return source, ensemble, executed, cohorts
    threat = settings.threat
    proved = f"epsilon and delta were proved for one {threat.unit} under the relation {threat.relation}"
    return source, ensemble, proved


def check_order(costs: NDArray[np.generic]) -> None:
    """Refuse costs that somebody sorted: these bets must not know what comes.

    Twenty different costs come sorted by themselves with probability 2/20!, below 1e-18.
    """
    steps = np.diff(costs.astype(np.float64))
    if len(np.unique(costs)) >= 20 and (np.all(steps >= 0) or np.all(steps <= 0)):
        raise ValueError(
            "costs are sorted: bound 'betting' needs them in the order in which the replicas were trained"
        )


def _stakes(values: Floats, failure_probability: float, sequential: bool) -> Floats:
    """Bets (replicas, columns); row t depends on rows before t only."""
    num = len(values)
    after = np.arange(1, num + 1, dtype=np.float64)[:, None]
    means = (0.5 + np.cumsum(values, axis=0)) / (after + 1)
    deviations = np.cumsum(np.square(values - means), axis=0)
    variances = np.empty_like(deviations)
    variances[0] = 0.25
    variances[1:] = (0.25 + deviations[:-1]) / (after[:-1] + 1)
    horizon = after * np.log1p(after) if sequential else np.float64(num)
    return np.asarray(np.sqrt(2 * np.log(1 / failure_probability) / (variances * horizon)))


def _log_capital(values: Floats, stakes: Floats, mean: Floats) -> Floats:
    factors = np.minimum(stakes, _TRUNCATION / np.maximum(mean, 1e-12))
    factors *= values - mean
    factors += 1.0
    groups = [factors[first : first + _FACTORS] for first in range(0, len(factors), _FACTORS)]
    return np.asarray(np.log(np.stack([np.prod(rows, axis=0) for rows in groups])).sum(axis=0))


def _lower(values: ArrayLike, failure_probability: float, *, sequential: bool) -> Floats:
    check.open_probability(failure_probability=failure_probability)
    rows = np.ascontiguousarray(values, dtype=np.float64)
    stakes = _stakes(rows, failure_probability, sequential)
    threshold = np.log(1 / failure_probability) + SLACK
    low, high = np.zeros(rows.shape[1]), rows.mean(axis=0)
    for _ in range(_STEPS):
        middle = (low + high) / 2
        rejected = _log_capital(rows, stakes, middle) >= threshold
        low, high = np.where(rejected, middle, low), np.where(rejected, high, middle)
    return low


def _rejects(values: ArrayLike, mean: ArrayLike, failure_probability: float, *, sequential: bool) -> Bools:
    rows = np.ascontiguousarray(values, dtype=np.float64)
    stakes = _stakes(rows, failure_probability, sequential)
    means = np.broadcast_to(np.asarray(mean, dtype=np.float64), rows.shape[1:])
    return np.asarray(_log_capital(rows, stakes, means) >= np.log(1 / failure_probability) + SLACK)
