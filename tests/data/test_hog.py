"""Fixed features: what they see, what they ignore, and that nobody's data enter anybody else's."""

import numpy as np
import pytest

from fedproof.data import load
from fedproof.data.hog import oriented_gradients, with_hog
from fedproof.federation import Federation

RNG = np.random.default_rng(0)
IMAGES = RNG.random((7, 28, 28)).astype(np.float32)


def test_rows_have_length_ten_and_blank_images_are_zero():
    seen = oriented_gradients(np.concatenate([IMAGES, np.zeros((1, 28, 28), dtype=np.float32)]))
    assert seen.shape == (8, 392)
    assert seen.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(seen, axis=1), [10] * 7 + [0], rtol=1e-5)


def test_an_image_is_seen_alike_whatever_stands_beside_it():
    together = oriented_gradients(np.tile(IMAGES, (400, 1, 1)))  # more than one chunk
    alone = np.concatenate([oriented_gradients(image[None]) for image in IMAGES])
    np.testing.assert_allclose(together[-7:], alone, atol=1e-5)


def test_brightness_and_contrast_do_not_matter_but_direction_does():
    edge = np.zeros((1, 28, 28), dtype=np.float32)
    edge[:, :, 14:] = 1
    seen = oriented_gradients(edge)
    np.testing.assert_allclose(oriented_gradients(0.5 * edge + 0.2), seen, atol=1e-5)
    cells = seen.reshape(8, 7, 7)
    assert cells[:, 3, 3].argmax() == 0  # brighter to the right
    assert oriented_gradients(edge.transpose(0, 2, 1)).reshape(8, 7, 7)[:, 3, 3].argmax() == 2  # downwards
    assert oriented_gradients(1 - edge).reshape(8, 7, 7)[:, 3, 3].argmax() == 4  # to the left


def test_a_federation_keeps_everything_but_its_features():
    federation = Federation(
        features=IMAGES[:, None],
        labels=np.zeros(7, dtype=np.int64),
        offsets=np.array([0, 3, 7]),
        test_features=IMAGES[:2, None],
        test_labels=np.zeros(2, dtype=np.int64),
        class_names=("a", "b"),
        name="made",
    )
    seen = with_hog(federation)
    assert seen.features.shape == (7, 392)
    assert seen.test_features.shape == (2, 392)
    assert not seen.features.flags.writeable
    assert seen.offsets is federation.offsets


def test_vectors_are_no_images():
    with pytest.raises(ValueError, match="features = 'hog' needs grey images"):
        load("digits", classes=[0, 1], features="hog")
    with pytest.raises(ValueError, match="features = 'edges' must be pixels or hog"):
        load("digits", features="edges")
