"""What two samples of a statistic prove about a privacy guarantee. Free of torch.

A guarantee says how far the probability of any event may move between two federations. Events here are
"the statistic is above t". Clopper-Pearson bounds at both federations put the pair of probabilities into a
box; a guarantee that no point of the box satisfies is contradicted.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from scipy.special import betainc
from scipy.stats import f as f_distribution

from fedproof import check
from fedproof.accounting import Tradeoff
from fedproof.arrays import Floats
from fedproof.certificates.confidence import binomial_lower

_PILOT = 4  # one replica in four chooses the thresholds, the others are counted


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """Bounds on the probabilities of events "above t", for every t in `thresholds`, on two federations.

    Guarantee: all bounds hold together, except with probability at most `false_alarm`.

    Attributes:
        thresholds: `(events,)`.
        clean_lower, clean_upper: bounds on the probability on the first federation.
        poisoned_lower, poisoned_upper: bounds on the probability on the second.
        false_alarm: chance that any of them is wrong.
    """

    thresholds: Floats
    clean_lower: Floats
    clean_upper: Floats
    poisoned_lower: Floats
    poisoned_upper: Floats
    false_alarm: float

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
