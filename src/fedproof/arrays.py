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


def replica_accuracies(scores: NDArray[np.floating], labels: Integers) -> Floats:
    """Share of the inputs that each replica of scores (replicas, inputs, classes) labels correctly.

    Some replicas after the others: scores may lie in a file that is larger than the memory.
    """
    parts = [scores[begin : begin + 32] for begin in range(0, len(scores), 32)]
    return np.concatenate([(part.argmax(axis=-1) == labels).mean(axis=1) for part in parts])


def ensemble_accuracy(scores: NDArray[np.floating], labels: Integers, *, votes: bool = False) -> float:
    """Share of the inputs that the mean confidence, or the `votes`, of all replicas label correctly.

    As in a certificate, an input on which two classes are ahead together is labelled by none.

    >>> ensemble_accuracy(np.array([[[0.9, 0.1], [0.4, 0.6]], [[0.2, 0.8], [0.3, 0.7]]]), np.array([0, 1]))
    1.0
    """
    means = (votes_of(scores) if votes else scores).mean(axis=0, dtype=np.float64)
    first = means.max(axis=1, keepdims=True)
    alone = (means == first).sum(axis=1) == 1
    return float(np.mean((means.argmax(axis=1) == labels) & alone))


def layer_sizes(names: Sequence[str], sizes: Sequence[int]) -> tuple[int, ...]:
    """Number of entries of each layer: a layer is one module, so its weight and bias are clipped together.

    >>> layer_sizes(["fc0.weight", "fc0.bias", "fc1.weight"], [6, 2, 4])
    (8, 4)
    """
    owners = groupby(zip(names, sizes, strict=True), key=lambda row: row[0].rpartition(".")[0])
    return tuple(sum(size for _, size in group) for _, group in owners)
