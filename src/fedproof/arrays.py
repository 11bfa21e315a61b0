"""Arrays as everybody passes them around, votes, and layers."""

from collections.abc import Sequence
from itertools import groupby

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


def layer_sizes(names: Sequence[str], sizes: Sequence[int]) -> tuple[int, ...]:
    """Number of entries of each layer: a layer is one module, so its weight and bias are clipped together.

    >>> layer_sizes(["fc0.weight", "fc0.bias", "fc1.weight"], [6, 2, 4])
    (8, 4)
    """
    owners = groupby(zip(names, sizes, strict=True), key=lambda row: row[0].rpartition(".")[0])
    return tuple(sum(size for _, size in group) for _, group in owners)
