"""Fixed features: what they see, what they ignore, and that nobody's data enter anybody else's."""

import numpy as np
import pytest

from fedproof.encoders import load
from fedproof.encoders.named import oriented_gradients

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


def test_a_federation_keeps_everything_but_its_features(module):
    plain = load(f"{module}:federation")
    seen = load(f"{module}:federation", encoder="hog")
    np.testing.assert_array_equal(seen.features, oriented_gradients(plain.features[:, 0]))
    np.testing.assert_array_equal(seen.test_features, oriented_gradients(plain.test_features[:, 0]))
    np.testing.assert_array_equal(seen.public_features, oriented_gradients(plain.public_features[:, 0]))
    assert not seen.features.flags.writeable
    assert seen.offsets.tolist() == plain.offsets.tolist()
    assert seen.encoded_by.name == "hog"
    assert seen.encoded_by.weights_sha256 is None


def test_vectors_are_no_images():
    with pytest.raises(ValueError, match=r"encoder = 'hog' needs grey images.*inputs of shape \(64,\)"):
        load("digits", classes=[0, 1], encoder="hog")
