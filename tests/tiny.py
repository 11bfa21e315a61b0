"""The configuration that tests share: a run of a second, in ten parts."""

import numpy as np

from fedproof.config import parse_config

TINY = """
[data]
name = "digits"
classes = [0, 1]
users = 24
[mechanism]
rounds = 2
cohort = 8
noise_multiplier = 3.0
delta = 0.01
batch_size = 4
learning_rate = 0.5
[ensemble]
seed = 0
replicas = 40
part_size = 4
[certificate]
method = "mean"
max_size = 10
"""
OUTPUTS = (
    "scores.npy",
    "certificate.json",
    "metrics.csv",
    "ledger.json",
    "config.toml",
    "private/rounds.csv",
)
FRESH = TINY.replace("seed = 0\n", "")  # the operating system draws the seed


def tiny(*overrides):
    return parse_config(TINY, "tiny", overrides)


def seeded(folder):
    """The configuration of `FRESH` with the seed that its run in `folder` drew."""
    seed = int((folder / "private" / "seed").read_text(), 16)
    return tiny(f"ensemble.seed={seed}")


def outputs(folder):
    """All that a run promises to be the same, by name."""
    return {name: (folder / name).read_bytes() for name in OUTPUTS}


def with_noise(mechanism, total, normal):
    """A sum on the grid of a mechanism, and rounded noise made of given standard normal numbers."""
    return total + np.rint(normal * mechanism.grid.scale).astype(np.int64)


def by_accountant(privacy, *covers, relation=None):
    """ε by accountant of what is covered, of `Spent` values or of what files hold of them."""
    rows = [one if isinstance(one, dict) else vars(one) for one in privacy]
    rows = [one for one in rows if one["covers"] in covers and relation in (None, one["relation"])]
    found = {}
    for one in rows:
        found.setdefault(one["accountant"], one["epsilon"])
    return found
