"""Images moved and mirrored during local training."""

from dataclasses import dataclass, field

import torch
from torch import Tensor

from fedproof.mechanisms import LocalTraining
from fedproof.rounds.randomness import augment_generator


@dataclass(frozen=True, kw_only=True)
class Augment:
    """What happens to the images of each step of one round, alike for all models that take the step.

    Attributes:
        shift: largest number of pixels, each way.
        flip: whether half of the steps see mirrored images.
        seed, round: of the random numbers.
    """

    shift: int
    flip: bool
    seed: int = field(repr=False)
    round: int

    @staticmethod
    def of(local: LocalTraining, seed: int, round: int) -> "Augment":
        """What `local` asks for."""
        return Augment(shift=local.shift, flip=local.flip, seed=seed, round=round)

    def __call__(self, images: Tensor, epoch: int, step: int) -> Tensor:
        """`images` (..., height, width) as they are seen in one step; their border is repeated."""
        if not self.shift and not self.flip:
            return images
        generator = augment_generator(self.seed, self.round, epoch, step)
        down, right = generator.integers(-self.shift, self.shift + 1, size=2).tolist()
        images = _moved(_moved(images, down, -2), right, -1)
        return images.flip(-1) if self.flip and generator.random() < 0.5 else images


def _moved(images: Tensor, pixels: int, axis: int) -> Tensor:
    if not pixels:
        return images
    length = images.shape[axis]
    source = torch.arange(length, device=images.device) - pixels
    return images.index_select(axis, source.clamp(0, length - 1))
