"""The GPU kernels compute what plain torch computes; the reference is float64 in plain torch.

On a machine without a GPU Triton's interpreter runs them, so that nothing here is left untested.
"""

import pytest
import torch

from fedproof.models import convolution

pytest.importorskip("triton")

from fedproof.models import kernels
from fedproof.models import model as models
from fedproof.models.cnn import cifar_cnn, mnist_cnn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
SHAPES = [(5, 28, 28, 1, 8, 2, 3), (4, 13, 13, 16, 4, 2, 0), (3, 8, 6, 5, 3, 1, 1), (2, 9, 9, 3, 5, 2, 1)]


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


@pytest.mark.parametrize("multiple", [1, 8])
@pytest.mark.parametrize(("count", "height", "width", "channels", "kernel", "stride", "padding"), SHAPES)
def test_windows(count, height, width, channels, kernel, stride, padding, multiple):
    images = torch.randn(count, height, width, channels)
    rows, columns = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
    line = -(-kernel * kernel * channels // multiple) * multiple
    upstream = torch.randn(count, rows, columns, line)
    assert_same(lambda x: convolution._Windows.apply(x, kernel, stride, padding, multiple), upstream, images)


@pytest.mark.parametrize(("count", "height", "width", "channels", "kernel", "stride", "padding"), SHAPES)
def test_windows_of_bfloat16_are_moved_bit_by_bit(count, height, width, channels, kernel, stride, padding):
    images = torch.randn(count, height, width, channels).bfloat16()
    more = -kernel * kernel * channels % 8
    found = kernels.windows(images.to(DEVICE), kernel, stride, padding, more)
    assert torch.equal(found.cpu(), convolution._Windows.apply(images, kernel, stride, padding, 8))


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
    inputs, labels = torch.rand(2, 2, *shape), torch.tensor([[0, 1], [1, 0]])
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
