"""scikit-learn's handwritten digits: 1,797 images of 8 x 8 pixels, inside the package, no download."""

from importlib.util import find_spec

import numpy as np
from numpy.typing import NDArray

from fedproof.data.arrays import Arrays

TEST_SHARE = 0.2
SPLIT_SEED = 0  # a constant, not the caller's seed: no test image ever trains a model of another seed


def read() -> Arrays:
    """All ten digits, `(instances, 64)`, with a fifth of each class set apart for testing.

    The publishers give no test set. The split is drawn once for all, class by class, so that the
    test images of a two-class task are test images of the ten-class task, too.
    Each image is standardised by itself, to mean 0 and variance 1: no statistic of other users' data is
    needed, and what all images share (ink on paper) does not drown what sets the digits apart.

    >>> arrays = read()
    >>> arrays.features.shape, arrays.test_features.shape
    ((1438, 64), (359, 64))
    """
    if find_spec("sklearn") is None:
        raise ValueError(
            "digits: scikit-learn holds this data set; install it with: pip install 'fedproof[train]'"
        )
    from sklearn.datasets import load_digits  # imported here: no other data set needs scikit-learn

    pixels, labels = load_digits(return_X_y=True)
    images = standardised(pixels)
    labels = labels.astype(np.int64)
    generator = np.random.default_rng(SPLIT_SEED)
    test = np.zeros(len(labels), dtype=bool)
    for label in range(10):
        rows = generator.permutation(np.flatnonzero(labels == label))
        test[rows[: round(TEST_SHARE * len(rows))]] = True
    return Arrays(
        features=images[~test],
        labels=labels[~test],
        test_features=images[test],
        test_labels=labels[test],
        class_names=tuple(str(digit) for digit in range(10)),
        name="digits",
    )


def standardised(pixels: NDArray[np.float64]) -> NDArray[np.float32]:
    """Rows with mean 0 and variance 1 each."""
    centred = pixels - pixels.mean(axis=1, keepdims=True)
    return np.asarray(centred / centred.std(axis=1, keepdims=True), dtype=np.float32)
