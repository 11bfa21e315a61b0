"""A federation's folder: its state after every round, or its one release; its ledger; its certificate.

What ε does not cover, metrics of rounds and who is who, lies in `private`.
"""

import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.ledger import Ledger, load_ledger, resumed_ledger, save_ledger
from fedproof.arrays import Floats
from fedproof.certificates import Certificate, dumps
from fedproof.data.files import sha256_of
from fedproof.digests import of_all, of_each
from fedproof.files import locked, parse_json, read_whole, replace_file, replacing
from fedproof.folder import CERTIFICATE, CONFIG, MODELS, NOTICE, PRIVATE, RELEASE
from fedproof.integrations.server import Params, State
from fedproof.mechanisms.codec import describe
from fedproof.release import Release

_RECORD = f"{PRIVATE}/state.json"
_PENDING = f"{PRIVATE}/{RELEASE}"
_LEDGER = "ledger.json"
_ROUNDS = 10_000  # that a ledger is looked for among
_COVERED = """\
Keep {secrets} to yourself; models and ledger.json may be published.

ε covers the models, and in them what a user holds, not whether it has joined: who the users are is public.
It does not cover private/state.json and private/server.log: who was drawn, replied and was clipped in every
round, which no noise hides, and which node is which user.
"""
_UNCOVERED = "No noise was added, so no ε covers anything here; in any case keep private/ to yourself.\n"

Counted = Callable[[int], Ledger | None]
"""The ledger after so many rounds; None where there is nothing to count."""


@dataclass(frozen=True, kw_only=True)
class Saved:
    """What a resumed training goes on from.

    `users` are the numbers of users behind nodes, also of those that are no longer asked; `named` is whether
    somebody said these numbers.
    """

    state: State
    users: dict[int, int]
    metrics: list[dict[str, Any]]
    named: bool


def fingerprint(*decisive: object, initial: NDArray[Any]) -> str:
    """SHA-256 over all that decides a training except the nodes; `initial` is what it starts from."""
    digest = hashlib.sha256(repr((*decisive, initial.dtype.str, initial.shape)).encode())
    digest.update(np.ascontiguousarray(initial).data)
    return digest.hexdigest()


def say_what_is_private(folder: Path, *, covered: bool, seed: int | None) -> None:
    """Leave a note in the folder on what of it may be published."""
    folder.mkdir(parents=True, exist_ok=True)
    secrets = f"{PRIVATE}/" if seed is None else f"{PRIVATE}/ and the seed"
    note = _COVERED.format(secrets=secrets) if covered else _UNCOVERED
    replace_file(folder / NOTICE, note.encode())


@contextmanager
def alone_in(folder: Path | None) -> Iterator[None]:
    """Make the folder, and keep other servers out: one that lost its SuperLink may still be running."""
    if folder is None:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", f"folder = {folder}"):
        yield


def note(folder: Path, line: str) -> None:
    """Add a line to the log that nobody but the server may see."""
    (folder / PRIVATE).mkdir(mode=0o700, parents=True, exist_ok=True)
    opener = partial(os.open, mode=0o600)
    with open(folder / PRIVATE / "server.log", "a", opener=opener) as file:
        file.write(f"{line}\n")


def check_folder(folder: Path) -> None:
    """Raise ValueError if a file is in the way, or a local run: its seed made noise, its ledger counted."""
    for part in (folder, *folder.parents):
        if part.exists() and not part.is_dir():
            raise ValueError(f"folder = {folder}: {part} is a file; choose another")
    if (folder / CONFIG).exists():
        raise ValueError(
            f"folder = {folder}: holds a local run ({CONFIG}), whose seed and ledger are its own; choose "
            "another"
        )


@contextmanager
def _deciding(folder: Path) -> Iterator[None]:
    """Keep others out while it is decided what is released: a loop of one's own holds no lock of `start`."""
    check_folder(folder)
    (folder / PRIVATE).mkdir(mode=0o700, parents=True, exist_ok=True)
    with locked(folder / PRIVATE / ".lock", f"folder = {folder}"):
        yield


# --- a training in rounds -----------------------------------------------------------------------------------


def save(folder: Path, mark: str, saved: Saved, counted: Counted) -> None:
    """Keep a round's models where nobody sees them, record them, count them, and only then publish them.

    Guarantee: noise is used for one release. A server that is killed before the record is there has shown
    nothing and may play the round again; one that is killed later publishes what it made, see `load`.

    Raises:
        ValueError: another server has played the round meanwhile.
    """
    state = saved.state
    name = f"models-{state.round:05d}.npz"
    with _deciding(folder):
        check_is_next(folder, mark, state.round, counted)
        with replacing(folder / PRIVATE / name) as file:
            np.savez(file, params=state.params, clip_norms=state.clip_norms, heard=state.heard)
        kept = folder / PRIVATE / name
        record = _write_record(
            folder, mark, kept, saved.users, saved.metrics, round=state.round, named=saved.named
        )
        _put_in_place(folder / name, record, counted(state.round))
        for number, old in _released(folder).items():
            if number < state.round:
                old.unlink()


def load(folder: Path, mark: str, counted: Counted) -> Saved | None:
    """What `folder` holds of this training, None if nothing; its last round is published if it was not.

    Raises:
        ValueError: it holds another training, a file was altered or is missing, or more was released than
            is recorded.
    """
    with _deciding(folder):
        record = _read_record(folder, mark)
        done = 0 if record is None else int(record["round"])
        _check_released(folder, done, counted)
        if record is None:
            return None
        models = folder / record["models"]
        if not _put_in_place(models, record, counted(done)):
            raise ValueError(f"folder = {folder}: {models.name} is missing or was altered")
    with np.load(models, allow_pickle=False) as file:
        params: Params = file["params"]
        clip_norms: Floats = file["clip_norms"]
        heard = file["heard"]
    return Saved(
        state=State(round=done, params=params, clip_norms=clip_norms, heard=heard),
        users={int(node): int(number) for node, number in record["users"].items()},
        metrics=record["metrics"],
        named=record["named"],
    )


def check_is_next(folder: Path, mark: str, round: int, counted: Counted) -> None:
    """Refuse a round unless it is the one after the last that the folder holds, whoever has played that."""
    record = _read_record(folder, mark)
    done = 0 if record is None else int(record["round"])
    if done != round - 1:
        raise ValueError(
            f"folder = {folder}: the state holds {done} rounds, so this is no time to release round {round}: "
            "another server has been at work here"
        )
    _check_released(folder, done, counted)


def _check_released(folder: Path, done: int, counted: Counted) -> None:
    """Refuse a state that is older than what was released: its rounds would be played again.

    The noise of a round is decided by the seed, so two releases of it would give the updates away. A round is
    recorded before it is counted and published, so whatever is counted or public beyond the record was shown.
    """
    path = folder / _LEDGER
    found = load_ledger(path) if path.exists() else None
    last, beyond = max(_released(folder), default=0), None
    if found is not None and found not in map(counted, range(done, 0, -1)):
        later = next((number for number in range(done + 1, done + _ROUNDS) if counted(number) == found), None)
        if later is None:
            raise ValueError(f"folder = {folder}: {_LEDGER} counts another mechanism or δ; choose another")
        beyond = f"the ledger counts {later} rounds"
    elif last > done:
        beyond = f"{_released(folder)[last].name} is public"
    if beyond is not None:
        raise ValueError(
            f"folder = {folder}: {beyond}, the state holds {done}: models that were released are missing, "
            "and must not be trained again with the same noise; choose another"
        )


def _released(folder: Path) -> dict[int, Path]:
    """The public models, by their round."""
    found = {path.stem.removeprefix("models-"): path for path in folder.glob("models-*.npz")}
    return {int(number): path for number, path in found.items() if number.isdecimal()}


# --- one release --------------------------------------------------------------------------------------------


def count_question(folder: Path, mark: str, empty: Ledger, check: Callable[[Ledger], None]) -> Ledger:
    """Count that everybody is asked once more, where users add noise of their own, before anybody is.

    A server that was killed does not know who had sent something already, and asks for other noise. `check`
    may refuse what would be counted.

    Raises:
        ValueError: the release has been made, or the folder is another's.
    """
    with _deciding(folder):
        _check_not_made(folder, mark, counted=True)
        ledger = resumed_ledger(empty, folder / _LEDGER).spend(1)
        check(ledger)
        save_ledger(ledger, folder / _LEDGER)
    return ledger


def save_release(
    folder: Path,
    mark: str,
    release: Release,
    users: Mapping[int, int],
    metrics: list[dict[str, Any]],
    *,
    counted: bool = False,
) -> None:
    """Keep a release where nobody sees it, and the record by which no other is ever made here.

    `counted`: the ledger counts questions, see `count_question`, and may be there before.

    Raises:
        ValueError: another server has made it meanwhile.
    """
    with _deciding(folder):
        _check_not_made(folder, mark, counted=counted)
        release.save(folder / _PENDING)
        _write_record(folder, mark, folder / _PENDING, users, metrics, round=1)


def _check_not_made(folder: Path, mark: str, *, counted: bool) -> None:
    made = _read_record(folder, mark) is not None or (folder / RELEASE).exists()
    if made or ((folder / _LEDGER).exists() and not counted):
        raise ValueError(
            f"folder = {folder}: another server has made the release, and it must not be made again"
        )


def publish(
    folder: Path, mark: str, ledger: Ledger | None, *, counted: bool = False
) -> list[dict[str, Any]] | None:
    """Count the release that `folder` keeps, then put it in its place: its metrics, None if there is none.

    `counted`: it was when users were asked.

    Guarantee: noise is used for one release. Once the record is written, this release or none at all is
    what the folder gives; before, nobody has seen anything that the noise was added to.

    Raises:
        ValueError: the folder holds another training, or its release was altered or is missing.
    """
    lost = (
        f"folder = {folder}: the release that was made is missing or was altered, and must not be made again"
    )
    with _deciding(folder):
        record, public = _read_record(folder, mark), folder / RELEASE
        if record is None:
            if public.exists() or ((folder / _LEDGER).exists() and not counted):
                raise ValueError(f"{lost}; choose another")
            return None
        if not _put_in_place(public, record, None if counted else ledger):
            raise ValueError(f"{lost}; choose another")
    found: list[dict[str, Any]] = record["metrics"]
    return found


# --- the certificate ----------------------------------------------------------------------------------------


def write_certificate(
    folder: Path,
    certificate: Certificate,
    scores: NDArray[np.floating],
    labels: NDArray[np.integer[Any]] | None = None,
    models: Mapping[str, NDArray[Any]] | None = None,
) -> None:
    """The certificate, the scores and labels it follows from, and the `models` that answer new inputs.

    It then names the digest of these models.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for name, array in (("scores", scores), ("labels", labels)):
        if array is not None:
            with replacing(folder / f"{name}.npy") as file:
                np.save(file, array)
    if models is not None:
        sha256 = of_all(describe(certificate.mechanism), of_each(models))
        certificate = replace(certificate, models_sha256=sha256)
        with replacing(folder / MODELS) as file:
            np.savez(file, allow_pickle=False, **models)
    replace_file(folder / CERTIFICATE, dumps(certificate).encode())


# --- the record ---------------------------------------------------------------------------------------------


def _write_record(
    folder: Path,
    mark: str,
    models: Path,
    users: Mapping[int, int],
    metrics: list[dict[str, Any]],
    *,
    round: int,
    named: bool = False,
) -> dict[str, Any]:
    record = {
        "training": mark,
        "round": round,
        "models": models.name,
        "sha256": sha256_of(models),
        "users": {str(node): number for node, number in users.items()},
        "named": named,
        "metrics": metrics,
    }
    replace_file(folder / _RECORD, (json.dumps(record, indent=1) + "\n").encode(), mode=0o600)
    return record


def _read_record(folder: Path, mark: str) -> dict[str, Any] | None:
    try:
        record: dict[str, Any] = parse_json(read_whole(folder / _RECORD))
    except FileNotFoundError:
        return None
    except ValueError as error:
        raise ValueError(f"folder = {folder}: {_RECORD} is not JSON: {error}") from error
    texts, numbers = dict.fromkeys(("training", "models", "sha256"), str), {"round": int, "named": bool}
    kinds: dict[str, type] = texts | numbers | {"users": dict, "metrics": list}
    if not isinstance(record, dict) or any(not isinstance(record.get(key), kinds[key]) for key in kinds):
        raise ValueError(f"folder = {folder}: {_RECORD} is not the record of a training")
    if record["training"] != mark:
        raise ValueError(
            f"folder = {folder}: holds another training (mechanism, users, seed, replicas, delta or initial "
            "model differ); choose another"
        )
    return record


def _put_in_place(public: Path, record: Mapping[str, Any], ledger: Ledger | None) -> bool:
    """Count what the record names, then make it public, unless it is; False if it is missing or altered."""
    if _is_whole(public, record):
        return True
    kept = public.parent / PRIVATE / public.name
    if not _is_whole(kept, record):
        return False
    if ledger is not None:
        save_ledger(ledger, public.parent / _LEDGER)
    kept.replace(public)
    return True


def _is_whole(path: Path, record: Mapping[str, Any]) -> bool:
    return path.exists() and sha256_of(path) == record["sha256"]
