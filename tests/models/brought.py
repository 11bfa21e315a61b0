"""Modules as users bring them, with what makes a module hard to share between threads."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.utils.parametrize import register_parametrization

SHAPE = (1, 8, 8)
CLASSES = 3


class Tied(nn.Module):
    """One matrix there and back again."""

    def __init__(self):
        super().__init__()
        self.there, self.back = nn.Linear(64, 5), nn.Linear(5, 64)
        self.there_again = nn.Linear(64, 5)
        self.there_again.weight = self.there.weight
        self.head = nn.Linear(5, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        hidden = self.back(torch.tanh(self.there(images.flatten(1))))
        return self.head(torch.tanh(self.there_again(hidden)))


class Buffers(nn.Module):
    """A buffer that is kept, one that is not, and a layer that is not trained."""

    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.linspace(-0.5, 0.5, 64))
        self.register_buffer("scale", torch.tensor(0.7), persistent=False)
        self.encoder, self.head = nn.Linear(64, 6), nn.Linear(6, CLASSES)
        self.encoder.requires_grad_(False)

    def forward(self, images: Tensor) -> Tensor:
        return self.head(torch.relu(self.encoder((images.flatten(1) - self.mean) * self.scale)))


class Remembers(nn.Module):
    """Writes down what it saw and makes a mask when it is first needed, as much code does."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, CLASSES)
        self.seen = []

    def forward(self, images: Tensor) -> Tensor:
        self.last = images
        self.seen.append(images.shape)
        if not hasattr(self, "mask"):
            self.mask = (torch.arange(64) % 3 > 0).to(images.dtype)
        return self.head(images.flatten(1) * self.mask)


class Counts(nn.Module):
    """Answers otherwise each time it is asked: no replica may see that another came before."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(64, CLASSES)
        self.calls = 0

    def forward(self, images: Tensor) -> Tensor:
        self.calls += 1
        return self.head(images.flatten(1)) * self.calls


class Listed(nn.Module):
    """Parameters in a list."""

    def __init__(self):
        super().__init__()
        self.weights = nn.ParameterList([torch.randn(64, 5) / 8, torch.randn(5, CLASSES) / 2])

    def forward(self, images: Tensor) -> Tensor:
        return torch.tanh(images.flatten(1) @ self.weights[0]) @ self.weights[1]


def cnn() -> nn.Module:
    """An ordinary convolutional network."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(24, CLASSES),
    )


def hooked() -> nn.Module:
    """A hook before the first layer and one behind it, which change what goes through."""
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 5), nn.Tanh(), nn.Linear(5, CLASSES))
    module[1].register_forward_pre_hook(halved)
    module[1].register_forward_hook(shifted)
    return module


def halved(part: nn.Module, given: tuple[Tensor]) -> tuple[Tensor]:
    return (given[0] * 0.5,)


def shifted(part: nn.Module, given: tuple[Tensor], found: Tensor) -> Tensor:
    return found + part.bias.sum()


class Bounded(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return torch.tanh(weight)


def bounded() -> nn.Module:
    """Weights that are computed from others."""
    first = nn.Linear(64, 5)
    register_parametrization(first, "weight", Bounded())
    return nn.Sequential(nn.Flatten(), first, nn.Tanh(), nn.Linear(5, CLASSES))


def attention() -> nn.Module:
    """A small transformer over the rows of an image."""
    return nn.Sequential(nn.Flatten(1, 2), Rows(), nn.Linear(8, CLASSES))


class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mix = nn.LayerNorm(8), nn.Linear(8, 24)

    def forward(self, rows: Tensor) -> Tensor:
        query, key, value = self.mix(self.norm(rows)).chunk(3, dim=-1)
        return F.gelu(torch.softmax(query @ key.mT / 8**0.5, -1) @ value).mean(1)


MODULES = {
    "cnn": cnn,
    "tied": Tied,
    "buffers": Buffers,
    "remembers": Remembers,
    "counts": Counts,
    "listed": Listed,
    "hooked": hooked,
    "bounded": bounded,
    "attention": attention,
}
