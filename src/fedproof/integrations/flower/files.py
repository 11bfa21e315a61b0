"""A training's folder: its state after every round, whole or as it was before, and its ledger.

What ε does not cover, metrics of rounds and who is who, lies in `private`.
"""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from fedproof.accounting.ledger import Ledger, load_ledger, save_ledger
from fedproof.arrays import Floats
from fedproof.files import locked, replace_file, replacing
from fedproof.folder import NOTICE, PRIVATE
from fedproof.integrations.server import Params, Plan, State

_RECORD = f"{PRIVATE}/state.json"
_LEDGER = "ledger.json"
_NOTE = """\
Keep {secrets} to yourself; models and ledger.json may be published.

ε covers the models. It does not cover private/state.json: how many took part, replied and were clipped in
every round, which no noise hides, and which node is which user.
"""


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
    digest = hashlib.sha256(repr((plan, plan.seed, delta, initial.dtype.str, initial.shape)).encode())
    digest.update(np.ascontiguousarray(initial).data)
    return digest.hexdigest()


def say_what_is_private(folder: Path, plan: Plan) -> None:
    """Leave a note in the folder on what of it may be published."""
    folder.mkdir(parents=True, exist_ok=True)
    secrets = f"{PRIVATE}/" if plan.seed is None else f"{PRIVATE}/ and the seed"
    replace_file(folder / NOTICE, _NOTE.format(secrets=secrets).encode())


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Make the folder, and keep other servers out: one that lost its SuperLink may still be running."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", f"folder = {folder}"):
        yield


def save(folder: Path, mark: str, saved: Saved, ledger: Ledger) -> None:
    """Write the ledger, then the models, then the record that makes them count.

    A crash in between leaves a ledger that counts one round more than the record. That round was shown to
    nobody, so it may be played again.
    """
    folder.mkdir(parents=True, exist_ok=True)
    save_ledger(ledger, folder / _LEDGER)
    models = folder / f"models-{saved.state.round:05d}.npz"
    with replacing(models) as file:
        np.savez(file, params=saved.state.params, clip_norms=saved.state.clip_norms)
    record = {
        "training": mark,
        "round": saved.state.round,
        "models": models.name,
        "sha256": _digest(models),
        "users": {str(node): number for node, number in saved.users.items()},
        "metrics": saved.metrics,
    }
    (folder / PRIVATE).mkdir(mode=0o700, exist_ok=True)
    replace_file(folder / _RECORD, (json.dumps(record, indent=1) + "\n").encode(), mode=0o600)
    for old in folder.glob("models-*.npz"):
        if old != models:
            old.unlink()


def load(folder: Path, mark: str) -> Saved | None:
    """What `folder` holds of this training, None if nothing.

    Raises:
        ValueError: it holds another training, or a file was altered or is missing.
    """
    try:
        record = json.loads((folder / _RECORD).read_text())
    except FileNotFoundError:
        _check_counted(folder, 0)
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
    _check_counted(folder, int(record["round"]))
    with np.load(models, allow_pickle=False) as file:
        params: Params = file["params"]
        clip_norms: Floats = file["clip_norms"]
    return Saved(
        state=State(round=int(record["round"]), params=params, clip_norms=clip_norms),
        users={int(node): int(number) for node, number in record["users"].items()},
        metrics=record["metrics"],
    )


def _check_counted(folder: Path, done: int) -> None:
    """Refuse a state that is older than what was released: its rounds would be played again.

    The noise of a round is decided by the seed, so two releases of it would give the updates away.
    """
    ledger = folder / _LEDGER
    counted = load_ledger(ledger).queries[0].count if ledger.exists() else 0
    if counted > done + 1:
        raise ValueError(
            f"folder = {folder}: the ledger counts {counted} rounds, the state holds {done}: models that "
            "were released are missing, and must not be trained again with the same noise; choose another"
        )


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
