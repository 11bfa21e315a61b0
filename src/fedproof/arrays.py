"""Arrays as everybody passes them around, and votes."""

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]
Bools = NDArray[np.bool_]


def votes_of(scores: NDArray[np.floating]) -> Floats:
    """Scores `(models, inputs, classes)` as votes: 1 for each model's best class, the first of equal ones.

    >>> votes_of(np.array([[[0.2, 0.5, 0.3], [0.4, 0.4, 0.2]]]))
    array([[[0., 1., 0.],
            [1., 0., 0.]]])
    """
    return np.asarray(np.arange(scores.shape[2]) == scores.argmax(axis=2)[..., None], dtype=np.float64)
