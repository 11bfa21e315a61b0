"""The app in Flower's simulation, without a SuperLink: python simulate.py --users 48 --out runs/flower."""

import argparse
from pathlib import Path

from digits_app.client_app import app as client_app
from digits_app.server_app import Settings, run
from flwr.app import Context
from flwr.serverapp import Grid, ServerApp
from flwr.simulation import run_simulation


def simulate(settings: Settings) -> None:
    """Run the app with `settings.users` virtual nodes on the cores of this machine."""
    server_app = ServerApp()

    @server_app.main()
    def main(grid: Grid, context: Context) -> None:
        run(grid, settings)

    run_simulation(
        server_app,
        client_app,
        num_supernodes=settings.users,
        backend_config={
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
            "init_args": {"address": "local", "include_dashboard": False},  # never a cluster left by others
        },
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, default=48)
    parser.add_argument("--replicas", type=int, default=200)
    parser.add_argument("--part-size", type=int, default=100)
    parser.add_argument("--max-epsilon", type=float, default=0.0)
    # All nodes are on this machine: none is lost by waiting, and an update that comes late is.
    parser.add_argument("--timeout", type=float, default=600.0)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    simulate(
        Settings(
            out=str(options.out.resolve()),
            users=options.users,
            replicas=options.replicas,
            part_size=options.part_size,
            max_epsilon=options.max_epsilon,
            timeout=options.timeout,
        )
    )
