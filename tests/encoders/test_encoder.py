"""Encoders of one's own: what is relied on, what is refused, and what is kept on disk."""

import sys
from hashlib import sha256

import numpy as np
import pytest
from platformdirs import user_cache_path

from fedproof.encoders import cache_beside, load
from fedproof.encoders.encoder import CHUNK
from fedproof.statements import Statement


def test_a_function_of_arrays_gives_the_features_of_all_inputs(module):
    told = []
    seen = load(
        f"{module}:images", users=5, encoder=f"{module}:halves", progress=lambda *row: told.append(row)
    )
    plain = load(f"{module}:images", users=5)
    assert seen.features.shape == (30, 200)
    np.testing.assert_array_equal(seen.features, plain.features.reshape(30, -1)[:, :200] - np.float32(0.5))
    np.testing.assert_array_equal(seen.test_features, plain.test_features.reshape(10, -1)[:, :200] - 0.5)
    assert not seen.features.flags.writeable
    assert told[0] == ("encode", 0, 40)
    assert told[-1] == ("encode", 40, 40)
    assert seen.encoded_by.assumptions == (Statement.of("encoder", name=f"{module}:halves"),)


def test_a_second_time_features_come_from_the_cache(module, folder):
    first = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    calls = sys.modules[module].CALLS
    assert set(calls) == {4, 16}  # tried out, then batches of one shape
    calls.clear()
    again = load(f"{module}:images", users=3, encoder=f"{module}:halves", seed=1)  # dealt out otherwise
    assert set(calls) == {4}
    np.testing.assert_array_equal(np.sort(again.features, axis=0), np.sort(first.features, axis=0))
    assert len(list((folder / "encoded").iterdir())) == 2  # training and test inputs


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(path.read_bytes()[:-4]),
        lambda path: path.write_bytes(path.read_bytes()[:-4] + b"\0\0\0\1"),
        lambda path: path.write_bytes(b""),
        lambda path: path.rename(path.with_name(path.name.replace(path.name[70:75], "00000"))),
    ],
    ids=["cut", "changed", "empty", "renamed"],
)
def test_a_damaged_file_is_computed_again(module, folder, damage):
    first = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    files = sorted((folder / "encoded").iterdir())
    for path in files:
        damage(path)
    sys.modules[module].CALLS.clear()
    again = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    assert 16 in sys.modules[module].CALLS
    np.testing.assert_array_equal(again.features, first.features)
    assert sorted((folder / "encoded").iterdir()) == files


@pytest.mark.parametrize(
    "other",
    [np.zeros((30, 200)), np.zeros((29, 200), np.float32), np.zeros(30, np.float32), np.array([[None]] * 30)],
    ids=["float64", "a row less", "no rows", "objects"],
)
def test_a_whole_file_with_other_content_is_not_used(module, folder, other):
    first = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    for path in (folder / "encoded").iterdir():
        np.save(path, other)
        digest = sha256(path.read_bytes()).hexdigest()
        path.rename(path.with_name(f"{path.name[:64]}-{digest}.npy"))
    again = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    np.testing.assert_array_equal(again.features, first.features)


def test_other_code_other_weights_and_other_inputs_are_computed_anew(module, folder):
    def files():
        return len(list((folder / "encoded").iterdir()))

    load(f"{module}:images", users=5, encoder=f"{module}:halves")
    assert files() == 2
    load(f"{module}:images", users=5, classes=[0, 1], encoder=f"{module}:network")
    assert files() == 4
    sys.modules[module].IMAGES[8] *= 0.5  # of a training instance
    load(f"{module}:images", users=5, encoder=f"{module}:halves")
    assert files() == 5
    text = (folder / "my_encoders.py").read_text()
    (folder / "my_encoders.py").write_text(text.replace("- 0.5\n", "- 0.25\n"))
    sys.modules.pop(module)
    load(f"{module}:images", users=5, encoder=f"{module}:halves")
    assert files() == 7


def test_an_encoder_that_writes_to_its_inputs_changes_nobodys_data(module):
    before = sys.modules[module].IMAGES.copy()
    seen = load(f"{module}:federation", encoder=f"{module}:writing")
    np.testing.assert_array_equal(seen.features, before[:30].reshape(30, -1) + 1)
    np.testing.assert_array_equal(sys.modules[module].IMAGES, before)


def test_there_may_be_no_test_inputs(module):
    assert load(f"{module}:untested", users=5, encoder=f"{module}:halves").test_features.shape == (0, 200)


def test_a_module_is_frozen_and_its_weights_are_known(module):
    seen = load(f"{module}:images", users=5, encoder=f"{module}:network")
    assert seen.features.shape == (30, 6)
    digest = seen.encoded_by.weights_sha256
    assert len(digest) == 64
    said = Statement.of("encoder-weights", name=f"{module}:network", sha256=digest)
    assert seen.encoded_by.assumptions == (said,)
    again = load(f"{module}:images", users=5, encoder=f"{module}:network")  # drawn with the same numbers
    assert again.encoded_by == seen.encoded_by


@pytest.mark.parametrize(
    ("encoder", "message"),
    [
        ("random", "gives other features when asked again: it must be frozen"),
        ("learning", "gives other features when asked again: it must be frozen"),
        ("leaking", "gives an input other features when others stand beside it"),
        ("infinite", "gives features that are not finite for some inputs of my_encoders:images"),
        ("huge", "gives features that are not finite"),
        ("rare", "gives features that are not finite"),
        ("flat", r"gives features of shape \(4,\) for 4 inputs, must be \(4, features\): one row for each"),
        ("deep", r"gives features of shape \(4, 1, 20, 20\) for 4 inputs"),
        ("short", r"gives features of shape \(1, 3\) for 4 inputs"),
        ("words", "gives features of type <U1, must be numbers"),
        ("pair", "gives tuple, must be a tensor of features"),
        ("nothing", "returned NoneType; it must return an nn.Module, or a function of an array"),
        ("burning", "failed with RuntimeError: disk on fire"),
        ("value", "has no function 'value'"),
        ("missing", "has no function 'missing'"),
    ],
)
def test_what_cannot_be_relied_on_is_refused_in_one_line(module, folder, encoder, message):
    with pytest.raises(ValueError, match=message) as error:
        load(f"{module}:images", users=5, encoder=f"{module}:{encoder}")
    assert str(error.value).startswith(f"encoder = '{module}:{encoder}'")
    assert "\n" not in str(error.value)
    assert not (folder / "encoded").exists()


def test_all_inputs_have_the_same_number_of_features(module):
    with pytest.raises(
        ValueError, match=r"gives \[2, 3\] features for different inputs of my_encoders:images"
    ):
        load(f"{module}:images", users=5, encoder=f"{module}:uneven")


def test_an_unknown_name_is_refused():
    with pytest.raises(
        ValueError, match="encoder = 'resnet' must be one of hog, glove-mean, glove-vader, efficientnet-lite0"
    ):
        load("digits", encoder="resnet")


def test_features_are_kept_in_pieces_of_which_finished_ones_survive(module, folder, monkeypatch):
    monkeypatch.setattr("fedproof.encoders.encoder.CHUNK", 7)
    assert CHUNK > 7
    whole = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    assert len(list((folder / "encoded").iterdir())) == 5 + 2
    sys.modules[module].CALLS.clear()
    next((folder / "encoded").iterdir()).unlink()
    again = load(f"{module}:images", users=5, encoder=f"{module}:halves")
    assert sys.modules[module].CALLS.count(16) == 1
    np.testing.assert_array_equal(again.features, whole.features)


def test_where_nobody_may_write_the_platforms_folder_is_taken(folder, monkeypatch):
    assert cache_beside(folder).folder == folder / "encoded"
    monkeypatch.setattr("os.access", lambda path, mode: False)  # who runs the tests may write anywhere
    assert cache_beside(folder).folder == user_cache_path("fedproof") / "encoded"
