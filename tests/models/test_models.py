import sys
from contextlib import contextmanager, nullcontext
from types import ModuleType

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedproof.federation import Federation
from fedproof.models import NAMES, build
from fedproof.models import model as models
from fedproof.models.convolution import average_pool_relu
from fedproof.models.model import instance_factors, layout_of, load
from fedproof.models.module import from_module
from fedproof.models.networks import cifar_cnn
from fedproof.models.tape import AffineTrace, layer, traces

SHAPES = {
    "linear": (2, 3),
    "logistic": (2, 3),
    "mlp": (5,),
    "mnist-cnn": (28, 28),
    "lenet": (1, 28, 28),
    "cifar-cnn": (3, 32, 32),
    "lstm": (4,),
}


def federation(name: str, classes: int = 3) -> Federation:
    rng = np.random.default_rng(0)
    shape = SHAPES[name]
    text = name == "lstm"
    features = rng.integers(0, 7, (4, *shape)) if text else rng.random((4, *shape), dtype=np.float32)
    return Federation(
        features=features,
        labels=rng.integers(0, classes, 4),
        offsets=np.array([0, 4]),
        test_features=features,
        test_labels=rng.integers(0, classes, 4),
        class_names=tuple("abcdefghij"[:classes]),
        name="random",
        vectors=rng.random((7, 5), dtype=np.float32) if text else None,
    )


def brought(data: Federation) -> nn.Module:
    """What a user names `test_models:brought` in a configuration."""
    return nn.Sequential(nn.Flatten(), nn.Linear(6, data.num_classes))


@pytest.mark.parametrize("name", NAMES)
def test_a_stack_of_models_gives_the_logits_of_plain_modules(name):
    data = federation(name)
    model = build(name, data)
    params = torch.stack([model.initial(seed) for seed in range(3)])
    inputs = torch.from_numpy(data.features)
    shared = model.logits(params, inputs.unsqueeze(0))
    own = model.logits(params, inputs.expand(3, *inputs.shape))
    for row in range(3):
        expected = load(model.module(), model.layout, params[row])(inputs)
        torch.testing.assert_close(shared[row], expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(own[row], expected, rtol=1e-4, atol=1e-5)


def test_an_average_pool_is_the_mean_over_windows_whatever_the_shape():
    images, bias = torch.randn(2, 3, 8, 6, 5, requires_grad=True), torch.randn(2, 5, requires_grad=True)
    active = torch.relu(images + bias[:, None, None, None])
    expected = active.unflatten(3, (3, 2)).unflatten(2, (4, 2)).mean((3, 5))
    found = average_pool_relu(images, bias)
    torch.testing.assert_close(found, expected)
    upstream = torch.randn(expected.shape)
    gradients = [torch.autograd.grad(pooled, (images, bias), upstream) for pooled in (found, expected)]
    torch.testing.assert_close(*gradients)
    one = average_pool_relu(images[1:, 2:], bias[1:])
    assert torch.equal(one, found[1:, 2:])


@pytest.mark.parametrize("name", [name for name in NAMES if name != "logistic"])  # starts from zero
def test_the_start_follows_the_seed_and_leaves_torch_alone(name):
    model = build(name, federation(name))
    before = torch.get_rng_state()
    first = model.initial(1)
    assert torch.equal(first, model.initial(1))
    assert not torch.equal(first, model.initial(2))
    assert torch.equal(before, torch.get_rng_state())


def test_sizes_of_the_papers_models():
    assert build("mnist-cnn", federation("mnist-cnn", classes=2)).layout.dim == 25_746
    # 143,076 with the head of 100 classes, of which 129 * 100 belong to the head.
    assert build("cifar-cnn", federation("cifar-cnn", classes=2)).layout.dim == 143_076 - 12_900 + 258


def test_a_layer_is_a_module_with_its_weight_and_bias():
    layout = build("mnist-cnn", federation("mnist-cnn")).layout
    assert layout.layer_sizes == (1040, 8224, 16416, 99)
    assert build("lstm", federation("lstm")).layout.num_layers == 2


@contextmanager
def few_digits():
    """Train on this machine with the digits that a GPU trains with."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(models, "training_dtype", lambda params: torch.bfloat16)
        yield


@pytest.mark.parametrize("precision", [nullcontext, few_digits])
@pytest.mark.parametrize("name", ["linear", "mlp", "mnist-cnn", "lstm"])
@given(scale=st.sampled_from([1e-3, 1.0, 1e3, 1e8]), clip_norm=st.floats(1e-3, 10), seed=st.integers(0, 99))
@settings(derandomize=True, max_examples=15, deadline=None)
def test_one_instance_adds_at_most_the_clip_norm(name, precision, scale, clip_norm, seed):
    data = federation(name)
    model = build(name, data)
    params = model.initial(seed).unsqueeze(0)
    inputs = torch.from_numpy(data.features[:1]).unsqueeze(0)
    inputs = inputs if name == "lstm" else inputs * scale
    mask = torch.ones(1, 1, dtype=torch.bool)
    with precision():
        found = model.clipped_gradient(params, inputs, torch.zeros(1, 1, dtype=torch.int64), mask, clip_norm)
    assert float(found.total.double().norm()) <= clip_norm


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_those_of_torchs_public_function(name, monkeypatch):
    data = federation(name)
    model = build(name, data)
    params = torch.stack([model.initial(seed) for seed in range(2)])
    inputs, labels = torch.from_numpy(np.stack([data.features] * 2)), torch.from_numpy(data.labels)
    given = params, inputs, torch.stack([labels] * 2)

    def gradients():
        clipped = model.clipped_gradient(*given, torch.ones(2, 4, dtype=torch.bool), 0.1)
        return model.gradient(*given, torch.rand(2, 4, generator=torch.manual_seed(0))), clipped.total

    found = gradients()
    monkeypatch.setattr("fedproof.models.tape._engine", None)
    assert all(torch.equal(one, other) for one, other in zip(found, gradients(), strict=True))
    assert all(bool(one.any()) for one in found)


def test_a_weight_that_is_used_twice_is_refused():
    """Norms of the two uses apart would not be the norm of their sum."""
    weights = {"fc.weight": torch.zeros(1, 3, 3), "fc.bias": torch.zeros(1, 3)}
    tape = []
    logits = layer(weights, "fc", layer(weights, "fc", torch.ones(1, 2, 3), tape), tape)
    with pytest.raises(ValueError, match=r"of fc\.weight, fc\.weight one is used twice"):
        traces(logits, torch.ones_like(logits), tape)


@pytest.mark.parametrize("rest", [1e-2, 1e-3, 1e-4, 1e-6])
def test_a_gradient_that_cancels_over_positions_adds_at_most_the_clip_norm(rest):
    """Its norm from pairs of positions is what rounding left of a sum a million times larger."""
    torch.manual_seed(0)
    inputs = (30 * torch.randn(1, 1, 1, 576)).expand(1, 1, 16, 576).contiguous()
    gradients = 30 * torch.randn(1, 1, 16, 128)
    gradients[:, :, -1] = -gradients[:, :, :-1].sum(2) + rest * torch.randn(128)
    trace = AffineTrace(names=("w", "b"), inputs=inputs, gradients=gradients, dtype=torch.float32)
    assert trace.products is None
    clip_norm = 0.01
    factors, _, _ = instance_factors(trace.squared_norms().sqrt(), clip_norm, torch.float32)
    summed = (gradients * factors[:, :, None, None])[0, 0].double()  # what is rounded before it is summed
    weight, bias = summed.T @ inputs[0, 0].double(), factors.double() * trace.sums[0, 0].double()
    assert float((weight.square().sum() + bias.square().sum()).sqrt()) <= clip_norm


def test_positions_that_cancel_take_no_digits_of_other_instances_along():
    # In float32 an instance whose gradient is zero moved the sum of 256 by a twentieth of a clip norm.
    inputs, gradients = torch.zeros(1, 256, 16, 576), torch.zeros(1, 256, 16, 128)
    inputs[..., 0], gradients[..., 0] = 1, 0.9 / 16
    gradients[0, -1, :8, 0], gradients[0, -1, 8:, 0] = 1e5, -1e5
    trace = AffineTrace(names=("w", "b"), inputs=inputs, gradients=gradients, dtype=torch.float32)
    assert trace.products is None
    factors, _, _ = instance_factors(trace.squared_norms().sqrt(), 1.0, torch.float32)
    assert factors[0, -1] > 0.8

    def summed(factors):
        views = {"w": torch.empty(1, 128, 576), "b": torch.empty(1, 128)}
        trace.write(views, factors)
        return views["w"]

    without = factors.clone()
    without[0, -1] = 0
    assert float((summed(factors) - summed(without)).norm()) < 256**2 * 2**-25


@pytest.mark.parametrize("poison", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["linear", "mlp", "mnist-cnn", "brought"])
def test_an_instance_that_is_not_finite_counts_as_zero(name, poison):
    data = federation("linear" if name == "brought" else name)
    model = from_module(brought(data), 3) if name == "brought" else build(name, data)
    params, labels = model.initial(0).unsqueeze(0), torch.from_numpy(data.labels).unsqueeze(0)
    inputs = torch.from_numpy(data.features.copy()).unsqueeze(0)
    inputs[0, 1] = poison
    mask = torch.ones(1, 4, dtype=torch.bool)
    found = model.clipped_gradient(params, inputs, labels, mask, 1.0)
    assert found.finite.tolist() == [[True, False, True, True]]
    others = torch.tensor([0, 2, 3])
    expected = model.clipped_gradient(params, inputs[:, others], labels[:, others], mask[:, others], 1.0)
    torch.testing.assert_close(found.total, expected.total, rtol=1e-4, atol=1e-6)


def test_weights_load_by_name_and_a_head_of_other_shape_becomes_zeros(tmp_path):
    data = federation("cifar-cnn")
    published = build("cifar-cnn", federation("cifar-cnn", classes=10)).module()
    arrays = {name: value.detach().numpy() for name, value in published.named_parameters()}
    np.savez(tmp_path / "weights.npz", **arrays)
    model = build("cifar-cnn", data, weights=tmp_path / "weights.npz")
    named = model.layout.views(model.initial(0).unsqueeze(0))
    np.testing.assert_array_equal(named["net.3.weight"][0], arrays["net.3.weight"])
    assert named["fc.weight"].eq(0).all()
    del arrays["net.0.bias"]
    np.savez(tmp_path / "short.npz", **arrays)
    with pytest.raises(ValueError, match=r"net.0.bias must have shape \(32,\), found nothing"):
        build("cifar-cnn", data, weights=tmp_path / "short.npz")


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4)), r"1 \(BatchNorm1d\) mixes .* use nn.GroupNorm"),
        (nn.Sequential(nn.Dropout(0.1), nn.Linear(6, 4)), r"0 \(Dropout\) draws random numbers"),
        (nn.LSTM(6, 4), r"the module \(LSTM\) has no batching rule .* built-in model 'lstm'"),
        (nn.ReLU(), "nothing to train"),
    ],
)
def test_what_cannot_be_stacked_is_said_clearly(module, message):
    with pytest.raises(ValueError, match=message):
        from_module(module, 4)


def test_a_users_function_is_found_by_its_name(monkeypatch):
    package = ModuleType("my_package")
    package.make = brought
    monkeypatch.setitem(sys.modules, "my_package", package)
    data = federation("linear")
    model = build("my_package:make", data)
    assert model.layout == layout_of(brought(data).named_parameters())
    assert torch.equal(model.initial(4), model.initial(4))
    with pytest.raises(ValueError, match=r"model = 'no_such_module:f' cannot be imported"):
        build("no_such_module:f", data)


@pytest.mark.parametrize(
    ("name", "data", "hidden", "message"),
    [
        ("resnet", "linear", (), "must be one of linear, logistic, mlp"),
        ("lstm", "linear", (), "needs word vectors"),
        ("mnist-cnn", "linear", (), r"needs inputs of shape \(28, 28\)"),
        ("cifar-cnn", "linear", (), r"needs inputs of shape \(3, 32, 32\)"),
        ("linear", "linear", (3,), "hidden = .* only mlp and lstm"),
    ],
)
def test_a_model_that_does_not_fit_is_refused(name, data, hidden, message):
    with pytest.raises(ValueError, match=message):
        build(name, federation(data), hidden=hidden)


def test_frozen_parameters_stay(tmp_path):
    module = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 3))
    module[0].requires_grad_(False)
    model = from_module(module, 3)
    assert model.layout.names == ("2.weight", "2.bias")
    data = federation("linear")
    inputs = torch.from_numpy(data.features).flatten(1)
    logits = model.logits(model.initial(0).expand(2, -1), inputs.unsqueeze(0))
    torch.testing.assert_close(logits[1], module(inputs).detach())


def test_a_new_head_is_zero_or_drawn_by_the_seed(tmp_path):
    data = federation("cifar-cnn")
    ten = cifar_cnn((3, 32, 32), 10)
    named = {name: value[0].numpy() for name, value in ten.layout.views(ten.initial(0).unsqueeze(0)).items()}
    np.savez(tmp_path / "ten.npz", **named)
    zero = build("cifar-cnn", data, weights=tmp_path / "ten.npz")
    drawn = build("cifar-cnn", data, weights=tmp_path / "ten.npz", random_head=True)
    head = zero.layout.slices["fc.weight"]
    body = slice(0, head.start)
    assert not zero.initial(1)[head].any()
    assert drawn.initial(1)[head].any()
    assert torch.equal(drawn.initial(1), drawn.initial(1))
    assert not torch.equal(drawn.initial(1)[head], drawn.initial(2)[head])
    for seed in (1, 2):
        assert torch.equal(drawn.initial(seed)[body], zero.initial(seed)[body])


def test_gradients_kept_per_instance_are_clipped_like_those_that_are_not():
    model = cifar_cnn((3, 32, 32), 3)
    generator = torch.Generator().manual_seed(0)
    inputs = torch.randn(2, 4, 3, 32, 32, dtype=torch.float64, generator=generator)
    labels = torch.randint(0, 3, (2, 4), generator=generator)
    params = model.initial(0).double().expand(2, -1).contiguous()
    mask = torch.ones(2, 4, dtype=torch.float64)
    found = model.clipped_gradient(params, inputs, labels, mask, clip_norm=0.3)
    alone = [
        model.gradient(params, inputs[:, [i]], labels[:, [i]], mask[:, :1]) for i in range(inputs.shape[1])
    ]
    clipped = sum(one * (0.3 / one.norm(dim=1, keepdim=True)).clamp(max=1) for one in alone)
    assert torch.allclose(found.total, clipped, rtol=1e-9, atol=1e-12)
    assert torch.allclose(found.norms, torch.stack([one.norm(dim=1) for one in alone], dim=1))
    assert bool((found.norms > 0.3).any())


@pytest.mark.parametrize("name", [name for name in NAMES if name != "logistic"])
def test_few_digits_change_gradients_little_and_keep_their_type(name):
    data = federation(name)
    model = build(name, data)
    params = torch.stack([model.initial(seed) for seed in range(2)])
    inputs = torch.from_numpy(data.features).expand(2, *data.features.shape)
    labels = torch.from_numpy(data.labels).expand(2, -1)
    mask = torch.ones(2, 4, dtype=torch.bool)

    def gradients():
        clipped = model.clipped_gradient(params, inputs, labels, mask, 0.1)
        return model.gradient(params, inputs, labels, mask.float()), clipped.total, clipped.norms

    exact = gradients()
    with few_digits():
        short = gradients()
    for one, other in zip(short, exact, strict=True):
        assert one.dtype == torch.float32
        assert not torch.equal(one, other)
        assert float((one - other).norm() / other.norm()) < 0.1
    # A norm is that of the very gradient that is clipped, however few digits went into it.
    with few_digits():
        alone = model.clipped_gradient(params, inputs[:, :1], labels[:, :1], mask[:, :1], 1e6)
    torch.testing.assert_close(alone.total.norm(dim=1), alone.norms[:, 0], rtol=1e-5, atol=0)
