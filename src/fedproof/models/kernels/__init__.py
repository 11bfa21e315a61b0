"""GPU kernels for what torch does slowly with many small images: convolutions, pools and their gradients.

All images are `(images, height, width, channels)`, contiguous; those of one model are neighbours.
`convolution.py` has the same functions in plain torch for every other device.
"""

from fedproof.models.kernels.convolutions import (
    InstanceGradients,
    convolve,
    convolve_backward,
    instance_gradients,
    summed_gradients,
    weighted_gradients,
)
from fedproof.models.kernels.pools import (
    average_pool_relu,
    average_pool_relu_backward,
    max_pool_relu,
    max_pool_relu_backward,
)

__all__ = [
    "InstanceGradients",
    "average_pool_relu",
    "average_pool_relu_backward",
    "convolve",
    "convolve_backward",
    "instance_gradients",
    "max_pool_relu",
    "max_pool_relu_backward",
    "summed_gradients",
    "weighted_gradients",
]
