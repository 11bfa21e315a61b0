import subprocess
import sys

import numpy as np
import pytest

from fedproof.data import load
from fedproof.data.digits import standardised


def test_two_digits_for_96_users_of_three_images():
    federation = load("digits", classes=[0, 1], users=96)
    assert federation.features.shape == (288, 64)
    assert federation.features.dtype == np.float32
    assert federation.test_features.shape == (72, 64)
    assert set(federation.sizes) == {3}
    assert federation.class_names == ("0", "1")
    np.testing.assert_allclose(federation.features.mean(axis=1), 0, atol=1e-6)
    np.testing.assert_allclose(federation.features.std(axis=1), 1, atol=1e-6)


def test_classes_are_numbered_in_the_order_asked_for():
    forward, backward = (load("digits", classes=c, users=4) for c in ([3, 8], ["8", "3"]))
    assert backward.class_names == ("8", "3")
    np.testing.assert_array_equal(np.bincount(forward.labels), np.bincount(backward.labels)[::-1])


def test_test_images_are_the_same_for_every_seed_and_never_train():
    one, two = load("digits", users=10, seed=1), load("digits", users=10, seed=2)
    np.testing.assert_array_equal(one.test_features, two.test_features)
    assert not np.array_equal(one.features, two.features)
    pair = load("digits", classes=[4, 7], users=10)
    ten_class_tests = {row.tobytes() for row in one.test_features}
    assert {row.tobytes() for row in pair.test_features} <= ten_class_tests


def test_train_and_test_together_are_the_whole_data_set(load_arrays):
    from sklearn.datasets import load_digits

    arrays = load_arrays("digits")
    together = np.concatenate([arrays.features, arrays.test_features])
    expected = standardised(load_digits().data)
    assert sorted(row.tobytes() for row in together) == sorted(row.tobytes() for row in expected)


def test_arrays_refuse_to_be_written_to():
    federation = load("digits", classes=[0, 1])
    for array in (federation.features, federation.labels, federation.test_features, federation.offsets):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0


def test_test_limit_draws_the_same_inputs_for_every_seed():
    one, two = (load("digits", test_limit=20, seed=seed) for seed in (0, 1))
    assert len(one.test_labels) == 20
    np.testing.assert_array_equal(one.test_features, two.test_features)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"classes": [0]}, "at least two"),
        ({"classes": [0, 0]}, "different"),
        ({"classes": [0, 10]}, "10 is no class"),
        ({"classes": [0, True]}, "True is no class"),
        ({"classes": [0, "zero"]}, "'zero' is no class"),
        ({"users": 0}, "users = 0"),
        ({"users": 2000}, "users = 2000"),
        ({"users": 2.5}, "users = 2.5"),
        ({"partition": "natural"}, "without users"),
        ({"partition": "idd"}, "iid, dirichlet"),
        ({"partition": "dirichlet", "dirichlet_alpha": 0}, "dirichlet_alpha = 0"),
        ({"partition": "dirichlet", "minimum": 0}, "minimum = 0"),
        ({"partition": "degree", "degree": 1.5}, "degree = 1.5"),
        ({"partition": "degree", "users": 9}, "users = 9"),
        ({"seed": -1}, "seed = -1"),
        ({"test_limit": 0}, "test_limit = 0"),
    ],
)
def test_bad_arguments_are_named(arguments, message):
    with pytest.raises(ValueError, match=message):
        load("digits", **arguments)


def test_unknown_name_lists_what_is_known():
    with pytest.raises(ValueError, match="'digit' is no data set; known: digits"):
        load("digit")


def test_loading_needs_neither_torch_nor_sklearn():
    code = "import sys, fedproof.data; sys.exit('torch' in sys.modules or 'sklearn' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
