"""The GPU kernels compute what plain torch computes; the reference is float64 in plain torch.

On a machine without a GPU Triton's interpreter runs them, so that nothing here is left untested.
"""

import pytest
import torch

from fedproof.models import convolution

pytest.importorskip("triton")

from fedproof.models import kernels
from fedproof.models import model as models
from fedproof.models.convolution import Windows
from fedproof.models.kernels import convolutions, launch
from fedproof.models.networks import cifar_cnn, mnist_cnn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [
    # batch, height, width, channels, outs, kernel, stride, padding
    (3, 28, 28, 1, 16, 8, 2, 3),
    (4, 13, 13, 16, 32, 4, 2, 0),
    (3, 8, 6, 5, 7, 3, 1, 1),
    (2, 9, 9, 3, 5, 5, 2, 1),
    (2, 4, 4, 64, 20, 3, 1, 1),
    (2, 9, 8, 3, 4, 2, 3, 1),
]


def by_kernels(function, upstream, *inputs):
    leaves = [value.to(DEVICE).requires_grad_(True) for value in inputs]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(convolution, "_kernels", lambda images: kernels)
        result = function(*leaves)
        gradients = torch.autograd.grad(result, leaves, upstream.to(DEVICE))
    return [value.cpu() for value in (result, *gradients)]


def by_torch(function, upstream, *inputs):
    leaves = [value.double().requires_grad_(True) for value in inputs]
    result = function(*leaves)
    return [result, *torch.autograd.grad(result, leaves, upstream.double())]


def assert_same(function, upstream, *inputs):
    found, expected = (run(function, upstream, *inputs) for run in (by_kernels, by_torch))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)


@pytest.fixture(autouse=True)
def generator():
    torch.manual_seed(0)


def convolve(images, weight, stride, padding):
    weights = {"c.weight": weight, "c.bias": weight.new_zeros(weight.shape[:2])}
    return convolution.convolution(weights, "c", images, None, stride=stride, padding=padding)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize(
    ("batch", "height", "width", "channels", "outs", "kernel", "stride", "padding"), SHAPES
)
def test_convolution(batch, height, width, channels, outs, kernel, stride, padding, shared):
    images = torch.randn(1 if shared else 2, batch, height, width, channels)
    weight = torch.randn(2, outs, channels, kernel, kernel)
    windows = Windows(kernel=kernel, stride=stride, padding=padding)
    upstream = torch.randn(2, batch, windows.along(height), windows.along(width), outs)
    if shared:  # as in prediction, and as the first layer of an ensemble that sees the same images
        assert_same(lambda w: convolve(images.to(w), w, stride, padding), upstream, weight)
    else:
        assert_same(lambda x, w: convolve(x, w, stride, padding), upstream, images, weight)


@pytest.mark.parametrize(
    ("batch", "height", "width", "channels", "outs", "kernel", "stride", "padding"), SHAPES
)
def test_instance_gradients(batch, height, width, channels, outs, kernel, stride, padding):
    """Norms, kept gradients and weighted sums against the gradients of one instance after the other."""
    windows = Windows(kernel=kernel, stride=stride, padding=padding)
    images = torch.randn(2, batch, height, width, channels)
    upstream = torch.randn(2, batch, windows.along(height), windows.along(width), outs)
    factors = torch.rand(2, batch)
    given = [value.to(DEVICE) for value in (images, upstream)]
    found = kernels.instance_gradients(*given, windows)
    weighted = kernels.weighted_gradients(*given, factors.to(DEVICE), windows, found)
    small = windows.kernel**2 * channels * outs <= images[0, 0].numel() + upstream[0, 0].numel()
    assert (found.weights is not None) == small

    weight = torch.zeros(2, outs, channels, kernel, kernel, dtype=torch.float64, requires_grad=True)
    outputs = convolve(images.double(), weight, stride, padding)
    expected = torch.empty(2, batch, *weight.shape[1:], dtype=torch.float64)
    for instance in range(batch):
        alone = torch.zeros_like(upstream).double()
        alone[:, instance] = upstream[:, instance]
        expected[:, instance] = torch.autograd.grad(outputs, weight, alone, retain_graph=True)[0]
    expected = expected.permute(0, 1, 4, 5, 3, 2).flatten(2, 4)
    expected_bias = upstream.double().sum((2, 3))
    pairs = [
        (found.biases, expected_bias),
        (weighted[0], (expected * factors[:, :, None, None]).sum(1)),
        (weighted[1], (expected_bias * factors[:, :, None]).sum(1)),
    ]
    if small:
        pairs.append((found.weights, expected))
    for one, reference in pairs:
        torch.testing.assert_close(one.cpu().double(), reference, rtol=1e-5, atol=1e-4)
    norms = expected.square().sum((2, 3)) + expected_bias.square().sum(2)
    over = found.norms.cpu() / norms - 1  # rounded up, a little
    assert float(over.min()) > 0
    assert float(over.max()) < 1e-4


def test_tiles_fit_a_smaller_gpu(monkeypatch):
    """The tiles of a CIFAR layer in float32 are halved where a block has 48 KB, and give the same."""
    images, upstream = torch.randn(1, 2, 8, 8, 64), torch.randn(1, 2, 8, 8, 64)
    weight = torch.randn(1, 576, 64)
    windows = Windows(kernel=3, padding=1)
    given = [value.to(DEVICE) for value in (images, upstream, weight)]

    def results():
        found = kernels.instance_gradients(*given[:2], windows)
        outputs = kernels.convolve(given[0], given[2], windows)
        backward = kernels.convolve_backward(given[1], given[2], windows, images.shape)
        return found.norms, outputs, backward, kernels.summed_gradients(*given[:2], windows)

    large = results()
    fit = convolutions.fit
    sizes = []
    monkeypatch.setattr(
        convolutions, "fit", lambda *given: sizes.append((given, fit(*given))) or sizes[-1][1]
    )
    monkeypatch.setattr(launch, "_shared_memory", lambda device: 48 << 10)
    for one, other in zip(results(), large, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-3)
    assert any(many < given[1] for given, many in sizes)
    for (_, _, each, more, stages), many in sizes:
        assert many == 16 or 4 * stages * (many * each + more) <= 48 << 10


def test_a_batch_that_32_bits_cannot_count_is_refused():
    images = torch.empty(1, 1, 1, 1, 1).expand(1, 2**17, 128, 128, 1)
    with pytest.raises(ValueError, match="2\\*\\*31 numbers or more: take fewer"):
        kernels.convolve(images, torch.ones(1, 1, 1), Windows(kernel=1))


@pytest.mark.filterwarnings("ignore:invalid value encountered:RuntimeWarning")  # the interpreter's numpy
def test_an_instance_that_is_not_finite_is_left_out(monkeypatch):
    """Its factor is 0, but 0 times infinity is no number."""
    monkeypatch.setattr(convolution, "_kernels", lambda images: kernels)
    monkeypatch.setattr(models, "training_dtype", lambda params: params.dtype)
    model = mnist_cnn((28, 28), 2)
    params = model.initial(0).unsqueeze(0).to(DEVICE)
    inputs, labels = torch.rand(1, 3, 28, 28, device=DEVICE), torch.tensor([[0, 1, 1]], device=DEVICE)
    mask = torch.ones(1, 3, dtype=torch.bool, device=DEVICE)
    without = model.clipped_gradient(params, inputs[:, :2], labels[:, :2], mask[:, :2], 0.1)
    inputs[0, 2, 5, 5] = torch.inf
    found = model.clipped_gradient(params, inputs, labels, mask, 0.1)
    assert found.finite.tolist() == [[True, True, False]]
    torch.testing.assert_close(found.total, without.total)


def test_max_pool_relu():
    upstream = torch.randn(2, 3, 13, 9, 5)
    assert_same(convolution.max_pool_relu, upstream, torch.randn(2, 3, 14, 10, 5), torch.randn(2, 5))


def test_average_pool_relu():
    upstream = torch.randn(2, 3, 7, 5, 6)
    assert_same(convolution.average_pool_relu, upstream, torch.randn(2, 3, 14, 10, 6), torch.randn(2, 6))


@pytest.mark.parametrize(("build", "shape"), [(mnist_cnn, (28, 28)), (cifar_cnn, (3, 32, 32))])
def test_a_network_trains_as_on_a_gpu(build, shape, monkeypatch):
    """Kernels and, on a GPU, few digits, against plain torch with all digits."""
    short, close = (torch.bfloat16, 0.1) if DEVICE == "cuda" else (torch.float32, 1e-5)
    model = build(shape, 2)
    params = torch.stack([model.initial(seed) for seed in range(2)])
    # Of one class each, for the gradients of an untrained network's two classes cancel, digits and all.
    inputs, labels = torch.rand(2, 2, *shape), torch.tensor([[0, 0], [1, 1]])
    mask = torch.ones(2, 2, dtype=torch.bool)

    def gradients():
        given = [value.to(DEVICE) for value in (params, inputs, labels, mask)]
        clipped = model.clipped_gradient(*given, 0.1)
        return model.gradient(*given[:3], given[3].float()).cpu(), clipped.total.cpu()

    monkeypatch.setattr(models, "training_dtype", lambda params: params.dtype)
    monkeypatch.setattr(convolution, "_kernels", lambda images: None)
    exact = gradients()
    monkeypatch.setattr(models, "training_dtype", lambda params: short)  # the interpreter has no bfloat16
    monkeypatch.setattr(convolution, "_kernels", lambda images: kernels)
    for one, other in zip(gradients(), exact, strict=True):
        assert float((one - other).norm() / other.norm()) < close
