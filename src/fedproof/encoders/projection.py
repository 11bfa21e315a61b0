"""Centre, principal directions and whitening, from public instances alone."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import eigh

_ROWS = 1024  # projected at once, always as many: what a row becomes does not follow from how many there are
_SMALLEST = 1e-10  # of the largest variance: below it a direction is rounding


@dataclass(frozen=True, kw_only=True)
class Projection:
    """Features `x` become `(x - centre) @ directions`.

    Attributes:
        centre: `(features,)`.
        directions: `(features, kept)`, orthogonal, each divided by the spread of public instances along it.
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
        flat = features.reshape(len(features), -1)
        found = np.empty((len(flat), self.directions.shape[1]), dtype=np.float32)
        block = np.zeros((_ROWS, flat.shape[1]))
        for begin in range(0, len(flat), _ROWS):
            rows = flat[begin : begin + _ROWS]
            with np.errstate(over="ignore", invalid="ignore"):  # whoever holds no numbers harms no other row
                np.subtract(rows, self.centre, out=block[: len(rows)])
                found[begin : begin + _ROWS] = (block @ self.directions)[: len(rows)]
        return found


def projection_of(public: NDArray[np.generic], kept: int) -> Projection:
    """The `kept` directions in which public features `(instances, ...)` differ most, whitened.

    Guarantee: a function of the public instances and of nothing else.

    Raises:
        ValueError: there are not so many directions.
    """
    values = np.asarray(public, dtype=np.float64).reshape(len(public), -1)
    most = min(len(values) - 1, values.shape[1])
    if kept > most:
        raise ValueError(
            f"project = {kept} must be at most {most}: {len(values)} public instances with {values.shape[1]} "
            "features, once centred, differ in no more directions"
        )
    if not np.isfinite(values).all():
        raise ValueError(f"project = {kept} needs finite numbers, public instances hold others")
    centre = values.mean(axis=0)
    centred = values - centre
    features = values.shape[1]
    wanted = (features - kept, features - 1)  # in increasing order; a few are found much sooner than all
    variances, vectors = eigh(centred.T @ centred / len(values), subset_by_index=wanted)
    variances, first = variances[::-1], vectors[:, ::-1]
    real = int((variances > _SMALLEST * max(variances[0], 0)).sum())
    if kept > real:
        raise ValueError(
            f"project = {kept} must be at most {real}: public instances differ in no more directions"
        )
    # Which way a direction points is a matter of the library: its largest entry is positive here.
    signs = np.sign(first[np.abs(first).argmax(axis=0), np.arange(kept)])
    return Projection(centre=centre, directions=first * (signs / np.sqrt(variances)))
