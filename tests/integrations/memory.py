"""A server of one release, as a process of its own: bytes of its memory at the most, and who was not heard.

python tests/integrations/memory.py PORT: the SuperLink answers there, see test_flower_memory.py.
"""

import json
import sys
from pathlib import Path

from flwr.supercore.run import Run
from flwr.supercore.task_identity import TaskIdentity
from flwr.superlink.grid.http_grid import HttpGrid

from fedproof import OneRound
from fedproof.integrations.flower import OneRoundStrategy
from fedproof.mechanisms.uploads import Rows

USERS, ROWS = 120, Rows(features=66, classes=10)  # 2.6 kB in single precision


def main(port: str) -> None:
    """Ask everybody once."""
    TaskIdentity._task_id = TaskIdentity._run_id = TaskIdentity._node_id = 1
    grid = HttpGrid(f"127.0.0.1:{port}", insecure=True, token="none")
    grid.set_run(Run.create_empty(1))
    strategy = OneRoundStrategy(
        OneRound(upload=ROWS, noise_multiplier=1.0), num_users=USERS, delta=0.01, connect_timeout=0.0
    )
    strategy.start(grid, timeout=60.0)
    faults = [(node, fault.value) for _, node, fault in strategy.faults]
    # Not `resource.getrusage`: that of a new process begins with the memory of the one that started it.
    status = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines())
    peak = int(status["VmHWM"].split()[0]) * 1024
    print(json.dumps({"peak": peak, "replied": strategy.metrics[0]["replied"], "faults": faults}))


if __name__ == "__main__":
    main(sys.argv[1])
