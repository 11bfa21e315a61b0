"""How many adversaries are drawn: the law, and the chance of none or any, without a digit lost.

Both laws (binomial for Poisson sampling, hypergeometric for cohorts of fixed size) are built from the ratios
w_j / w_{j-1} of neighbouring probabilities, outwards from the most probable number. All terms are positive
and nothing is subtracted, so each w_j and the chance 1 - w_0 that anybody is drawn keep their digits, be it
one adversary among 10^10 users. (Differences of log-gamma functions, SciPy's way, have lost all of them by
then: for N = 10^10 they are wrong by 1e-5 and more, where 1 - w_0 may be 1e-10.)
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fedproof.arrays import Floats
from fedproof.mechanisms import Everyone, FixedSize, Poisson, Sampling

# Weight of improbably few or many adversaries that is given away as certain detection, at each end.
_DROPPED_WEIGHT = 1e-17
# Each step of a recursion rounds at most six times, by half a unit in the last place.
_STEP_ERROR = 3 * float(np.finfo(np.float64).eps)


@dataclass(frozen=True, kw_only=True)
class Drawn:
    """How many adversaries are drawn: `weights[i]` is the probability of `numbers[i]`."""

    numbers: Floats  # increasing
    weights: Floats  # their probabilities, adding up to one
    left_out: float = 0.0  # bounds the probability of all other numbers
    rounding: float = 0.0  # bounds the relative error of each weight

    @property
    def none(self) -> float:
        """Probability w_0 that no adversary is drawn, rounded down."""
        return float(self.weights[self.numbers == 0].sum()) * (1 - self.given_away)

    @property
    def any(self) -> float:
        """Probability 1 - w_0 that an adversary is drawn, rounded up; small ones keep their digits."""
        known = float(self.weights[self.numbers > 0].sum())
        return min(1.0, known * (1 + self.rounding) + self.left_out)

    @property
    def given_away(self) -> float:
        """Mass to hand to an observer, as an event that tells all, for what is left out and rounded.

        With P and Q mixed by weights w, and by weights v where v_j >= (1 - r) w_j and the rest weighs t:
        H_α of the true mixtures exceeds that of the known ones by t + r at most. The change of P adds to P(E)
        no more than that; the change of Q adds α r Q(E) <= r P(E) wherever P(E) >= α Q(E).
        """
        return self.left_out + 2 * self.rounding


def adversaries_drawn(sampling: Sampling, size: int) -> Drawn:
    """The law of the number of adversaries among those drawn, its far tails given away.

    Poisson: Bin(k, q), w_j / w_{j-1} = (k - j + 1) q / (j (1 - q)). Fixed size m of N: hypergeometric,
    w_j / w_{j-1} = (k - j + 1)(m - j + 1) / (j (N - k - m + j)).
    Assumes: for cohorts of fixed size, `size` is at most the number of users.

    >>> round(adversaries_drawn(FixedSize(cohort=2, users=10), 3).none, 6)  # 7/10 times 6/9
    0.466667
    >>> adversaries_drawn(Poisson(probability=0.25), 2).weights.round(6).tolist()
    [0.5625, 0.375, 0.0625]
    >>> f"{adversaries_drawn(FixedSize(cohort=1, users=10**10), 1).any:.12e}"
    '1.000000000000e-10'
    """
    match sampling:
        case Everyone() | Poisson(probability=1):
            return Drawn(numbers=np.array([float(size)]), weights=np.ones(1))
        case Poisson(probability=probability):
            odds = probability / (1 - probability)
            mode = min(size, int((size + 1) * probability))
            return _unimodal(lambda j: (size - j + 1) / j * odds, lowest=0, highest=size, mode=mode)
        case FixedSize(cohort=cohort, users=users):
            return _hypergeometric(cohort, users, size)


def joined_drawn(sampling: Poisson | FixedSize, size: int) -> Drawn:
    """The same for `size` adversaries that join the federation: of fixed size m are then m of N + k.

    >>> round(joined_drawn(FixedSize(cohort=2, users=10), 3).none, 6)  # 10/13 times 9/12
    0.576923
    """
    if isinstance(sampling, FixedSize):
        return _hypergeometric(sampling.cohort, sampling.users + size, size)
    return adversaries_drawn(sampling, size)


def _hypergeometric(cohort: int, users: int, size: int) -> Drawn:
    """How many of `size` out of `users` are in a cohort."""
    lowest, highest = max(0, cohort + size - users), min(cohort, size)
    mode = min(highest, max(lowest, (cohort + 1) * (size + 1) // (users + 2)))
    others = users - size - cohort
    return _unimodal(
        lambda j: (size - j + 1) / j * ((cohort - j + 1) / (others + j)),
        lowest=lowest,
        highest=highest,
        mode=mode,
    )


def _unimodal(ratio: Callable[[Floats], Floats], *, lowest: int, highest: int, mode: int) -> Drawn:
    """The law on `lowest`..`highest` with w_j / w_{j-1} = ratio(j), a decreasing function."""
    up, tail_above = _one_side(lambda step: ratio(mode + step), highest - mode)
    down, tail_below = _one_side(lambda step: 1 / ratio(mode + 1 - step), mode - lowest)
    weights = np.concatenate((down[::-1], [1.0], up))
    total = float(weights.sum())
    numbers = np.arange(mode - len(down), mode + len(up) + 1, dtype=np.float64)
    rounding = _STEP_ERROR * (max(len(up), len(down)) + 2) if len(weights) > 1 else 0.0
    left_out = (tail_above + tail_below) / total
    return Drawn(numbers=numbers, weights=weights / total, left_out=left_out, rounding=rounding)


def _one_side(ratio: Callable[[Floats], Floats], most: int) -> tuple[Floats, float]:
    """Products of ratio(1), ratio(2), ..., as far as they matter, and a bound on the sum of the rest.

    The ratios decrease and soon lie below one, so the rest is less than a geometric series.
    """
    length = min(64, most)
    while True:
        factors = ratio(np.arange(1, min(length + 1, most) + 1, dtype=np.float64))
        products, following = np.cumprod(factors[:length]), factors[1:]
        with np.errstate(divide="ignore", invalid="ignore"):
            series = following / np.maximum(1 - following, 0.0)
        rest = products * (series if length < most else np.append(series, 0.0)[:length])
        enough = np.flatnonzero(rest <= _DROPPED_WEIGHT)
        if enough.size or length == most:
            end = int(enough[0]) + 1 if enough.size else length
            return np.asarray(products[:end], dtype=np.float64), float(rest[:end][-1:].sum())
        length = min(2 * length, most)
