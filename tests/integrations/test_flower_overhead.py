"""The strategies cost little beside what Flower itself does in a round, and hold little."""

import json
import os
import sys
import tracemalloc
from pathlib import Path

import numpy as np
import pytest

from fedproof.mechanisms import OneRound
from fedproof.mechanisms.uploads import Rows
from tests.patience import finished

# Of the CPU time. Two idle cores share the work of a round, which makes it a tenth by the clock.
LARGEST = 0.06
BESIDE_FEDAVG = 1.1  # CPU time of one upload from everybody over that of a round of Flower's FedAvg
PARAMETERS, NODES = 1_300_000, 12


@pytest.mark.slow
@pytest.mark.speed
def test_overhead_is_at_most_a_tenth_of_a_round_that_does_nothing():
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    pytest.importorskip("ray", reason="Flower's simulation needs ray: pip install 'flwr[simulation]'")
    quiet = {"FLWR_TELEMETRY_ENABLED": "0", "RAY_USAGE_STATS_ENABLED": "0"}
    script = Path(__file__).with_name("overhead.py")
    best: dict[str, float] = {"share": 1.0}
    ratio = np.inf
    for _ in range(3):  # other tests share the caches: the least disturbed of three
        done = finished([sys.executable, script, str(PARAMETERS)], env=os.environ | quiet)
        assert done.returncode == 0, done.stderr[-3000:]
        lines = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]
        best = min(best, lines[0], key=lambda found: found["share"])
        ratio = min(ratio, lines[1]["ratio"])
        if best["share"] <= LARGEST and ratio <= BESIDE_FEDAVG:
            break
    assert best["share"] <= LARGEST, best
    assert ratio <= BESIDE_FEDAVG


@pytest.mark.slow
def test_uploads_are_added_up_as_they_come_and_not_collected(flower, make_grid, tmp_path):
    """The server holds less than three models, the numbers of a model being as it sums and publishes them."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    upload = Rows(features=PARAMETERS // 10, classes=10)
    head = Array(np.random.default_rng(0).normal(size=upload.shape).astype(np.float32))
    grid, sent = make_grid(dict.fromkeys(range(NODES))), {}

    def push(message):
        message.metadata.__dict__["_message_id"] = name = str(len(sent))
        sent[name] = message
        return name

    grid.push = push

    def arrived(message):
        fresh = Array(dtype=head.dtype, shape=head.shape, stype=head.stype, data=bytes(memoryview(head.data)))
        return Message(RecordDict({"upload": ArrayRecord({"upload": fresh})}), reply_to=message)

    grid.pull_messages = lambda names: [arrived(sent.pop(name)) for name in names]
    mechanism = OneRound(upload=upload, noise_multiplier=1.0)
    strategy = flower.OneRoundStrategy(
        mechanism, num_users=NODES, delta=0.01, folder=tmp_path, connect_timeout=0.0
    )
    small = OneRound(upload=Rows(features=1, classes=2), noise_multiplier=1.0)
    with pytest.raises(flower.TooFewRepliesError):  # whatever is imported when it is used
        flower.OneRoundStrategy(small, num_users=1, delta=0.01, connect_timeout=0.0).start(make_grid({}))
    tracemalloc.start()
    try:
        strategy.start(grid)
        largest = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert strategy.metrics[0]["replied"] == NODES
    print(f"peak: {largest / (8 * PARAMETERS):.2f} models of eight bytes a number")
    assert largest <= 3 * 8 * PARAMETERS
