"""Write `numerics.md`: worst relative errors of the float64 code against 50 digits of mpmath.

Usage: python docs/numerics.py. A test measures again and fails if an error is above the one on the page.
"""

import math
from collections.abc import Callable, Iterator
from pathlib import Path

import mpmath
import numpy as np
from mpmath import mpf

from fedproof.accounting.epsilon import poisson_rdp
from fedproof.accounting.pairs import Mixture, MonotonePair, poisson_pair
from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.certificates.confidence import binomial_lower, empirical_bernstein_width, hoeffding_width
from fedproof.mechanisms import Poisson, Query
from fedproof.threat import Relation

PAGE = Path(__file__).parent / "numerics.md"
DIGITS = 50
Errors = Iterator[float]


def _relative(found: float, exact: mpf) -> float:
    return float(abs((mpf(float(found)) - exact) / exact))


def _mixtures() -> list[MonotonePair]:
    queries = [
        (Query(noise_multiplier=noise, sampling=Poisson(probability=chance), count=1), relation, size)
        for noise, chance, size in ((0.7, 0.5, 1), (1.8, 0.1, 11), (5.0, 0.04, 20), (20.0, 0.2, 60))
        for relation in Relation
    ]
    return [poisson_pair(*query) for query in queries]


def _mass(mixture: Mixture, left: float, right: float) -> mpf:
    total = mpf(0)
    for weight, mean in zip(mixture.weights.tolist(), mixture.means.tolist(), strict=True):
        low, high = mpf(left) - mpf(mean), mpf(right) - mpf(mean)
        # From the nearer tail here too: 50 digits are not enough for one minus 1e-60.
        part = mpmath.ncdf(-low) - mpmath.ncdf(-high) if low > 0 else mpmath.ncdf(high) - mpmath.ncdf(low)
        total += mpf(weight) * part
    return total


def cell_masses() -> Errors:
    """Mass of a mixture between neighbouring points, out to nine standard deviations."""
    for pair in _mixtures():
        for mixture in (pair.clean, pair.poisoned):
            ends = mixture.means.min() - 9, mixture.means.max() + 9
            edges = np.linspace(*ends, 24)
            edges = np.sort(np.concatenate([edges, edges + 0.01]))
            for index, mass in enumerate(mixture.cell_masses(edges)):
                yield _relative(mass, _mass(mixture, edges[index], edges[index + 1]))


def losses() -> Errors:
    """Privacy loss log(P/Q) at a point, where it is not near zero."""
    for pair in _mixtures():
        points = np.linspace(pair.clean.means.min() - 9, pair.poisoned.means.max() + 9, 12)
        for point, found in zip(points, pair.loss(points)[0], strict=True):
            clean, poisoned = (
                mpmath.fsum(
                    mpf(weight) * mpmath.exp(-((mpf(float(point)) - mpf(mean)) ** 2) / 2)
                    for weight, mean in zip(part.weights.tolist(), part.means.tolist(), strict=True)
                )
                for part in (pair.clean, pair.poisoned)
            )
            exact = mpmath.log(clean / poisoned)
            if abs(exact) > 1e-3:
                yield _relative(found, exact)


def renyi_divergences() -> Errors:
    """Rényi divergence of the Poisson-sampled Gaussian mechanism at whole orders, by the binomial sum."""
    for chance, noise in ((0.1, 1.8), (0.01, 0.8), (0.5, 4.0), (0.04, 5.0)):
        for order in (2, 3, 8, 32, 63):
            terms = (
                mpmath.binomial(order, j)
                * mpf(chance) ** j
                * (1 - mpf(chance)) ** (order - j)
                * mpmath.exp(mpf(j * (j - 1)) / (2 * mpf(noise) ** 2))
                for j in range(order + 1)
            )
            yield _relative(
                poisson_rdp(chance, noise, float(order)), mpmath.log(mpmath.fsum(terms)) / (order - 1)
            )


def tradeoffs() -> Errors:
    """Trade-off curve of the Gaussian mechanism."""
    for shift in (0.1, 1.0, 3.0):
        for probability in (1e-6, 0.03, 0.5, 0.97, 1 - 1e-6):
            quantile = mpmath.sqrt(2) * mpmath.erfinv(2 * mpf(probability) - 1)
            yield _relative(
                GaussianTradeoff(shift=shift).lower(probability), mpmath.ncdf(quantile - mpf(shift))
            )


def clopper_pearson() -> Errors:
    """Clopper-Pearson lower bounds; the margin of 1e-12 that is subtracted on purpose included."""
    for trials in (20, 300, 1000):
        for failure in (0.01, 1e-6):
            table = binomial_lower(trials, failure)
            for successes in (1, 2, trials // 2, trials - 1, trials):
                # One Newton step in 50 digits from the float: its error is the square of that of the float.
                found, a, b = mpf(float(table[successes])), successes, trials - successes + 1
                tail = mpmath.betainc(a, b, 0, found, regularized=True)
                slope = found ** (a - 1) * (1 - found) ** (b - 1) / mpmath.beta(a, b)
                yield _relative(float(found), found - (tail - mpf(failure)) / slope)


def closed_bounds() -> Errors:
    """Hoeffding's and the empirical Bernstein bound."""
    for replicas in (50, 1000):
        for failure in (0.01, 1e-6):
            log = mpmath.log(1 / mpf(failure))
            yield _relative(hoeffding_width(replicas, failure), mpmath.sqrt(log / (2 * replicas)))
            twice = mpmath.log(2 / mpf(failure))
            for variance in (1e-6, 0.01, 0.25):
                exact = mpmath.sqrt(2 * mpf(variance) * twice / replicas) + 7 * twice / (3 * (replicas - 1))
                yield _relative(float(empirical_bernstein_width(variance, replicas, failure)), exact)


QUANTITIES: tuple[Callable[[], Errors], ...] = (
    cell_masses,
    losses,
    renyi_divergences,
    tradeoffs,
    clopper_pearson,
    closed_bounds,
)


def measure() -> dict[str, tuple[int, float]]:
    """For each quantity: how many values were compared, and their worst relative error."""
    found = {}
    with mpmath.workdps(DIGITS):
        for quantity in QUANTITIES:
            errors = list(quantity())
            found[quantity.__name__] = (len(errors), max(errors))
    return found


def page(measured: dict[str, tuple[int, float]]) -> str:
    """The page; errors are rounded up to two or five times a power of ten."""
    lines = [
        "# Numerical errors",
        "",
        "Training is done in float32, gradients on a GPU in bfloat16: what a user computes is clipped before",
        "anything is claimed of it. The norms that clip are float64 and rounded up, the factors rounded",
        "down, also where a gradient is the rest of large numbers that cancel; products of factors and",
        "updates never take TensorFloat-32, nor the digits of autocast, whatever the program that calls",
        "asked of torch. What is released is whole numbers of a public step, and exact: sums, noise and",
        "their law ([Finite precision](theory.md#finite-precision)). Everything else that a guarantee",
        "depends on is float64. This",
        f"table compares that code with {DIGITS} digits of mpmath. It is written by",
        "`python docs/numerics.py`, and a test measures again: no error may be above the one stated here.",
        "Comparisons that decide a size leave room for rounding (`_SLACK`, `SLACK`, `ROUNDING` and",
        "`_LEVEL_ERROR` in the code), and masses that are lost to rounding are given to the adversary. A",
        "processor whose logarithm errs by more than this table would need more room.",
        "",
        "| quantity | values compared | worst relative error |",
        "|---|---|---|",
    ]
    for quantity in QUANTITIES:
        count, worst = measured[quantity.__name__]
        about = (quantity.__doc__ or "").partition("\n")[0].rstrip(".")
        lines.append(f"| {about} (`{quantity.__name__}`) | {count} | {_rounded_up(worst):.0e} |")
    return "\n".join(lines) + "\n"


def _rounded_up(error: float) -> float:
    """At least twice the error, as one, two or five times a power of ten: processors differ a little."""
    power = 10.0 ** math.floor(math.log10(2 * error))
    return next(step * power for step in (1, 2, 5, 10) if step * power >= 2 * error)


if __name__ == "__main__":
    PAGE.write_text(page(measure()))
