"""How much is trained at once: as much as the device's memory or caches allow."""

import os
from dataclasses import dataclass, replace

import torch

from fedproof import check
from fedproof.ensemble.task import Task
from fedproof.mechanisms.sampling import expected_cohort

_PART_BYTES = 512 << 20  # models and scores of one part, on the host


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work is done at once.

    Attributes:
        stack: (replica, user) pairs trained as one batched program.
        block: replicas that go through the rounds together.
        width: test inputs scored at once.
    """

    stack: int
    block: int
    width: int

    def __post_init__(self) -> None:
        check.count(stack=self.stack, block=self.block, width=self.width)


def halved(sizes: Sizes) -> Sizes:
    """Half of everything, after the device ran out of memory; MemoryError if nothing is left to halve."""
    if sizes.stack == sizes.block == sizes.width == 1:
        raise MemoryError("a single model does not fit into the memory of the device")
    return replace(
        sizes,
        stack=max(1, sizes.stack // 2),
        block=max(1, sizes.block // 2),
        width=max(1, sizes.width // 2),
    )


def sizes_for(task: Task) -> Sizes:
    """Sizes that fit the device: a function of the task and the kind of device, so that results repeat."""
    budget = memory_budget(torch.device(task.device))
    cohort = expected_cohort(task.mechanism.sampling, task.federation.num_users)
    item = torch.finfo(task.dtype).bits // 8
    block = _fit(budget // 4, task.model.layout.dim * item * (2 * cohort + 4), 1000)
    return Sizes(stack=256, block=block, width=512)


def part_size_for(task: Task) -> int:
    """Replicas in a part: large enough to fill the device, small enough that a crash costs little."""
    inputs = len(task.federation.test_features) * task.federation.num_classes
    each = 4 * (2 * task.model.layout.dim + 3 * inputs)
    most = 1024 if torch.device(task.device).type == "cuda" else 128
    return _fit(_PART_BYTES, each, most)


def memory_budget(device: torch.device) -> int:
    """Bytes the engine may use: half of a GPU's memory, an eighth of the host's but at most 2 GiB."""
    if device.type == "cuda":
        return int(torch.cuda.get_device_properties(device).total_memory) // 2
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(total // 8, 2 << 30))


def _fit(budget: int, each: float, most: int) -> int:
    """Largest power of two of items of `each` bytes within `budget`, at least 1 and at most `most`."""
    count = max(1, min(int(budget / each), most))
    return 1 << (count.bit_length() - 1)
