"""Federations whose servers and nodes are killed: what they run, and what of it has been shown to whom."""

import os
import sys
from collections import Counter
from importlib import import_module
from pathlib import Path

from fedproof.accounting.ledger import load_ledger

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
USERS, REPLICAS, PART, ROUNDS, SEED = 6, 6, 3, 2, 5
RELEASES = ("one-round", "anchors")
PARTS = tuple(f"{begin}-{round}" for begin in range(0, REPLICAS, PART) for round in range(1, ROUNDS + 1))
GROUPS = {  # what rounds are called in messages
    "user-fedavg": PARTS,
    "one-round": ("one-round",),
    "cohort-once": PARTS,
    "partition": ("0-1",),
    "anchors": ("one-round",),
    "groups": ("0-1", "0-2"),
    "local": ("one-round",),
}
SETTINGS = {
    "rounds": ROUNDS, "probability": 0.5, "noise_multiplier": 1.0, "replicas": REPLICAS, "part_size": PART,
    "local_epochs": 2, "groups": 2, "anchors": 8, "local_noise": 1.0,
}  # fmt: skip


def example(name):
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    return import_module(name)


def serve(kind, grid, folder):
    """What the server of the example does, on a grid that answers at once."""
    os.environ["FEDPROOF_SEED"] = str(SEED)
    server_app = example("digits_app.server_app")
    waits = {"timeout": 60.0, "connect_timeout": 60.0}
    told = {"strategy": kind, "out": str(folder), "users": USERS}
    server_app.run(grid, server_app.Settings(**told, **waits, **SETTINGS))


def must_count(kind, folder, sent):
    """How many releases each ledger must count, by the folder and by what was sent to nodes."""
    there = (folder / "certificate.json").exists()
    if kind == "local":  # whoever was asked twice may have sent twice
        asked = Counter(node for line in sent for node in line["shown"])
        return {folder / "ledger.json": max(asked.values(), default=0)}
    if kind in RELEASES:
        return {folder / "ledger.json": int(there or (folder / "release.npz").exists())}
    if kind not in ("user-fedavg", "cohort-once"):
        return {}
    shown = {}
    for begin in range(0, REPLICAS, PART):
        part = folder / f"part-{begin:05d}"
        # A message of round r carries the model of round r - 1; files of models may be published.
        asked = [line["round"] - 1 for line in sent if line["group"].startswith(f"{begin}-")]
        kept = [int(path.stem.split("-")[1]) for path in part.glob("models-*.npz")]
        shown[part / "ledger.json"] = PART * max([ROUNDS * there, *asked, *kept])
    return shown | {folder / "ledger.json": sum(shown.values())}


def counted(path):
    """Releases with noise of one clip norm that a ledger counts: of each replica, or of the one model."""
    if not path.exists():
        return 0
    ledger = load_ledger(path)
    return ledger.replicas * sum(query.count / query.noise_multiplier**2 for query in ledger.queries)
