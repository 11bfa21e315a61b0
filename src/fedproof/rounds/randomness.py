"""Where every random number comes from, and who is drawn by it.

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
| shift and flip of the images of a step | `(AUGMENT, round, epoch, step)` | all replicas and users |

A user, or an instance, stands in a key, or draws its number, by its identity: nobody's random numbers depend
on who else takes part. Local training is thus a function of the global model, the user and the round, and a
replica's result does not depend on the replicas trained beside it. CPU streams are NumPy's PCG64. CUDA
streams are Philox with a 64-bit seed from the same sequence: the numbers differ between the two kinds of
device, not between two runs on one. Lots (`fedproof.seeds`) are the same everywhere.

With `secure` what privacy rests on, cohorts, noise and batches, comes from the operating system instead
(`fedproof.seeds`), and the seed decides the rest: what is public anyway. Such numbers are drawn on the host.
"""

from collections.abc import Callable
from itertools import pairwise

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedproof.mechanisms import Groups, Mechanism
from fedproof.seeds import (
    Lots,
    Numbers,
    Purpose,
    SecureGenerator,
    draw_cohorts,
    element,
    private_numbers,
    sequence,
)


class Stream:
    """The random numbers of one replica for one purpose, on one device."""

    def __init__(
        self, seed: int, purpose: Purpose, replica: int, device: torch.device, *, secure: bool = False
    ) -> None:
        self._generator: Numbers | torch.Generator
        if secure or device.type == "cpu":
            # Not torch's own, which on a CPU keeps 32 bits of its seed only.
            self._generator = private_numbers(seed, purpose, replica, secure=secure)
        else:
            word = int(sequence(seed, purpose, replica).generate_state(1, np.uint64)[0])
            self._generator = torch.Generator(device=device).manual_seed(word)

    def normal_(self, out: Tensor) -> None:
        """Fill the contiguous `out` with standard normal numbers."""
        if isinstance(self._generator, torch.Generator):
            out.normal_(generator=self._generator)
        else:
            _fill(out, self._generator.standard_normal)

    def uniform_(self, out: Tensor) -> None:
        """Fill the contiguous `out` with uniform numbers in [0, 1)."""
        if isinstance(self._generator, torch.Generator):
            out.uniform_(generator=self._generator)
        else:
            _fill(out, self._generator.random)


def _fill(out: Tensor, draw: Callable[..., object]) -> None:
    """Draw on the host, and copy to the device of `out` where that is another."""
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


# --- who takes part -----------------------------------------------------------------------------------------


def cohorts_of(
    mechanism: Mechanism, ids: NDArray[np.int64], seed: int, replicas: range, *, secure: bool = False
) -> NDArray[np.bool_]:
    """Who of the units with identities `ids` takes part in which round, `(replicas, rounds, units)`.

    The groups of a partition follow from the seed even where all that is secret is `secure`: all replicas
    must agree on them, and nothing rests on their being unknown.

    Guarantee: the same units in every round of a replica where the cohort is drawn once, else anew in each.
    Except where cohorts have a fixed size, whether a unit takes part depends on its identity alone.
    """
    sampling, rounds = mechanism.sampling, 1 if mechanism.once else mechanism.rounds
    if isinstance(sampling, Groups):
        drawn = _members(sampling.count, ids, seed, replicas)
    else:
        drawn = draw_cohorts(sampling, ids, rounds, seed, replicas, secure=secure)
    # A view where they are drawn once: with many instances and rounds a copy would fill the memory.
    return np.broadcast_to(drawn, (len(drawn), mechanism.rounds, len(ids)))


def _members(groups: int | None, ids: NDArray[np.int64], seed: int, replicas: range) -> NDArray[np.bool_]:
    """Who is in the group of each replica, `(replicas, 1, units)`."""
    count = len(ids) if groups is None else groups
    if replicas.stop > count:
        raise ValueError(f"replica {replicas.stop - 1} must be below groups = {count}")
    wanted = np.arange(replicas.start, replicas.stop)[:, None, None]
    own = np.arange(count) if groups is None else groups_of(groups, ids, seed)
    return np.asarray(own == wanted)


def groups_of(groups: int, ids: NDArray[np.int64], seed: int) -> NDArray[np.int64]:
    """The group of each unit (user or instance).

    Guarantee: a unit's group depends on its identity and the seed alone: each block of `groups` consecutive
    identities is spread over all groups in a random order of its own. Where identities count from zero, the
    sizes of groups differ by at most one and no group is empty.

    >>> bool((groups_of(3, np.arange(7), seed=0)[3:] == groups_of(3, np.arange(3, 100), seed=0)[:4]).all())
    True
    """
    Groups(count=groups).check_units(len(ids))
    blocks, places = np.divmod(ids, groups)
    known, block = np.unique(blocks, return_inverse=True)
    generators = (np.random.default_rng(sequence(seed, Purpose.GROUP, number)) for number in known.tolist())
    orders = np.stack([generator.permutation(groups) for generator in generators])
    return np.asarray(orders[block, places])
