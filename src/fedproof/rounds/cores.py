"""Pieces of work on the cores of a CPU: one piece for each core, not all cores for each operation.

Small operations that are split among cores wait for each other, and wait long where other programs run too:
scoring with two threads was measured five times slower than with one on a busy machine with two cores. How
sums are split also decides their last bits, so one core for each operation makes results the same everywhere.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Lock, local
from typing import TypeVar

import torch

from fedproof.models.precision import all_digits

Item = TypeVar("Item")


class _Asked:
    """How many threads the host program asked torch for, while some of its own threads train.

    Torch keeps a number for each thread, and one that threads take over when they are new. Both are changed
    while somebody trains, so the host's own number is only known before the first comes in.
    """

    def __init__(self) -> None:
        self._lock, self._inside, self._number = Lock(), 0, 1
        self._here = local()

    def enter(self) -> int:
        """The host's number; from now on this thread has one."""
        with self._lock:
            if not self._inside:
                self._number = torch.get_num_threads()
            self._inside += 1
            self._here.depth = getattr(self._here, "depth", 0) + 1
            _one_core()
            return self._number

    def leave(self) -> None:
        """Give the host's number back to this thread, unless it is still inside."""
        with self._lock:
            self._inside -= 1
            self._here.depth -= 1
            if not self._here.depth:
                torch.set_num_threads(self._number)


_asked = _Asked()


def _one_core() -> None:
    """Let this thread keep to one core, whatever other threads ask for later."""
    torch.get_num_threads()  # a thread takes over the common number at its first operation: this is the first
    torch.set_num_threads(1)


@contextmanager
def free_cores(device: torch.device) -> Iterator[int]:
    """Number of pieces to do at once; meanwhile every operation of torch keeps to one core of the CPU.

    May be entered again by who is inside, and by several threads at once: all get the number that the host
    program asked for, and leave it as it was.
    """
    if device.type != "cpu":
        yield 1
        return
    cores = _asked.enter()
    try:
        yield cores
    finally:
        _asked.leave()


def on_cores(work: Callable[[Item], None], items: Iterable[Item], cores: int) -> None:
    """Call `work` for every item, `cores` of them at a time.

    Items must write to different places: the result is then the same as one after the other.
    """
    if cores == 1:
        for item in items:
            work(item)
        return
    # What torch and NumPy are asked for is often asked for a single thread: each of these has to be told.
    with ThreadPoolExecutor(cores, initializer=_one_core) as pool:
        for _ in pool.map(all_digits()(work), items):
            pass
