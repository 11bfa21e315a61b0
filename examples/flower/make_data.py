"""Writes one file for each node of a deployment: python make_data.py --users 5 --out data."""

import argparse
from pathlib import Path

import numpy as np
from digits_app.data import simulated_users


def make_data(users: int, out: Path) -> None:
    """Deal the digits out to the nodes: `user-I.npz` for each."""
    out.mkdir(parents=True, exist_ok=True)
    for user, (features, labels) in enumerate(simulated_users(users)):
        np.savez(out / f"user-{user}.npz", features=features, labels=labels)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    make_data(options.users, options.out)
