"""Pieces of work on the cores of a CPU: one piece for each core, not all cores for each operation.

Small operations that are split among cores wait for each other, and wait long where other programs run too:
scoring with two threads was measured five times slower than with one on a busy machine with two cores.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TypeVar

import torch

Item = TypeVar("Item")


@contextmanager
def free_cores(device: torch.device) -> Iterator[int]:
    """Number of pieces to do at once; meanwhile every operation of torch keeps to one core of the CPU."""
    threads = torch.get_num_threads()
    if device.type != "cpu" or threads == 1:
        yield 1
        return
    torch.set_num_threads(1)
    try:
        yield threads
    finally:
        torch.set_num_threads(threads)


def on_cores(work: Callable[[Item], None], items: Iterable[Item], cores: int) -> None:
    """Call `work` for every item, `cores` of them at a time.

    Items must write to different places: the result is then the same as one after the other.
    """
    if cores == 1:
        for item in items:
            work(item)
        return
    with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
        for _ in pool.map(work, items):
            pass
