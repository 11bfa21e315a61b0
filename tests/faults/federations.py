"""Federations whose servers and nodes are killed: what they run, and what of it has been shown to whom."""

import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"
REPLICAS, PART, ROUNDS = 6, 3, 2


@dataclass(frozen=True, kw_only=True)
class Federation:
    """One kind of deployment.

    Attributes:
        client_app: the app of a node.
        serve: does a server's work on a grid, in a folder, among so many users.
        groups: what the rounds are called in messages.
        shown: how many releases each ledger must count, by the folder and what was sent to nodes.
        outputs: files that are the same whoever was killed.
    """

    client_app: Callable
    serve: Callable
    groups: tuple[str, ...]
    shown: Callable
    outputs: tuple[str, ...]


def example(name):
    if str(EXAMPLE) not in sys.path:
        sys.path.insert(0, str(EXAMPLE))
    return import_module(name)


# --- replicas in rounds -------------------------------------------------------------------------------------


def serve_user_fedavg(grid, folder, users):
    os.environ["FEDPROOF_SEED"] = "5"
    server_app = example("digits_app.server_app")
    settings = server_app.Settings(
        out=str(folder), users=users, rounds=ROUNDS, probability=0.5, noise_multiplier=1.0, replicas=REPLICAS,
        part_size=PART, local_epochs=2, timeout=1.0, connect_timeout=0.0,
    )  # fmt: skip
    server_app.run(grid, settings)


def shown_in_rounds(folder, sent):
    """A message of round r carries the model of round r - 1; files of models may be published."""
    parts = {}
    for begin in range(0, REPLICAS, PART):
        part = folder / f"part-{begin:05d}"
        asked = [line["round"] - 1 for line in sent if line["group"].startswith(f"{begin}-")]
        kept = [int(path.stem.split("-")[1]) for path in part.glob("models-*.npz")]
        parts[part / "ledger.json"] = PART * max([0, *asked, *kept])
    if (folder / "certificate.json").exists():
        parts = dict.fromkeys(parts, PART * ROUNDS)
    return parts | {folder / "ledger.json": sum(parts.values())}


FEDERATIONS = {
    "user-fedavg": Federation(
        client_app=lambda: example("digits_app.client_app").app,
        serve=serve_user_fedavg,
        groups=tuple(f"{begin}-{round}" for begin in range(0, REPLICAS, PART) for round in (1, 2)),
        shown=shown_in_rounds,
        outputs=("certificate.json", "scores.npy", "labels.npy", "ledger.json"),
    ),
}
