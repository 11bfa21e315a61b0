"""What features are projected onto, from public instances alone: directions, or a map of neighbours."""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_ROWS = 1024  # projected at once, always as many: what a row becomes does not follow from how many there are
_SMALLEST = 1e-10  # of the largest variance: below it a direction is rounding
_DIRECTIONS = 64  # principal ones that neighbours are found in, at most
_NEIGHBOURS, _SHARPNESS = 20, 8.0  # public instances around an input, and how fast their weight falls

Rows = NDArray[np.float64]


def apply(function: Callable[[Rows], Rows], features: NDArray[np.generic], width: int) -> NDArray[np.float32]:
    """A function of features `(inputs, ...)`, by blocks of one size: no row depends on another, bit for bit.

    Whoever holds no numbers harms nobody else.
    """
    flat = features.reshape(len(features), -1)
    found = np.empty((len(flat), width), dtype=np.float32)
    block = np.zeros((_ROWS, flat.shape[1]))
    for begin in range(0, len(flat), _ROWS):
        rows = flat[begin : begin + _ROWS]
        with np.errstate(over="ignore", invalid="ignore"):
            block[: len(rows)] = rows
            found[begin : begin + _ROWS] = function(block)[: len(rows)]
    return found


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Features `x` become `(x - centre) @ directions`.

    Directions `(features, kept)` are orthogonal, each divided by the spread of public instances along it.
    """

    centre: NDArray[np.float64]
    directions: NDArray[np.float64]

    def __call__(self, features: NDArray[np.generic]) -> NDArray[np.float32]:
        """Projected features `(inputs, kept)`.

        >>> public = np.array([[1.0, 0.0], [3.0, 0.0], [2.0, 0.1], [2.0, -0.1]])
        >>> projection_of(public, 2)(public).round(3)
        array([[-1.414,  0.   ],
               [ 1.414,  0.   ],
               [ 0.   ,  1.414],
               [ 0.   , -1.414]], dtype=float32)
        """
        return apply(self.turned, features, self.directions.shape[1])

    def turned(self, rows: Rows) -> Rows:
        """The same for one block of rows."""
        return (rows - self.centre) @ self.directions


@dataclass(frozen=True, kw_only=True)
class Neighbourhood:
    """Coordinates of an input on a map of the public instances, on which near ones stay near.

    Two public instances are joined by `w = exp(8 (cos - 1))` of the angle between them if one is among the 20
    nearest of the other. With degrees D the eigenvectors v of D^-1/2 W D^-1/2 with the largest eigenvalues,
    but for the first, which is constant, give each public instance the coordinates D^-1/2 v: they hardly
    change along edges, so clusters become points. An input lies at the weighted mean of its 20 nearest public
    instances. Labels play no part. All is scaled to length one.

    Reference: Belkin, Niyogi 2003, Neural Computation 15, 1373-1396; for inputs that are not on the map
    Bengio et al. 2004, NIPS 16.

    Attributes:
        directions: in which neighbours are looked for.
        places: `(public instances, directions)`, of length one.
        coordinates: `(public instances, kept)`.
        beside: whether the directions, of length one, stand beside the coordinates, which then have half of
            it: the map tells few instances which cluster they are in, directions tell more what it is.
    """

    directions: Projection
    places: Rows
    coordinates: Rows
    beside: bool

    def __call__(self, features: NDArray[np.generic]) -> NDArray[np.float32]:
        """Coordinates of inputs."""
        width = self.coordinates.shape[1] + self.beside * self.places.shape[1]
        return apply(self._found, features, width)

    def _found(self, rows: Rows) -> Rows:
        places = _of_length_one(self.directions.turned(rows))
        nearest, weights = _near(places @ self.places.T)
        mean = np.einsum("rn,rnk->rk", weights, self.coordinates[nearest])  # but for the length
        coordinates = _of_length_one(mean)
        return np.concatenate([coordinates / 2, places], axis=1) if self.beside else coordinates


def neighbourhood_of(public: NDArray[np.generic], kept: int, *, beside: bool = False) -> Neighbourhood:
    """The map of public features `(instances, ...)` in `kept` coordinates.

    Guarantee: a function of the public instances and of nothing else.

    Raises:
        ValueError: there are too few public instances.
    """
    from scipy.sparse import csr_array, diags_array  # here: a node that encodes needs NumPy alone
    from scipy.sparse.linalg import eigsh

    least = max(kept + 2, _NEIGHBOURS + 1)
    if len(public) < least:
        raise ValueError(f"project = {kept} needs at least {least} public instances, there are {len(public)}")
    values = _finite(public, kept)
    directions, _ = _leading(values, min(_DIRECTIONS, len(values) - 1, values.shape[1]))
    places = _of_length_one(directions.turned(values))
    cosines = places @ places.T
    np.fill_diagonal(cosines, -np.inf)  # nobody is a neighbour of itself
    nearest, near = _near(cosines)
    count = len(public)
    starts = np.arange(0, nearest.size + 1, _NEIGHBOURS)
    directed = csr_array((near.ravel(), nearest.ravel(), starts), shape=(count, count))
    weights = (directed + directed.T) / 2
    root = 1 / np.sqrt(weights.sum(axis=1))
    scaled = diags_array(root) @ weights @ diags_array(root)
    # The first vector is known, D^1/2; a search that begins beside it finds the others alike on every run.
    values, vectors = eigsh(scaled, k=kept + 1, which="LA", v0=np.sin(1 + np.arange(count)))
    order = np.argsort(-values, kind="stable")[1:]
    coordinates = _signed(vectors[:, order]) * root[:, None]
    return Neighbourhood(directions=directions, places=places, coordinates=coordinates, beside=beside)


def _near(cosines: Rows) -> tuple[NDArray[np.int64], Rows]:
    """The nearest public instances of each row and their weights, which are 0 for what is no number."""
    last = cosines.shape[1] - _NEIGHBOURS
    nearest = np.argpartition(cosines, last, axis=1)[:, last:]
    values = np.take_along_axis(cosines, nearest, axis=1)
    return nearest, np.where(np.isfinite(values), np.exp(_SHARPNESS * (values - 1)), 0.0)


def _of_length_one(rows: Rows) -> Rows:
    norms = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(norms > 0, norms, 1.0)


def projection_of(public: NDArray[np.generic], kept: int) -> Projection:
    """The `kept` directions in which public features `(instances, ...)` differ most, whitened.

    Guarantee: a function of the public instances and of nothing else.

    Raises:
        ValueError: there are not so many directions.
    """
    values = _finite(public, kept)
    most = min(len(values) - 1, values.shape[1])
    if kept > most:
        raise ValueError(
            f"project = {kept} must be at most {most}: {len(values)} public instances with {values.shape[1]} "
            "features, once centred, differ in no more directions"
        )
    found, spreads = _leading(values, kept)
    if kept > len(spreads):
        raise ValueError(
            f"project = {kept} must be at most {len(spreads)}: public instances differ in no more directions"
        )
    return Projection(centre=found.centre, directions=found.directions / spreads)


def _leading(values: Rows, most: int) -> tuple[Projection, Rows]:
    """Directions in which rows differ most, and how much; fewer than `most` where they differ in fewer."""
    from scipy.linalg import eigh

    centre, features = values.mean(axis=0), values.shape[1]
    centred = values - centre
    wanted = (features - most, features - 1)  # in increasing order; a few are found much sooner than all
    variances, vectors = eigh(centred.T @ centred / len(values), subset_by_index=wanted)
    variances, first = variances[::-1], vectors[:, ::-1]
    real = int((variances > _SMALLEST * max(variances[0], 0)).sum())
    return Projection(centre=centre, directions=_signed(first[:, :real])), np.sqrt(variances[:real])


def _finite(public: NDArray[np.generic], kept: int) -> Rows:
    """Public features as rows of numbers."""
    values = np.asarray(public, dtype=np.float64).reshape(len(public), -1)
    if not np.isfinite(values).all():
        raise ValueError(f"project = {kept} needs finite numbers, public instances hold others")
    return values


def _signed(vectors: Rows) -> Rows:
    """Which way a vector points is a matter of the library: its largest entry is positive here."""
    largest = np.abs(vectors).argmax(axis=0)
    return np.asarray(vectors * np.sign(vectors[largest, np.arange(vectors.shape[1])]))
