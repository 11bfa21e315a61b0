"""A training's folder: its state after every round, whole or as it was before, and its ledger."""

import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedproof.accounting.ledger import Ledger, save_ledger
from fedproof.integrations.server import Floats, Params, Plan, State

_RECORD = "state.json"


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a resumed training goes on from.

    Attributes:
        state: models and clip norms.
        users: number of the user behind each node.
        metrics: of each finished round.
    """

    state: State
    users: dict[int, int]
    metrics: list[dict[str, Any]]


def fingerprint(plan: Plan, delta: float, initial: Params) -> str:
    """SHA-256 over all that decides a training except the nodes."""
    digest = hashlib.sha256(repr((plan, delta, initial.dtype.str, initial.shape)).encode())
    digest.update(np.ascontiguousarray(initial).data)
    return digest.hexdigest()


def save(folder: Path, mark: str, saved: Saved, ledger: Ledger) -> None:
    """Write the ledger, then the models, then the record that makes them count.

    A crash in between leaves a ledger that may count one round too many, never one too few.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_ledger(ledger, folder / "ledger.json")
    models = folder / f"models-{saved.state.round:05d}.npz"
    partial = models.with_suffix(".tmp")
    with partial.open("wb") as file:
        np.savez(file, params=saved.state.params, clip_norms=saved.state.clip_norms)
        file.flush()
        os.fsync(file.fileno())
    digest = _digest(partial)
    partial.replace(models)
    record = {
        "training": mark,
        "round": saved.state.round,
        "models": models.name,
        "sha256": digest,
        "users": {str(node): number for node, number in saved.users.items()},
        "metrics": saved.metrics,
    }
    partial = folder / f"{_RECORD}.tmp"
    partial.write_text(json.dumps(record, indent=1) + "\n")
    partial.replace(folder / _RECORD)
    for old in folder.glob("models-*.npz"):
        if old != models:
            old.unlink()


def load(folder: Path, mark: str) -> Saved | None:
    """What `folder` holds of this training, None if nothing.

    Raises:
        ValueError: it holds another training, or a file was altered.
    """
    try:
        record = json.loads((folder / _RECORD).read_text())
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"folder = {folder}: {_RECORD} is not JSON: {error}") from error
    if record.get("training") != mark:
        raise ValueError(
            f"folder = {folder}: holds another training (mechanism, users, seed, replicas, delta or initial "
            "model differ); choose another"
        )
    models = folder / record["models"]
    if not models.exists() or _digest(models) != record["sha256"]:
        raise ValueError(f"folder = {folder}: {models.name} is missing or was altered")
    with np.load(models, allow_pickle=False) as file:
        params: Params = file["params"]
        clip_norms: Floats = file["clip_norms"]
    return Saved(
        state=State(round=int(record["round"]), params=params, clip_norms=clip_norms),
        users={int(node): int(number) for node, number in record["users"].items()},
        metrics=record["metrics"],
    )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
