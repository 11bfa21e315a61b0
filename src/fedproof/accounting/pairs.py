"""Dominating pairs for k poisoned units in one Gaussian query, discretised against ourselves.

With unit noise after division by the noise standard deviation, and w_j the probability that j of the k
adversarial units are drawn, the pairs are (theory: Ganesh 2024, arXiv:2401.10294v2 for `join`; Schuchardt,
Stoian, Kosmala, Günnemann 2024, arXiv:2403.04867v2 for k insertions and k deletions, which is `replace`):

| sampling        | relation  | P (clean)            | Q (poisoned)         |
|-----------------|-----------|----------------------|----------------------|
| Poisson         | `join`    | N(0)                 | Σ w_j N(j), binomial |
| Poisson         | `replace` | Σ w_j N(-j)          | Σ w_j N(+j)          |
| everyone        | both      | the same with w_k = 1                       ||
| fixed size      | `join`    | N(0)                 | Σ w_j N(2j), hypergeometric |
| fixed size      | `replace` | profile Σ_{j>=1} w_j H_α(N(2j) || N(0)), α = 1 + (α' - 1)/(1 - w_0) ||
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.special import ndtr

from fedproof.accounting.loss import LARGEST_LOSS, DiscretePair
from fedproof.accounting.sampling import adversaries_drawn
from fedproof.arrays import Floats
from fedproof.mechanisms import FixedSize, Query
from fedproof.threat import Relation

# How far, in standard deviations, a normal component reaches: 1e-20 of its mass lies beyond.
_REACH = 9.3
_SCAN_POINTS = 2049
# Root search for the edges of cells: steps at most, and the error in the loss that is good enough.
_MOST_STEPS = 60
_LEVEL_ERROR = 1e-12
# What rounding may do to one release, measured at less than a tenth of it: handed over as certain detection.
ROUNDED = 1e-14


@dataclass(frozen=True, kw_only=True)
class Mixture:
    """Σ weights_j N(means_j, 1)."""

    weights: Floats
    means: Floats

    def log_density(self, points: Floats) -> tuple[Floats, Floats]:
        """Logarithm of the density up to the constant that all mixtures share, and its derivative."""
        distances = self.means - points[:, None]
        exponents = np.log(self.weights) - 0.5 * distances**2
        largest = exponents.max(axis=1)
        shares = np.exp(exponents - largest[:, None])
        total = shares.sum(axis=1)
        return largest + np.log(total), np.einsum("ij,ij->i", shares, distances) / total

    def cell_masses(self, edges: Floats) -> Floats:
        """Masses between increasing `edges`, accurate in both tails."""
        return np.asarray(_normal_cells(edges[:, None] - self.means) @ self.weights)


_STILL = Mixture(weights=np.ones(1), means=np.zeros(1))


def _normal_cells(edges: Floats) -> Floats:
    """Standard normal masses between consecutive rows of `edges`, from the tail that keeps digits."""
    left, right = ndtr(edges), ndtr(-edges)
    return np.asarray(np.where(edges[:-1] > 0, right[:-1] - right[1:], left[1:] - left[:-1]))


# --- one pair -----------------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class MonotonePair:
    """Two mixtures whose loss log(P/Q) decreases along the line: clean mass on the left."""

    clean: Mixture
    poisoned: Mixture
    dropped: float

    @property
    def num_components(self) -> int:
        """Number of normal components of the larger mixture."""
        return len(self.poisoned.weights)

    def loss(self, points: Floats) -> tuple[Floats, Floats, Floats]:
        """Privacy loss log(P/Q) at each point, its derivative, and what rounding may have done to it."""
        clean, clean_slope = self.clean.log_density(points)
        poisoned, poisoned_slope = self.poisoned.log_density(points)
        noise = 4 * np.finfo(np.float64).eps * (np.abs(clean) + np.abs(poisoned))
        return clean - poisoned, clean_slope - poisoned_slope, noise

    @cached_property
    def scan(self) -> tuple[Floats, Floats]:
        """Points over all the mass, and the loss at each."""
        means = np.concatenate((self.clean.means, self.poisoned.means))
        points = np.linspace(means.min() - _REACH, means.max() + _REACH, _SCAN_POINTS)
        return points, self.loss(points)[0]

    def spread_and_reach(self) -> tuple[float, float]:
        """Standard deviation of the loss under P, and the largest absolute loss that matters."""
        points, losses = self.scan
        clipped = np.clip(losses, -LARGEST_LOSS, LARGEST_LOSS)
        mass = self.clean.cell_masses(points)
        middle = (clipped[1:] + clipped[:-1]) / 2
        mean = float(mass @ middle)
        return float(np.sqrt(mass @ (middle - mean) ** 2)), float(np.abs(clipped).max())

    def told_apart(self) -> float:
        """About the P-mass whose loss is beyond the largest."""
        points, losses = self.scan
        return float(self.clean.cell_masses(points) @ (losses[1:] > LARGEST_LOSS))

    def discretise(self, step: float) -> DiscretePair:
        """The pair on a grid of losses, dominating the true one."""
        points, losses = self.scan
        # A level on either side of zero, also where all losses are zero as computed.
        high = max(1, int(np.ceil(min(losses.max(), LARGEST_LOSS) / step)))
        low = min(-1, int(np.floor(max(losses.min(), -LARGEST_LOSS) / step)))
        levels = np.arange(low, high + 1, dtype=np.float64) * step
        edges, error = self._where(levels, points, losses)
        walls = np.concatenate(([np.inf], edges, [-np.inf]))[::-1]  # losses fall along the line
        clean, poisoned = (part.cell_masses(walls)[::-1] for part in (self.clean, self.poisoned))
        # Moving the loss of some mass up by an error e is dominated by giving away a share e of that mass.
        of_cells = np.maximum(np.append(error[0], error), np.append(error, error[-1]))
        moved = float(max(clean @ of_cells, poisoned @ of_cells))
        return split_cells(step=step, first=low, clean=clean, poisoned=poisoned, dropped=self.dropped + moved)

    def _where(self, levels: Floats, points: Floats, losses: Floats) -> tuple[Floats, Floats]:
        """Points at which the loss equals the increasing `levels`, and by how much it may not.

        Newton steps from an interpolated guess, halving the bracket of the scan where they would leave it.
        """
        above = np.clip(np.searchsorted(-losses, -levels), 1, len(points) - 1)
        left, right = points[above - 1], points[above]
        edges = np.interp(-levels, -losses, points)
        inside = (levels < losses[0]) & (levels > losses[-1])
        for _ in range(_MOST_STEPS):
            reached, slope, noise = self.loss(edges)
            error = np.where(inside, reached - levels, 0.0)
            unfinished = np.abs(error) > _LEVEL_ERROR + noise
            left, right = np.where(error > 0, edges, left), np.where(error > 0, right, edges)
            with np.errstate(over="ignore"):  # where the loss is flat the step leaves the bracket anyway
                newton = edges - np.divide(error, slope, out=np.full_like(edges, np.inf), where=slope < 0)
            within = (newton >= left) & (newton <= right)
            edges = np.where(within & inside, newton, np.where(unfinished, (left + right) / 2, edges))
            if not unfinished.any():
                break
        edges = np.minimum.accumulate(edges)
        reached, _, noise = self.loss(edges)
        return edges, np.where(inside, np.abs(reached - levels), 0.0) + noise


def split_cells(*, step: float, first: int, clean: Floats, poisoned: Floats, dropped: float) -> DiscretePair:
    """Split the masses of cells onto the grid losses at their ends, keeping the P- and Q-mass of each.

    `clean` and `poisoned` hold one cell more than there are grid losses at each end: below the first loss and
    above the last. Below, P is rounded up to the first loss; above, it is given away. Q mirrors it.
    """
    ratios = np.exp((first + np.arange(len(clean) - 1)) * step)
    inner_clean, inner_poisoned = clean[1:-1], poisoned[1:-1]
    width = np.diff(ratios)
    upper = np.clip((inner_clean - ratios[:-1] * inner_poisoned) / width, 0.0, inner_poisoned)
    lower = inner_poisoned - upper  # Q-mass at the lower end
    q_mass = np.zeros(len(ratios))
    q_mass[:-1] += lower
    q_mass[1:] += upper
    p_mass = ratios * q_mass
    p_mass[0] += clean[0]  # loss below the grid: rounded up for P, given away for Q
    q_mass[-1] += poisoned[-1]  # loss above the grid: given away for P, rounded up for Q
    return DiscretePair(
        step=step,
        first=first,
        clean=p_mass,
        poisoned=q_mass,
        clean_only=float(clean[-1]) + dropped + ROUNDED,
        poisoned_only=float(poisoned[0]) + dropped + ROUNDED,
    )


def poisson_pair(query: Query, relation: Relation, size: int) -> MonotonePair:
    """The dominating pair under Poisson sampling, or with everyone taking part."""
    drawn = adversaries_drawn(query.sampling, size)
    means = drawn.numbers / query.noise_multiplier
    clean = _STILL if relation == Relation.JOIN else Mixture(weights=drawn.weights, means=-means)
    poisoned = Mixture(weights=drawn.weights, means=means)
    return MonotonePair(clean=clean, poisoned=poisoned, dropped=drawn.given_away)


# --- fixed-size cohorts -------------------------------------------------------------------------------------


@dataclass(frozen=True, kw_only=True)
class FixedSizePair:
    """The profile H_α' <= Σ_{j>=1} w_j H_α(N(2j/σ) || N(0)), α = 1 + (α' - 1)/(1 - w_0), for α' >= 1.

    Couple a cohort with j adversaries to one with none by swapping j members: their sums differ by at most
    2j. Advanced joint convexity (Balle, Barthe, Gaboardi 2018, arXiv:1807.01647v2, Theorem 2) with the
    common component of mass w_0 gives the profile. For α' >= 1 it is that of the pair
    ((1 - w_0) P₁ + w_0 Q₁, Q₁) with j known, P₁ = N(2j/σ), Q₁ = N(0); it holds in both directions, so the
    losses below zero mirror those above.
    """

    shifts: Floats
    weights: Floats
    any_drawn: float
    dropped: float

    @property
    def num_components(self) -> int:
        """Number of normal components."""
        return len(self.weights)

    def spread_and_reach(self) -> tuple[float, float]:
        """A lower estimate of the loss's standard deviation, and the largest absolute loss that matters."""
        largest = min(600.0, float(np.max(self.shifts * (self.shifts / 2 + _REACH))))  # log-ratio
        reach = min(LARGEST_LOSS, float(np.log1p(self.any_drawn * np.expm1(largest))))
        losses = np.linspace(0.0, reach, _SCAN_POINTS)
        clean, _ = self._cells(losses)
        middle = np.concatenate(((losses[1:] + losses[:-1]) / 2, [reach]))
        return float(np.sqrt(clean @ middle**2)), reach

    def _cells(self, losses: Floats) -> tuple[Floats, Floats]:
        """Masses of ((1-w_0) P₁ + w_0 Q₁, Q₁) between increasing non-negative losses and beyond the last."""
        log_ratio = np.log1p(np.expm1(losses) / self.any_drawn)[:, None]
        edges = log_ratio / self.shifts + self.shifts / 2  # where N(shift) over N(0) has that ratio
        edges = np.concatenate((edges, np.full((1, len(self.shifts)), np.inf)))
        share = self.weights / self.weights.sum()
        alone = _normal_cells(edges) @ share
        moved = _normal_cells(edges - self.shifts) @ share
        return self.any_drawn * moved + (1 - self.any_drawn) * alone, alone

    def discretise(self, step: float) -> DiscretePair:
        """The pair on a grid of losses, dominating the profile in both directions."""
        _, reach = self.spread_and_reach()
        top = int(np.ceil(reach / step))
        clean, poisoned = self._cells(np.arange(top + 1, dtype=np.float64) * step)
        padding = np.zeros(1)
        half = split_cells(
            step=step,
            first=0,
            clean=np.concatenate((padding, clean)),
            poisoned=np.concatenate((padding, poisoned)),
            dropped=self.dropped,
        )
        # Losses above zero as they are, below zero mirrored, and what remains has loss zero.
        p_above, q_above = half.clean[1:], half.poisoned[1:]
        rest = 1 - half.clean_only - p_above.sum() - q_above.sum()
        rest = max(0.0, rest)
        p_mass = np.concatenate((q_above[::-1], [rest], p_above))
        return DiscretePair(
            step=step,
            first=-top,
            clean=p_mass,
            poisoned=p_mass[::-1],
            clean_only=half.clean_only,
            poisoned_only=half.clean_only,
        )


def fixed_size_pair(query: Query, relation: Relation, size: int) -> FixedSizePair | MonotonePair:
    """The dominating profile for cohorts of fixed size m; for `join` a pair.

    Guarantee (`join`): both readings are covered, m of N + k drawn instead of m of the N honest users, and m
    of N observed users, k of them adversaries, instead of m of the N - k others. Proof: draw a cohort of
    honest users in random order, and put the first j adversaries, in random order, in place of its first j
    members, with j as often as it occurs in a cohort with adversaries. That is the law of such a cohort, and
    given both orders its sum is moved by 2j clip norms at most: N(0) against Σ w_j N(x_j) with |x_j| <= 2j.
    The likelihood ratio is Σ w_j exp(X_j - E X_j²/2) with X_j = <x_j, z> normal under N(0); divergences are
    expectations of convex functions of it, which rise with every covariance <x_i, x_j> (Kahane 1985), and
    those are 4ij at most, reached by x_j = 2j on a line. By joint convexity the orders need not be known. The
    j of m out of N is stochastically larger than that of m out of N + k, so the weights of the second reading
    serve for both, again because longer shifts dominate shorter ones.
    Assumes: for `join`, m honest users are left.
    """
    assert isinstance(query.sampling, FixedSize)
    if size > query.sampling.users:
        raise ValueError(f"size = {size} must be at most the number of users = {query.sampling.users}")
    drawn = adversaries_drawn(query.sampling, size)
    shifts, weights, dropped = 2 * drawn.numbers / query.noise_multiplier, drawn.weights, drawn.given_away
    if relation == Relation.JOIN:
        return MonotonePair(clean=_STILL, poisoned=Mixture(weights=weights, means=shifts), dropped=dropped)
    some = drawn.numbers > 0
    return FixedSizePair(shifts=shifts[some], weights=weights[some], any_drawn=drawn.any, dropped=dropped)
