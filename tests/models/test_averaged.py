"""Copies of a model that are trained by themselves and answer together."""

from dataclasses import replace

import numpy as np
import pytest
import torch

import fedproof as fp
from fedproof.config import parse_config
from fedproof.ensemble import Task
from fedproof.ensemble.train import predict, train_replicas
from fedproof.mechanisms import LocalTraining, Partition, UserFedAvg
from fedproof.models.averaged import Averaged
from fedproof.models.model import as_inputs, load
from fedproof.models.networks import logistic, mlp
from fedproof.pretrain import load_pretrain_config, pretrain
from fedproof.serving import predict as predict_new


@pytest.fixture
def digits():
    return fp.load("digits", users=12)


def task_of(digits, copies=3, **changes):
    one = mlp((8, 8), 10, hidden=(6,))
    told = {
        "federation": digits,
        "model": Averaged(one=one, copies=copies) if copies > 1 else one,
        "mechanism": Partition(groups=4, pooled=True),
        "local": LocalTraining(epochs=2, batch_size=16),
    }
    return Task(**told | changes)


def test_each_copy_is_what_it_would_be_alone_and_their_confidences_are_averaged(digits):
    task = task_of(digits)
    together = train_replicas(task, range(4))
    one = task.model.one
    starts = task.model.initial(7).view(3, -1)
    assert torch.equal(starts[0], one.initial(7))  # the first is the model that one copy would be
    alone = train_replicas(replace(task, model=one), range(4))
    rows = together.params.view(4, 3, -1)
    torch.testing.assert_close(rows[:, 0], alone.params, rtol=1e-4, atol=1e-5)
    inputs = as_inputs(digits.test_features, torch.device("cpu"), torch.float32)
    each = np.stack([predict(one, rows[:, copy], inputs, cells=512) for copy in range(3)])
    assert np.abs(each[0] - each[1]).max() > 0.05  # they are not the same model
    np.testing.assert_allclose(together.scores, each.mean(axis=0), atol=1e-5)


def test_the_mean_is_of_confidences_not_of_logits_nor_of_weights(digits):
    model = Averaged(one=mlp((2,), 2, hidden=(3,)), copies=2)
    params, inputs = 5 * model.initial(1).unsqueeze(0), torch.tensor([[[1.0, -2.0], [0.5, 3.0]]])
    halves = [model.one.logits(half.unsqueeze(0), inputs) for half in params.view(2, -1)]
    said = model.logits(params, inputs).softmax(-1)
    torch.testing.assert_close(said, torch.stack([half.softmax(-1) for half in halves]).mean(0))
    assert (said - (halves[0] + halves[1]).mul(0.5).softmax(-1)).abs().max() > 1e-3


def test_a_stack_is_the_plain_module():
    model = Averaged(one=mlp((4,), 3, hidden=(5,)), copies=2)
    params = torch.stack([model.initial(seed) for seed in range(3)])
    inputs = torch.randn(3, 6, 4, generator=torch.Generator().manual_seed(0))
    plain = torch.stack(
        [load(model.module(), model.layout, row)(batch) for row, batch in zip(params, inputs, strict=True)]
    )
    torch.testing.assert_close(model.logits(params, inputs), plain, rtol=1e-5, atol=1e-6)
    assert model.layout.names[:2] == ("0.fc0.weight", "0.fc0.bias")
    assert model.layout.dim == 2 * model.one.layout.dim


def test_what_a_unit_holds_changes_no_bit_of_other_groups(digits):
    task = task_of(digits)
    features = digits.features.copy()
    features[digits.offsets[5] : digits.offsets[6]] = 3e38
    hostile = replace(task, federation=replace(digits, features=features))
    before, after = (train_replicas(one, range(4)).params for one in (task, hostile))
    changed = [not torch.equal(*pair) for pair in zip(before, after, strict=True)]
    assert sum(changed) == 1


def test_a_certificate_counts_one_vote_for_each_group(digits):
    trained = fp.train(task_of(digits))
    assert trained.scores.shape[0] == 4
    assert max(trained.certify().certified_size) <= 2


@pytest.mark.parametrize("copies", [0, -1, 1.5, True])
def test_a_number_of_copies_is_a_count(copies):
    with pytest.raises(ValueError, match="copies = "):
        Averaged(one=mlp((4,), 3), copies=copies)


def test_copies_that_start_alike_are_refused():
    with pytest.raises(ValueError, match="copies = 2 must be 1: this model always starts from the same"):
        Averaged(one=logistic((4,), 3), copies=2)


def test_noise_on_copies_is_refused(digits):
    noisy = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=fp.Poisson(probability=0.5))
    with pytest.raises(ValueError, match="copies = 3 must be 1 for kind = 'user-fedavg' with noise"):
        task_of(digits, mechanism=noisy)
    model = Averaged(one=mlp((4,), 3), copies=2)
    with pytest.raises(ValueError, match="copies = 2 must be 1 where noise is added"):
        model.clipped_gradient(*[torch.zeros(1)] * 4, clip_norm=1.0)


CONFIG = """
[data]
name = "digits"
users = 12
[model]
name = "mlp"
hidden = [6]
copies = 2
[mechanism]
kind = "partition"
groups = 4
pooled = true
[ensemble]
seed = 0
"""


def test_a_run_keeps_all_copies_and_serves_their_mean(digits, tmp_path):
    done = fp.run(parse_config(CONFIG, "copies"), tmp_path / "run")
    served = predict_new(tmp_path / "run", digits.test_features)
    assert served.certified_size == done.certificate.certified_size
    assert served.prediction == done.certificate.prediction


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("copies = 2", "copies = 0", r"model\.copies"),
        ("copies = 2", "copies = 2.5", r"model\.copies"),
        ('name = "mlp"\nhidden = [6]', 'name = "logistic"', "copies = 2 must be 1: this model always starts"),
        ('kind = "partition"\ngroups = 4\npooled = true', "cohort = 4", "copies = 2 must be 1 for kind"),
    ],
)
def test_a_mistake_is_one_line_before_training(tmp_path, old, new, message):
    with pytest.raises(ValueError, match=message) as caught:
        fp.run(parse_config(CONFIG.replace(old, new), "copies"), tmp_path / "run")
    assert "\n" not in str(caught.value)


def test_weights_are_those_of_one_model(tmp_path):
    path = tmp_path / "pretrain.toml"
    path.write_text('[data]\nname = "digits"\nclasses = [2, 3]\n[model]\nname = "mlp"\ncopies = 2\n')
    with pytest.raises(ValueError, match=r"model\.copies = 2 must be 1: weights of one model are written"):
        pretrain(load_pretrain_config(path), tmp_path / "weights.npz")
