"""Pieces of work in stacks, and stacks on cores, so that nobody's neighbours change one bit of a model.

What a batched operation computes for one model depends, in its last bits, on the shape of the batch and on
where in memory the model lies (kernels begin at aligned addresses), never on what its neighbours hold. Hence
the law of this file: the lane a model is trained in, and all shapes, follow from public numbers, not from the
data. Who is trained beside it may depend on anything, so models of like size can share a stack.

A core takes one stack, not all cores every operation. Small operations that are split among cores wait for
each other, and wait long where other programs run too: scoring with two threads was measured five times
slower than with one on a busy machine with two cores. How sums are split also decides their last bits, so one
core for each operation makes results the same everywhere.
"""

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock, local
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray

from fedproof.models.precision import all_digits

LANES = 16  # of float32, the 64 bytes that memory is aligned to: places this far apart are equal
_ROWS = 64  # of lanes; so many are at least four stacks, so that a few long pieces do not hold up all others


@dataclass(frozen=True, kw_only=True)
class Stacking:
    """How pieces of work are put together.

    Attributes:
        size: pieces in a stack, as the memory allows.
        rigid: whether every stack has exactly the same shape, as kernels need that choose their way by it;
            else the last one may be shorter, and a stack shrinks as pieces end.
    """

    size: int
    rigid: bool = False

    @property
    def lanes(self) -> int:
        """Number of lanes."""
        return min(LANES, self.size)

    def stacks(
        self, work: NDArray[np.int64], lane: NDArray[np.int64], expected: float, spread: float = 0.0
    ) -> Iterator[NDArray[np.int64]]:
        """Stacks `(places,)` of the pieces 0, 1, ...; -1 where a place is empty.

        Guarantee: a piece stands in a place that is `lane[piece]` modulo the number of lanes, and the length
        of rigid stacks depends on `expected` and `spread` alone.

        Args:
            work: how much there is to do for each piece; pieces of like work share a stack.
            lane: of each piece, a public number.
            expected: how many pieces there are on average, a public number.
            spread: standard deviation of this number.

        >>> [stack.tolist() for stack in Stacking(size=2).stacks(np.array([1, 5, 9]), np.array([0, 1, 2]), 3)]
        [[2, 1], [0, -1]]
        """
        if not len(work):
            return
        lanes, order = lane % self.lanes, np.argsort(-work, kind="stable")
        counts = np.bincount(lanes, minlength=self.lanes)
        rows = np.empty_like(order)
        for number in range(self.lanes):
            rows[lanes[order] == number] = np.arange(counts[number])
        height, length = self._height(int(counts.max()), expected + 4 * spread)
        grid = np.full((length, self.lanes), -1, dtype=np.int64)
        grid[rows, lanes[order]] = order
        for begin in range(0, length, height):
            yield grid[begin : begin + height].ravel()

    def _height(self, rows: int, most_pieces: float) -> tuple[int, int]:
        """Rows of lanes in a stack, and in all of them together."""
        most = max(1, self.size // self.lanes)
        if not self.rigid:
            return most, rows
        planned = max(1, int(np.ceil(most_pieces / self.lanes)))
        stacks = max(-(-planned // most), 4 if planned >= _ROWS else 1)
        height = -(-planned // stacks)
        return height, -(-rows // height) * height

    def reached(self, work: NDArray[np.int64], done: int) -> int:
        """How many places at the front have more than `done` to do, in whole rows of lanes."""
        if self.rigid:
            return len(work)
        ahead = np.flatnonzero(work > done)
        return int(ahead[-1] // self.lanes + 1) * self.lanes if len(ahead) else 0


def taken(values: NDArray[np.int64], places: NDArray[np.int64]) -> NDArray[np.int64]:
    """`values` (pieces,) of the pieces in `places`; 0 where a place is empty."""
    return np.where(places >= 0, values[np.maximum(places, 0)], 0)


# --- cores --------------------------------------------------------------------------------------------------

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
