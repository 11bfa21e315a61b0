"""Writes one file for each node of a deployment: python make_data.py --users 5 --out data."""

import argparse
from pathlib import Path

import numpy as np
from digits_app.data import simulated_users


def main() -> None:
    """Deal the digits out to the nodes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--users", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    for user, (features, labels) in enumerate(simulated_users(options.users)):
        np.savez(options.out / f"user-{user}.npz", features=features, labels=labels)


if __name__ == "__main__":
    main()
