"""The federations of the paper's experiments, straight from the publishers' arrays in a folder."""

import gzip
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from fedproof.federation import Federation


def mnist(folder: Path, *, users: int, classes: tuple[int, ...] = (0, 1)) -> Federation:
    """Two digits, spread evenly over the users."""
    arrays = [
        _idx(folder / f"{part}.gz")
        for part in (
            "train-images-idx3-ubyte",
            "train-labels-idx1-ubyte",
            "t10k-images-idx3-ubyte",
            "t10k-labels-idx1-ubyte",
        )
    ]
    parts: list[NDArray[np.generic]] = []
    for images, labels in (arrays[:2], arrays[2:]):
        keep = np.isin(labels, classes)
        parts += [
            (images[keep, None] / np.float32(255)).astype(np.float32),
            np.searchsorted(classes, labels[keep]),
        ]
    return _iid("mnist", parts, users, tuple(map(str, classes)))


def cifar(folder: Path, *, users: int) -> Federation:
    """Airplanes and birds, spread evenly over the users."""
    mean = np.array([0.4914, 0.4822, 0.4465], np.float32)[:, None, None]
    std = np.array([0.2023, 0.1994, 0.2010], np.float32)[:, None, None]
    sets: dict[str, list[NDArray[np.generic]]] = {"train": [], "test": []}
    for name in ("0_airplane", "2_bird"):
        with np.load(folder / f"cifar10_{name}.npz") as file:
            for part, found in sets.items():
                found.append((_decode(file[f"r_{part}"]) / np.float32(255) - mean) / std)
    parts = []
    for found in sets.values():
        parts += [np.concatenate(found), np.repeat([0, 1], [len(images) for images in found])]
    return _iid("cifar10", parts, users, ("airplane", "bird"))


def _iid(name: str, parts: list[NDArray[np.generic]], users: int, class_names: tuple[str, ...]) -> Federation:
    features, labels, test_features, test_labels = parts
    order = np.random.default_rng(0).permutation(len(labels))
    bounds = np.linspace(0, len(labels), users + 1).astype(np.int64)
    return Federation(
        features=features[order],
        labels=labels[order].astype(np.int64),
        offsets=bounds,
        test_features=test_features,
        test_labels=test_labels.astype(np.int64),
        class_names=class_names,
        name=name,
    )


def _idx(path: Path) -> NDArray[np.uint8]:
    content = gzip.decompress(path.read_bytes())
    axes = content[3]
    shape = np.frombuffer(content, ">i4", axes, 4)
    return np.frombuffer(content, np.uint8, offset=4 + 4 * axes).reshape(shape)


def _decode(residuals: NDArray[np.uint8]) -> NDArray[np.uint8]:
    planes = residuals.cumsum(2, dtype=np.uint8).cumsum(3, dtype=np.uint8)
    planes[:, 0] += planes[:, 1]
    planes[:, 2] += planes[:, 1]
    return planes
