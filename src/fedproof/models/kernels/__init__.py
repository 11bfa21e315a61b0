"""GPU kernels for what torch does slowly with many small images: convolutions, pools and their gradients.

All images have their channels last and are contiguous; those of one model are neighbours. The same functions
in plain torch, for every other device, are in `convolution.py`.
"""

from fedproof.models.kernels.convolutions import (
    InstanceGradients,
    Upstream,
    convolve,
    convolve_backward,
    convolve_pooled,
    instance_gradients,
    summed_gradients,
    weighted_gradients,
)
from fedproof.models.kernels.pools import max_pool_relu, max_pool_relu_backward

__all__ = [
    "InstanceGradients",
    "Upstream",
    "convolve",
    "convolve_backward",
    "convolve_pooled",
    "instance_gradients",
    "max_pool_relu",
    "max_pool_relu_backward",
    "summed_gradients",
    "weighted_gradients",
]
