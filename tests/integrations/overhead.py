"""What the strategy adds to a round of Flower's simulation whose nodes do nothing: one line of JSON.

python tests/integrations/overhead.py: 20 nodes, 100,000 parameters, every node in every cohort. The strategy
(choose, build messages, clip, noise, account) is measured by its thread's CPU time, the exchange by that of
this process and all its workers: neither counts the time in which others have the cores.
"""

import contextlib
import json
import time

import numpy as np
import psutil
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation

from fedproof import Everyone, UserFedAvg
from fedproof.integrations.flower import UserFedAvgStrategy, wait_for_nodes

NODES, PARAMETERS, ROUNDS = 20, 100_000, 12
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def nothing(message: Message, context: Context) -> Message:
    """Send the model back."""
    return Message(RecordDict({"arrays": message.content["arrays"]}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    """Measure the rounds."""
    mechanism = UserFedAvg(rounds=ROUNDS, noise_multiplier=1.0, sampling=Everyone())
    strategy = UserFedAvgStrategy(mechanism, num_users=NODES, delta=1e-5, seed=0)
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
