"""What the strategy adds to a round of Flower's simulation whose nodes do nothing: one line of JSON.

python tests/integrations/overhead.py: 20 nodes, 100,000 parameters, every node in every cohort. The exchange
is timed by the clock, the strategy (choose, build messages, clip, noise, account) by its thread's CPU time;
its time by the clock is printed too. Both grow when other work shares the cores and their caches.
"""

import json
import statistics
import time

import numpy as np
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
    """Time the rounds, the first two left out: they start the workers."""
    mechanism = UserFedAvg(rounds=ROUNDS, noise_multiplier=1.0, sampling=Everyone())
    strategy = UserFedAvgStrategy(mechanism, num_users=NODES, delta=1e-5, seed=0)
    arrays = ArrayRecord({"w": Array(np.zeros(PARAMETERS, dtype=np.float32))})
    wait_for_nodes(grid, NODES, timeout=60)
    rows = []
    for number in range(1, ROUNDS + 1):
        cpu, clock = time.thread_time(), time.perf_counter()
        messages = list(strategy.configure_train(number, arrays, ConfigRecord(), grid))
        cpu, clock = time.thread_time() - cpu, time.perf_counter() - clock
        start = time.perf_counter()
        replies = grid.send_and_receive(messages, timeout=60)
        exchange = time.perf_counter() - start
        more_cpu, more_clock = time.thread_time(), time.perf_counter()
        arrays, _ = strategy.aggregate_train(number, replies)
        cpu, clock = cpu + time.thread_time() - more_cpu, clock + time.perf_counter() - more_clock
        rows.append((exchange, cpu, clock))
    exchange, cpu, clock = (statistics.median(column) for column in zip(*rows[2:], strict=True))
    result = {"exchange": exchange, "strategy_cpu": cpu, "strategy_clock": clock, "share": cpu / exchange}
    print(json.dumps(result), flush=True)


if __name__ == "__main__":
    config = {
        "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        "init_args": {"address": "local", "include_dashboard": False},
    }
    run_simulation(server_app, client_app, num_supernodes=NODES, backend_config=config)
