"""Where a piece of work stands follows from public numbers."""

import numpy as np
import pytest

from fedproof.rounds.stacking import LANES, Stacking, taken


@pytest.mark.parametrize("rigid", [False, True])
@pytest.mark.parametrize("size", [1, 2, 8, 64, 256])
def test_every_piece_stands_once_in_its_lane(size, rigid):
    rng = np.random.default_rng(size)
    work, lane = rng.integers(0, 9, 700), rng.integers(0, 2**40, 700)
    stacking = Stacking(size=size, rigid=rigid)
    stacks = list(stacking.stacks(work, lane, 700.0, 5.0))
    assert sorted(np.concatenate([stack[stack >= 0] for stack in stacks]).tolist()) == list(range(700))
    for stack in stacks:
        places = np.flatnonzero(stack >= 0)
        assert (places % stacking.lanes == lane[stack[places]] % stacking.lanes).all()
        assert len(stack) <= max(size, stacking.lanes)


def test_rigid_stacks_are_all_alike_whatever_there_is_to_do():
    rng, lengths = np.random.default_rng(0), set()
    for count in (180, 200, 215):
        lane = np.arange(count)
        stacks = Stacking(size=64, rigid=True).stacks(rng.integers(1, 99, count), lane, 200.0, 5.0)
        lengths |= {len(stack) for stack in stacks}
    assert len(lengths) == 1


def test_the_longest_come_first_and_a_stack_shrinks_by_whole_rows():
    work = np.arange(40)
    (stack,) = Stacking(size=64).stacks(work, np.arange(40), 40.0)
    ahead = taken(work, stack)
    assert Stacking(size=64).reached(ahead, 39) == 0
    assert Stacking(size=64).reached(ahead, 30) == LANES
    assert Stacking(size=64, rigid=True).reached(ahead, 39) == len(stack)
    for lane in range(LANES):
        column = ahead[lane::LANES]
        assert (np.diff(column) <= 0).all()
