"""Where every random number comes from; who is drawn by them is in `fedproof.seeds`.

All randomness is derived from the task's seed and a key, see `fedproof.seeds.sequence`:

| what | key | who shares it |
|---|---|---|
| initial model | `(INITIAL,)` | all replicas |
| initial model of one replica (`own_start`) | `(START, replica)` | nobody |
| order of a user's instances | `(ORDER, round, user)` | all replicas |
| cohorts of all rounds | `(COHORT, replica)` | nobody |
| noise of all rounds | `(NOISE, replica)` | nobody |
| noise of the one release that replicas are drawn around | `(RELEASE, 0)` | all replicas |
| DP-SGD batches, or order of pooled instances, of all rounds | `(BATCH, replica)` | nobody |
| all of these, where a unit is a group of its own | its identity for `replica` | nobody |
| groups of a partition's units | `(GROUP, block of units)` | all replicas |
| what happens to the images of a step | `(AUGMENT, round, epoch, step)` | all replicas and users |

A user, or an instance, stands in a key, or draws its number, by its identity: nobody's random numbers depend
on who else takes part. Local training is thus a function of the global model, the user and the round, and a
replica's result does not depend on the replicas trained beside it. CPU streams are NumPy's PCG64. CUDA
streams are Philox with a 64-bit seed from the same sequence: the numbers differ between the two kinds of
device, not between two runs on one. Lots (`fedproof.seeds`) are the same everywhere.

With `secure` what privacy rests on, cohorts, noise and batches, comes from the operating system instead
(`fedproof.seeds`), and the seed decides the rest: what is public anyway. Such numbers are drawn on the host.
"""

from collections.abc import Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof import exact
from fedproof.rounds.stacking import on_cores
from fedproof.seeds import (
    Lots,
    Numbers,
    Purpose,
    SecureGenerator,
    element,
    further_bits,
    private_numbers,
    sequence,
)

_NUMBERS = 1 << 16, 1 << 26  # of noise computed at once, on a host and on a GPU


class Stream:
    """The random bits of one replica for one purpose, on one device."""

    def __init__(
        self, seed: int, purpose: Purpose, replica: int, device: torch.device, *, secure: bool = False
    ) -> None:
        self._numbers: Numbers | None = None
        if secure or device.type == "cpu":
            # Not torch's own, which on a CPU keeps 32 bits of its seed only.
            self._numbers = private_numbers(seed, purpose, replica, secure=secure)
            self.further = self._numbers.further
        else:
            start = sequence(seed, purpose, replica)
            word = int(start.generate_state(1, np.uint64)[0])
            self._generator = torch.Generator(device=device).manual_seed(word)
            self.further = partial(further_bits, start)

    def words_(self, out: Tensor) -> None:
        """Fill the contiguous `out` of int64 with words, uniform over all values of 64 bits."""
        if self._numbers is None:
            out.random_(torch.iinfo(torch.int64).min, None, generator=self._generator)
        elif out.device.type == "cpu":
            out.numpy().reshape(-1)[:] = self._numbers.words(out.numel())
        else:
            out.copy_(torch.from_numpy(self._numbers.words(out.numel())).view(out.shape))

    def uniform_(self, out: Tensor) -> None:
        """Fill the contiguous `out` with uniform numbers in [0, 1)."""
        if self._numbers is None:
            out.uniform_(generator=self._generator)
        else:
            numbers = self._numbers.random(tuple(out.shape), dtype=host_dtype(out))
            out.copy_(torch.from_numpy(numbers))


def host_dtype(tensor: Tensor) -> np.dtype[np.floating]:
    """What NumPy calls the type of a tensor."""
    return np.dtype(str(tensor.dtype).partition(".")[2])


def noise(
    streams: Sequence[Stream], rows: Sequence[int], numbers: int, scale: Tensor, cores: int = 1
) -> Tensor:
    """Whole numbers `(rows, numbers)` with the law of rounded Gaussians, see `exact.normals`.

    Guarantee: `rows[r]` rows follow from the bits of `streams[r]` alone.

    Args:
        streams: one for each replica.
        rows: how many rows each stream fills, one stream after the other.
        numbers: in a row.
        scale: `(rows, 1 or numbers)` in float64, on the device of the noise.
        cores: how many rows are computed side by side on a host.
    """
    device, ends = scale.device, np.cumsum(rows)
    begins = ends - rows
    further = [stream.further for stream, count in zip(streams, rows, strict=True) for _ in range(count)]
    drawn = torch.empty(len(scale), numbers, dtype=torch.float64, device=device)

    def draw(some: slice) -> None:
        own = slice(int(begins[some][0]), int(ends[some][-1]))
        words = torch.empty(own.stop - own.start, numbers, dtype=torch.int64, device=device)
        places = zip(streams[some], begins[some] - own.start, ends[some] - own.start, strict=True)
        for stream, begin, end in places:
            stream.words_(words[begin:end])
        if device.type == "cpu":
            drawn.numpy()[own] = exact.normals(words.numpy(), scale[own].numpy(), further[own])
        else:
            drawn[own] = exact.normals(words, scale[own], further[own])

    widest = max(1, numbers * max(rows, default=1))
    together = max(1, _NUMBERS[device.type == "cuda"] // widest)
    on_cores(draw, [slice(begin, begin + together) for begin in range(0, len(streams), together)], cores)
    return drawn


def initial_seed(seed: int, replica: int | None = None) -> int:
    """Seed of the initial model: of all replicas, or of one that has its own."""
    key = (Purpose.INITIAL,) if replica is None else (Purpose.START, replica)
    return int(sequence(seed, *key).generate_state(1)[0])


def draw(lots: Lots, numbers: NDArray[np.int64], replica: NDArray[np.int64], ids: Tensor) -> Tensor:
    """`lots.draw` on the device of the identities `ids` (rows, units)."""
    if lots.secure:
        return torch.from_numpy(SecureGenerator().random(tuple(ids.shape))).to(ids.device)
    starts = torch.from_numpy(lots.starts(numbers, replica)).to(ids.device)
    found: Tensor = element(starts, ids).double() * 2.0**-53
    return found


def augment_generator(seed: int, round: int, epoch: int, step: int) -> np.random.Generator:
    """Generator of what happens to the images of one step."""
    return np.random.default_rng(sequence(seed, Purpose.AUGMENT, round, epoch, step))


def data_order(
    seed: int, round: int, offsets: NDArray[np.int64], epochs: int, ids: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Rows `(epochs, instances)` in the order in which each user sees its own, user after user.

    Guarantee: a user's order depends on its identity in `ids` (users,) and on how many instances it holds.
    """
    order = np.tile(np.arange(offsets[-1]), (epochs, 1))
    for user, (start, stop) in zip(ids.tolist(), pairwise(offsets.tolist()), strict=True):
        generator = np.random.default_rng(sequence(seed, Purpose.ORDER, round, user))
        generator.permuted(order[:, start:stop], axis=1, out=order[:, start:stop])
    return order
