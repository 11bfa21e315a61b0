"""Which windows of an image a convolution sees."""

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Windows:
    """Windows of `kernel` by `kernel` that move by `stride` over images with `padding` zeros around them."""

    kernel: int
    stride: int = 1
    padding: int = 0

    def along(self, size: int) -> int:
        """Number of windows along a side of `size`.

        >>> Windows(kernel=3, padding=1).along(32)
        32
        """
        return (size + 2 * self.padding - self.kernel) // self.stride + 1
