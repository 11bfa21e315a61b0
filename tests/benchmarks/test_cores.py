"""A network of the user's keeps two cores busy; by processor time, for machines are busy."""

from benchmarks.cores import idle_ratio, task


def test_training_is_dealt_out_to_cores():
    assert 1.6 < idle_ratio(task(), 2, replicas=4) <= 2.001
