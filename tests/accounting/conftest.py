"""Exact references that share no code with the package: brute-force curves of explicit distributions."""

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy.special import ndtr

Floats = NDArray[np.float64]


def neyman_pearson(clean: Floats, poisoned: Floats, probabilities: Floats) -> Floats:
    """inf{Q(E) : P(E) >= p} for discrete P and Q, randomised tests included."""
    with np.errstate(divide="ignore"):
        order = np.argsort(
            -np.where(poisoned > 0, clean / np.maximum(poisoned, 1e-300), np.inf), kind="stable"
        )
    p = np.concatenate(([0.0], np.cumsum(clean[order])))
    q = np.concatenate(([0.0], np.cumsum(poisoned[order])))
    return np.interp(probabilities, p, q)


@pytest.fixture(scope="session")
def exact_curve():
    """The curve of two discrete laws."""
    return neyman_pearson


def mixture_cells(weights: Floats, means: Floats, edges: Floats) -> Floats:
    """Masses of Σ w_j N(mean_j, 1) between edges."""
    return np.diff(ndtr(edges[:, None] - np.asarray(means)), axis=0) @ np.asarray(weights)


@pytest.fixture(scope="session")
def brute_force():
    """The curve of two mixtures, coarsened to cells: coarsening can only raise the true curve."""

    def curve(clean, poisoned, probabilities, *, releases=1, cells=4000):
        means = np.concatenate((clean[1], poisoned[1]))
        inner = np.linspace(means.min() - 7, means.max() + 7, cells - 1)
        edges = np.concatenate(([-np.inf], inner, [np.inf]))
        p, q = (mixture_cells(np.asarray(w), np.asarray(m), edges) for w, m in (clean, poisoned))
        p_all, q_all = p, q
        for _ in range(releases - 1):
            p_all, q_all = np.outer(p_all, p).ravel(), np.outer(q_all, q).ravel()
        return neyman_pearson(p_all, q_all, probabilities)

    return curve


def convex_minorant(points: Floats, values: Floats) -> Floats:
    """The largest convex function below the given values."""
    hull: list[int] = []
    for i in range(len(points)):
        while len(hull) > 1 and (values[hull[-1]] - values[hull[-2]]) * (points[i] - points[hull[-2]]) >= (
            values[i] - values[hull[-2]]
        ) * (points[hull[-1]] - points[hull[-2]]):
            hull.pop()
        hull.append(i)
    return np.interp(points, points[hull], values[hull])


@pytest.fixture(scope="session")
def either_way(brute_force):
    """The convex curve that holds for both readings of `join`: adversaries come, or go."""

    def curve(clean, poisoned, probabilities, **options):
        one, other = (
            brute_force(*pair, probabilities, **options) for pair in ((clean, poisoned), (poisoned, clean))
        )
        return convex_minorant(probabilities, np.minimum(one, other))

    return curve


@pytest.fixture(scope="session")
def either_way_exact():
    """The same for two discrete laws."""

    def curve(clean, poisoned, probabilities):
        one, other = (neyman_pearson(*pair, probabilities) for pair in ((clean, poisoned), (poisoned, clean)))
        return convex_minorant(probabilities, np.minimum(one, other))

    return curve
