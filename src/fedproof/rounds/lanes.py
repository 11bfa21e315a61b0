"""Many models trained side by side, so that nobody's neighbours change one bit of it.

What a batched operation computes for one model depends, in its last bits, on the shape of the batch and on
where in memory the model lies (kernels begin at aligned addresses), never on what its neighbours hold. Hence
the law of this file: the lane a model is trained in, and all shapes, follow from public numbers, not from the
data. Who is trained beside it may depend on anything, so models of like size can share a stack.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

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
