"""Pretraining on public classes: weights that load, repeat by seed, and help."""

import numpy as np
import pytest

from fedproof import data
from fedproof.models.registry import build
from fedproof.pretrain import load_pretrain_config, pretrain

CONFIG = """
[data]
name = "digits"
classes = [2, 3, 4, 5, 6, 7, 8, 9]
[model]
name = "mlp"
hidden = [16]
[pretrain]
epochs = 5
batch_size = 32
learning_rate = 0.1
"""


@pytest.fixture
def config(tmp_path):
    path = tmp_path / "pretrain.toml"
    path.write_text(CONFIG)
    return load_pretrain_config(path)


def test_weights_of_public_classes_start_a_two_class_model(config, tmp_path):
    result = pretrain(config, tmp_path / "weights.npz")
    assert result.accuracy > 0.8
    private = data.load("digits", classes=[0, 1], users=96)
    model = build("mlp", private, hidden=(16,), weights=result.path)
    start = model.layout.views(model.initial(0).unsqueeze(0))
    with np.load(result.path, allow_pickle=False) as file:
        names = list(model.layout.names)
        np.testing.assert_array_equal(start[names[0]][0].numpy(), file[names[0]])
    assert not start[names[-1]].any()  # the head has other classes: it starts at zero


def test_the_same_seed_gives_the_same_weights(config, tmp_path):
    first, second = (pretrain(config, tmp_path / f"{name}.npz").path for name in "ab")
    with np.load(first) as one, np.load(second) as two:
        for name in one.files:
            np.testing.assert_array_equal(one[name], two[name])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[data]\nnme = 'digits'", "data.nme is not a known key; did you mean name?"),
        ("[pretrain]\nepochs = 0\n[data]\nname = 'digits'", "pretrain.epochs = 0"),
        ("", "data is missing"),
    ],
)
def test_a_wrong_configuration_is_one_line(tmp_path, text, message):
    path = tmp_path / "wrong.toml"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"wrong\.toml: ") as caught:
        load_pretrain_config(path)
    assert message in str(caught.value)
