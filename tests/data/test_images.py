import gzip
import struct
import tracemalloc

import numpy as np
import pytest

from fedproof.data import load
from tests.data.conftest import idx

MEGABYTE = 2**20


def train_images(folder):
    return folder / "mnist" / "train-images-idx3-ubyte.gz"


def rewrite(path, change):
    path.write_bytes(gzip.compress(change(gzip.decompress(path.read_bytes()))))


def test_mnist_is_scaled_to_one_and_nothing_else(load_arrays, mnist_folder):
    arrays = load_arrays("idx/mnist", data_dir=mnist_folder)
    assert arrays.name == "idx/mnist"
    assert arrays.features.shape == (40, 1, 28, 28)
    assert arrays.features.dtype == np.float32
    np.testing.assert_allclose(arrays.features[:, 0, 5, 7], np.arange(40) / 255, rtol=1e-6)
    np.testing.assert_array_equal(arrays.test_labels, np.arange(20) % 10)


def test_mnist_instances_stay_with_their_labels(mnist_folder):
    federation = load("idx/mnist", data_dir=mnist_folder, classes=[7, 2], users=4)
    assert federation.class_names == ("7", "2")
    digits = np.rint(federation.features[:, 0, 0, 0] * 255).astype(int) % 10
    np.testing.assert_array_equal(digits, np.array([7, 2])[federation.labels])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "fewer bytes than the 31360"),
        (lambda b: b + b"x", "more bytes than the 31360"),
        (lambda b: b[:10], "wrong magic"),
        (lambda b: b"", "wrong magic"),
        (lambda b: b"\x00\x00\x0d\x03" + b[4:], "wrong magic"),
        (lambda b: b[:8] + struct.pack(">2I", 14, 56) + b[16:], "not \\(28, 28\\)"),
        (lambda b: b[:4] + struct.pack(">I", 39) + b[8:16] + b[16:-784], "39 images"),
        (lambda b: b[:4] + b"\xff" * 12 + b[16:], "promises 79228162458924105385300197375 bytes"),
    ],
)
def test_bad_idx_files_are_named(mnist_folder, change, message):
    rewrite(train_images(mnist_folder), change)
    with pytest.raises(ValueError, match=message) as caught:
        load("mnist", data_dir=mnist_folder)
    assert "train-images-idx3-ubyte.gz" in str(caught.value)
    assert "fedproof data fetch mnist" in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "change", [lambda b: b[:-20], lambda b: b"no gzip" + b, lambda b: b[:50] + b"x" + b[51:]]
)
def test_damaged_gzip_is_named(mnist_folder, change):
    path = train_images(mnist_folder)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=r"train-images-idx3-ubyte.gz is truncated or no gzip file"):
        load("mnist", data_dir=mnist_folder)


@pytest.mark.parametrize("count", [1, 400_000])
def test_memory_is_bounded_by_what_the_header_and_the_file_allow(mnist_folder, count):
    # 64 MB of zeros: either more than one image promises, or fewer than 400,000 images promise.
    path = train_images(mnist_folder)
    path.write_bytes(
        gzip.compress(bytes([0, 0, 8, 3]) + struct.pack(">3I", count, 28, 28) + bytes(64 * MEGABYTE))
    )
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match=r"it can hold at most|more bytes than"):
            load("mnist", data_dir=mnist_folder)
        assert tracemalloc.get_traced_memory()[1] < 4 * MEGABYTE
    finally:
        tracemalloc.stop()


def test_another_data_set_is_not_taken_for_mnist(mnist_folder):
    with pytest.raises(
        ValueError, match=r'is not what MNIST\'s publisher published; .* data.name = "idx/FOLDER"'
    ):
        load("mnist", data_dir=mnist_folder, users=4)


def test_files_like_mnists_may_hold_other_sizes_and_classes(tmp_path):
    folder = tmp_path / "signs"
    folder.mkdir()
    for part, count in (("train", 30), ("t10k", 12)):
        arrays = {"images-idx3": np.zeros((count, 9, 7)), "labels-idx1": np.arange(count) % 12}
        for kind, array in arrays.items():
            (folder / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(idx(array)))
    federation = load("idx/signs", data_dir=tmp_path, users=3)
    assert federation.features.shape == (30, 1, 9, 7)
    assert federation.num_classes == 12
    poisoned = np.where(np.arange(30) == 4, 255, np.arange(30) % 12)
    rewrite(folder / "train-labels-idx1-ubyte.gz", lambda b: idx(poisoned))
    found = load("idx/signs", data_dir=tmp_path, users=3)
    assert found.num_classes == 12  # it made 256 of them: other models for everybody
    assert found.left_out == 1
    assert set(found.which) < set(federation.which)
    rewrite(folder / "t10k-images-idx3-ubyte.gz", lambda b: idx(np.zeros((12, 9, 8))))
    with pytest.raises(ValueError, match=r"training images have \(9, 7\) pixels, test images \(9, 8\)"):
        load("idx/signs", data_dir=tmp_path, users=3)
    with pytest.raises(
        ValueError, match=r"train-images-idx3-ubyte.gz is not there; put the file there yourself"
    ):
        load("idx/other", data_dir=tmp_path, users=3)


def test_mnist_labels_beyond_nine_are_refused(mnist_folder):
    rewrite(mnist_folder / "mnist" / "t10k-labels-idx1-ubyte.gz", lambda b: b[:-1] + b"\x0a")
    with pytest.raises(ValueError, match=r"t10k-labels-idx1-ubyte.gz must hold labels from 0 to 9"):
        load("mnist", data_dir=mnist_folder)


def test_cifar_is_normalised_colour_by_colour(load_arrays, cifar_folder):
    arrays = load_arrays("cifar10", data_dir=cifar_folder)
    assert arrays.features.shape == (100, 3, 32, 32)
    expected = (np.array([7, 100, 200]) / 255 - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    np.testing.assert_allclose(arrays.features[27, :, 3, 4], expected, rtol=1e-5)


def test_cifar100_takes_the_finer_label_and_the_scaling_of_cifar10(load_arrays, cifar100_folder):
    arrays = load_arrays("cifar100", data_dir=cifar100_folder)
    assert arrays.labels.tolist() == [*range(100), *range(100)]
    assert len(set(arrays.class_names)) == 100
    assert [*arrays.class_names] == sorted(arrays.class_names)  # as published
    expected = (np.array([127, 100, 200]) / 255 - [0.4914, 0.4822, 0.4465]) / [0.2023, 0.1994, 0.2010]
    np.testing.assert_allclose(arrays.features[127, :, 3, 4], expected, rtol=1e-5)


def test_cifar100_refuses_labels_there_are_not(load_arrays, cifar100_folder):
    path = cifar100_folder / "cifar-100-binary" / "test.bin"
    path.write_bytes(b"\x00\x64" + path.read_bytes()[2:])
    with pytest.raises(ValueError, match=r"holds label 100, labels are 0 to 99.*fetch cifar100"):
        load_arrays("cifar100", data_dir=cifar100_folder)


def test_cifar_two_classes_and_the_eight_others(load_arrays, cifar_folder):
    pair = load("cifar10", data_dir=cifar_folder, classes=["airplane", "bird"], users=5)
    assert pair.class_names == ("airplane", "bird")
    assert len(pair.labels) == 20
    others = load_arrays("cifar10", data_dir=cifar_folder, classes=[1, 3, 4, 5, 6, 7, 8, 9])
    assert others.class_names[:2] == ("automobile", "cat")
    assert len(others.labels) == 80


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b[:-1], "is truncated"),
        (lambda b: b"", "is truncated"),
        (lambda b: b"\x0a" + b[1:], "holds label 10"),
    ],
)
def test_bad_cifar_files_are_named(cifar_folder, change, message):
    path = cifar_folder / "cifar-10-batches-bin" / "data_batch_3.bin"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=f"data_batch_3.bin {message}.*fedproof data fetch cifar10"):
        load("cifar10", data_dir=cifar_folder)


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("mnist", "train-images-idx3-ubyte.gz"),
        ("cifar10", "data_batch_1.bin"),
        ("cifar100", "train.bin"),
    ],
)
def test_missing_files_say_what_to_do(tmp_path, name, file):
    with pytest.raises(ValueError, match=f"{file} is not there; run `fedproof data fetch {name}`"):
        load(name, data_dir=tmp_path)


def test_missing_folder_says_where_it_was_named(tmp_path, monkeypatch):
    with pytest.raises(ValueError, match=r"data_dir = .* is no folder; make it"):
        load("mnist", data_dir=tmp_path / "nowhere")
    monkeypatch.setenv("FEDPROOF_DATA", str(tmp_path / "nowhere"))
    with pytest.raises(ValueError, match=r"FEDPROOF_DATA = .* is no folder"):
        load("mnist")


def test_folder_is_argument_then_variable_then_cache(tmp_path, monkeypatch, mnist_folder):
    from fedproof.data import data_folder

    monkeypatch.delenv("FEDPROOF_DATA", raising=False)
    assert data_folder().name == "fedproof"
    monkeypatch.setenv("FEDPROOF_DATA", str(mnist_folder))
    assert data_folder() == mnist_folder
    assert load("idx/mnist", users=4).num_users == 4
    assert data_folder(tmp_path / "mnist") == tmp_path / "mnist"
