"""How much is trained at once: as much as the device's memory, or a CPU's cache, allows."""

import os
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.graph import saved_tensors_hooks

from fedproof import check
from fedproof.ensemble.task import Task, cohort_size, population_of, shares_first_round
from fedproof.models.model import as_inputs
from fedproof.models.precision import all_digits

_PART_BYTES = 512 << 20  # models and scores of one part, on the host
_CACHE_BYTES = 64 << 20  # what a core of a CPU works on at a time; measured: larger stacks are slower
_WORKSPACE = 3  # gradients and temporary copies beside what a forward pass keeps


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much work is done at once.

    Attributes:
        stack: (replica, user) pairs trained as one batched program.
        block: replicas that go through the rounds together.
        cells: (replica, test input) pairs scored at once.
    """

    stack: int
    block: int
    cells: int

    def __post_init__(self) -> None:
        check.count(stack=self.stack, block=self.block, cells=self.cells)


def halved(sizes: Sizes) -> Sizes:
    """Half of everything, after the device ran out of memory; MemoryError if nothing is left to halve."""
    if sizes.stack == sizes.block == sizes.cells == 1:
        raise MemoryError("a single model does not fit into the memory of the device")
    return replace(
        sizes,
        stack=max(1, sizes.stack // 2),
        block=max(1, sizes.block // 2),
        cells=max(1, sizes.cells // 2),
    )


@all_digits()
def sizes_for(task: Task) -> Sizes:
    """Sizes that fit the device: a function of public numbers and the kind of device, so that results repeat.

    Nobody's data enter: shapes decide the last bits of what is computed.
    """
    device = torch.device(task.device)
    budget = memory_budget(device)
    # Small stacks on a CPU, so that there is one for every core.
    working, most = (_CACHE_BYTES, 512) if device.type == "cpu" else (budget // 2, 4096)
    # Where round one is shared, a replica holds updates of its own from round two on.
    pooled = task.mechanism.pooled
    alone = task.mechanism.rounds > 1 or not shares_first_round(task) or not shared_fits(task)
    alone = alone and not pooled
    cohort = cohort_size(task) if alone else 0
    model_bytes = task.model.layout.dim * torch.finfo(task.dtype).bits // 8
    instance_bytes = _instance_bytes(task)
    limit = None if pooled else task.units.most_instances
    batch = min(task.local.batch_size, limit or task.local.batch_size)
    return Sizes(
        stack=_fit(working, _WORKSPACE * (batch * instance_bytes + 2 * model_bytes), most),
        block=_fit(budget // 4, model_bytes * (2 * cohort + 8), 1024),
        cells=_fit(working, _WORKSPACE * instance_bytes, 1 << 22),
    )


def shared_fits(task: Task) -> bool:
    """Whether the round-one updates of all users fit into the device's memory beside the training."""
    entries = population_of(task) * task.model.layout.dim
    return entries * torch.finfo(task.dtype).bits // 8 <= memory_budget(torch.device(task.device)) // 4


def part_size_for(task: Task) -> int:
    """Replicas in a part: large enough to fill the device, small enough that a crash costs little."""
    inputs = len(task.federation.test_features) * task.federation.num_classes
    each = 4 * (2 * task.model.layout.dim + 3 * inputs)
    most = 1024 if torch.device(task.device).type == "cuda" else 128
    return _fit(_PART_BYTES, each, most)


def memory_budget(device: torch.device) -> int:
    """Bytes the engine may use: half of this process's share of a GPU, an eighth of the host, at most 2 GiB.

    Of all memory, not of what happens to be free: the same sizes, hence the same bytes, in every run. A
    process has all of a GPU unless `torch.cuda.set_per_process_memory_fraction` says otherwise.
    """
    if device.type == "cuda":
        share = torch.cuda.get_per_process_memory_fraction(device.index)
        return int(share * torch.cuda.get_device_properties(device).total_memory) // 2
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return int(min(total // 8, 2 << 30))


def _instance_bytes(task: Task) -> int:
    """Bytes that a forward pass keeps for each further instance of a batch, measured on the device."""
    counted = [_kept_bytes(task, task.federation.features[:1].repeat(batch, axis=0)) for batch in (1, 9)]
    return max(64, (counted[1] - counted[0]) // 8)


def _kept_bytes(task: Task, features: NDArray[np.generic]) -> int:
    kept = [0]

    def pack(tensor: Tensor) -> Tensor:
        kept[0] += tensor.numel() * tensor.element_size()
        return tensor

    device = torch.device(task.device)
    with saved_tensors_hooks(pack, lambda tensor: tensor), torch.enable_grad():
        if task.model.stacks:
            model = task.model.to(device, torch.float32)
            params = torch.zeros(1, model.layout.dim, device=device, requires_grad=True)
            model.logits(params, as_inputs(features, device, torch.float32).unsqueeze(0))
        else:
            task.model.module()(as_inputs(features, torch.device("cpu"), torch.float32))
    return kept[0]


def _fit(budget: int, each: float, most: int) -> int:
    """Largest power of two of items of `each` bytes within `budget`, at least 1 and at most `most`."""
    count = max(1, min(int(budget / each), most))
    return 1 << (count.bit_length() - 1)
