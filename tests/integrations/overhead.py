"""What the strategy adds to a round of Flower's simulation whose nodes do nothing: one line of JSON.

python tests/integrations/overhead.py: 20 nodes, 100,000 parameters, every node in every cohort. The strategy
(choose, build messages, clip, noise, account) is measured by its thread's CPU time, the exchange by that of
this process and all its workers: neither counts the time in which others have the cores.

python tests/integrations/overhead.py 1300000: then one upload of so many numbers from each node, and the same
round of Flower's own FedAvg, both by the CPU time of all that takes part.
"""

import contextlib
import json
import sys
import time

import numpy as np
import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from fedproof import Everyone, OneRound, UserFedAvg
from fedproof.integrations.flower import OneRoundStrategy, RoundsStrategy, upload_reply, wait_for_nodes
from fedproof.mechanisms.uploads import Rows

NODES, PARAMETERS, ROUNDS, CLASSES = 20, 100_000, 12, 10
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def nothing(message: Message, context: Context) -> Message:
    """Send the model back, or numbers as many as are asked for: a head, or a model of one array."""
    arrays, config = message.content["arrays"], message.content["config"]
    if "width" in config:
        sent = np.ones((int(config["width"]), CLASSES), dtype=np.float32)
        if "upload" in config:
            return upload_reply(message, sent)
        arrays = ArrayRecord({"w": Array(sent)})
    weight = MetricRecord({"num-examples": 1})
    return Message(RecordDict({"arrays": arrays, "weight": weight}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure the rounds."""
    mechanism = UserFedAvg(rounds=ROUNDS, noise_multiplier=1.0, sampling=Everyone())
    strategy = RoundsStrategy(mechanism, num_users=NODES, delta=1e-5, seed=0)
    arrays = ArrayRecord({"w": Array(np.zeros(PARAMETERS, dtype=np.float32))})
    wait_for_nodes(grid, NODES, timeout=3600)
    strategy_cpu = exchange_cpu = 0.0
    for number in range(1, ROUNDS + 1):
        started = time.thread_time()
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        cpu = time.thread_time() - started
        before = computed()
        replies = grid.send_and_receive(messages, timeout=3600)
        exchange = computed() - before
        started = time.thread_time()
        arrays, _ = strategy.aggregate_train(number, replies)
        cpu += time.thread_time() - started
        if number > 2:  # the first two start the workers
            strategy_cpu, exchange_cpu = strategy_cpu + cpu, exchange_cpu + exchange
    result = {"exchange": exchange_cpu, "strategy": strategy_cpu, "share": strategy_cpu / exchange_cpu}
    print(json.dumps(result), flush=True)
    if len(sys.argv) > 1:
        print(json.dumps(beside_fedavg(grid, int(sys.argv[1]))), flush=True)


def beside_fedavg(grid: Grid, parameters: int) -> dict[str, float]:
    """CPU seconds of a round of Flower's FedAvg and of one upload from everybody, of as many parameters."""
    upload = Rows(features=parameters // CLASSES, classes=CLASSES)
    arrays = ArrayRecord({"w": Array(np.zeros(upload.shape, dtype=np.float32))})
    cpu = {"fedavg": 0.0, "one-round": 0.0}
    for _ in range(3):
        before = computed()
        told = ConfigRecord({"width": upload.shape[0]})
        FedAvg(fraction_evaluate=0.0).start(grid, arrays, num_rounds=1, timeout=3600, train_config=told)
        cpu["fedavg"] += computed() - before
        strategy = OneRoundStrategy(
            OneRound(upload=upload, noise_multiplier=1.0), num_users=NODES, delta=1e-5, seed=0
        )
        before = computed()
        strategy.start(grid, timeout=3600, train_config=ConfigRecord({"width": upload.shape[0]}))
        cpu["one-round"] += computed() - before
        assert strategy.metrics[0]["replied"] == NODES
    return cpu | {"ratio": cpu["one-round"] / cpu["fedavg"]}


def computed() -> float:
    """CPU seconds of this process and all that it started."""
    total, this = 0.0, psutil.Process()
    for one in (this, *this.children(recursive=True)):
        with contextlib.suppress(psutil.NoSuchProcess):
            times = one.cpu_times()
            total += times.user + times.system
    return total


if __name__ == "__main__":
    config = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"address": "local", "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=NODES, backend_config=config)
