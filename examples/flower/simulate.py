"""The app in Flower's simulation, without a SuperLink: python simulate.py --users 48 --out runs/flower."""

import argparse
from dataclasses import fields, replace
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
    # All nodes are on this machine: none is lost by waiting, and an update that comes late is.
    default = replace(Settings(), timeout=600.0)
    for field in fields(Settings):
        value = getattr(default, field.name)
        required = field.name == "out"
        parser.add_argument(
            f"--{field.name.replace('_', '-')}", type=type(value), default=value, required=required
        )
    options = parser.parse_args()
    simulate(Settings(**vars(options) | {"out": str(Path(options.out).resolve())}))
