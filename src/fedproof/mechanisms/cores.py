"""Stacks on the cores of a CPU: one stack for each core, instead of all cores for each operation."""

from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")


def on_cores(work: Callable[[Item], None], items: Iterable[Item], device: torch.device) -> None:
    """Call `work` for every item, on a CPU by as many threads as torch may use, each with one core.

    Small operations that are split among cores wait for each other; independent stacks never do. Items must
    write to different places: the result is then the same as one after the other.
    """
    cores = torch.get_num_threads()
    if device.type != "cpu" or cores == 1:
        for item in items:
            work(item)
        return
    try:
        with ThreadPoolExecutor(cores, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(work, items):
                pass
    finally:
        torch.set_num_threads(cores)
