"""The figures of the house can be had: what counts the calls from `run` to a step still runs every way."""

import pytest

from tools import house


@pytest.mark.slow
@pytest.mark.parametrize("way", house.PATHS)
def test_every_way_to_a_step_is_counted(way):
    found = house.chains(house.ROOT, *house.PATHS[way])
    assert found
    assert all(" calls: experiment.run > engines.train_ensemble > " in one for one in found)
