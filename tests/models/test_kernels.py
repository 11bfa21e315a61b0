"""The GPU kernels compute what plain torch computes; the reference is float64 on the host."""

import pytest
import torch

from fedproof.models import convolution

SHAPES = [(5, 28, 28, 1, 8, 2, 3), (4, 13, 13, 16, 4, 2, 0), (3, 8, 6, 5, 3, 1, 1), (2, 9, 9, 3, 5, 2, 1)]


def on_gpu(function, upstream, *inputs):
    leaves = [value.cuda().requires_grad_(True) for value in inputs]
    result = function(*leaves)
    return [value.cpu() for value in (result, *torch.autograd.grad(result, leaves, upstream.cuda()))]


def on_host(function, upstream, *inputs):
    leaves = [value.double().requires_grad_(True) for value in inputs]
    result = function(*leaves)
    return [result, *torch.autograd.grad(result, leaves, upstream.double())]


def assert_same(function, upstream, *inputs):
    found, expected = (run(function, upstream, *inputs) for run in (on_gpu, on_host))
    for one, other in zip(found, expected, strict=True):
        assert one.shape == other.shape
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
class TestKernels:
    @pytest.mark.parametrize(("count", "height", "width", "channels", "kernel", "stride", "padding"), SHAPES)
    def test_windows(self, count, height, width, channels, kernel, stride, padding):
        images = torch.randn(count, height, width, channels)
        rows, columns = ((size + 2 * padding - kernel) // stride + 1 for size in (height, width))
        for multiple in (1, 8):
            line = -(-kernel * kernel * channels // multiple) * multiple
            upstream = torch.randn(count, rows, columns, line)
            assert_same(
                lambda x, m=multiple: convolution._Windows.apply(x, kernel, stride, padding, m),
                upstream,
                images,
            )

    def test_max_pool_relu(self):
        upstream = torch.randn(2, 3, 13, 9, 5)
        assert_same(convolution.max_pool_relu, upstream, torch.randn(2, 3, 14, 10, 5), torch.randn(2, 5))

    def test_average_pool_relu(self):
        upstream = torch.randn(2, 3, 7, 5, 6)
        assert_same(convolution.average_pool_relu, upstream, torch.randn(2, 3, 14, 10, 6), torch.randn(2, 6))
