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

from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.seeds import Lots, Numbers, Purpose, SecureGenerator, element, private_numbers, sequence


class Stream:
    """The random numbers of one replica for one purpose, on one device."""

    def __init__(
        self, seed: int, purpose: Purpose, replica: int, device: torch.device, *, secure: bool = False
    ) -> None:
        self._numbers: Numbers | None = None
        if secure or device.type == "cpu":
            # Not torch's own, which on a CPU keeps 32 bits of its seed only.
            self._numbers = private_numbers(seed, purpose, replica, secure=secure)
        else:
            word = int(sequence(seed, purpose, replica).generate_state(1, np.uint64)[0])
            self._generator = torch.Generator(device=device).manual_seed(word)

    def normal_(self, out: Tensor | NDArray[np.floating]) -> None:
        """Fill the contiguous `out` with standard normal numbers; an array only on a host."""
        if self._numbers is None:
            assert isinstance(out, Tensor)
            out.normal_(generator=self._generator)
        else:
            _fill(out, self._numbers.standard_normal)

    def uniform_(self, out: Tensor) -> None:
        """Fill the contiguous `out` with uniform numbers in [0, 1)."""
        if self._numbers is None:
            out.uniform_(generator=self._generator)
        else:
            _fill(out, self._numbers.random)


def normal_rows(streams: Sequence[Stream], out: Tensor) -> None:
    """Fill each row of `out` (streams, ...) with standard normal numbers from its own stream.

    Rows on a host are arrays: a tensor for each would cost more than the numbers of a small model.
    """
    for stream, row in zip(streams, out.numpy() if out.device.type == "cpu" else out, strict=True):
        stream.normal_(row)


def _fill(out: Tensor | NDArray[np.floating], draw: Callable[..., object]) -> None:
    """Draw on the host, and copy to the device of `out` where that is another."""
    if isinstance(out, np.ndarray):
        draw(dtype=out.dtype, out=out)
        return
    host = out if out.device.type == "cpu" else torch.empty(out.shape, dtype=out.dtype)
    numbers = host.numpy()
    draw(dtype=numbers.dtype, out=numbers)
    if host is not out:
        out.copy_(host)


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
