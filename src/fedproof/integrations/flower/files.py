"""A federation's folder: its state after every round, or its one release; its ledger; its certificate.

What ε does not cover, metrics of rounds and who is who, lies in `private`.
"""

import hashlib
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.accounting.ledger import (
    Entry,
    Ledger,
    UserLedger,
    charge,
    load_ledger,
    resumed_ledger,
    save_ledger,
)
from fedproof.arrays import Floats
from fedproof.certificates import Certificate, dumps
from fedproof.digests import of_all, of_each
from fedproof.files import replace_file, replacing
from fedproof.folder import CERTIFICATE, CONFIG, LEDGER, MAY, MODELS, NOTICE, RELEASE, UNCOUNTED, in_all
from fedproof.integrations.server import Params, State
from fedproof.mechanisms import Mechanism
from fedproof.mechanisms.codec import describe
from fedproof.release import Release
from fedproof.statements import sentences
from fedproof.threat import Relation
from fedproof.vault import PRIVATE, Record, Vault

_STATE = "state"
_ROUNDS = 10_000  # that a ledger is looked for among
_COVERED = """\
ε covers the models, and in them what a user holds, not whether it has joined: who the users are is public.
It does not cover private/state.json and private/server.log: who was drawn, replied and was clipped in every
round, which no noise hides, and which node is which user.
"""
_VOID = "Publish nothing of this that must stay private, as no ε holds: {why}.\n"
_UNCOVERED = "No noise was added, so no ε covers anything here; in any case keep private/ to yourself.\n"
_NOTHING = "Nothing was released yet: publish nothing of this.\n"
_UNNAMED = f"""\
Publish nothing of this that must stay private: {UNCOUNTED}.

Name the set of users, the same for all that is trained on them: give the strategy ledger_name, and start it
again with this folder. What was released is counted then.
"""

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


@dataclass(frozen=True, kw_only=True)
class Books:
    """Where a federation counts what it has released, before anybody sees it.

    Attributes:
        vault: of the federation; its `ledger.json` counts what was released here.
        ledger: name of the ledger that counts everything that its users are trained in; None: there is none.
        delta: at which ε is stated; None where nothing bounds it.
        seed: whether somebody has chosen the seed, who must keep it secret.
    """

    vault: Vault
    ledger: str | None
    delta: float | None
    seed: bool

    def begin(self) -> None:
        """Say in the folder that nothing may be published yet, or ever."""
        self._say(_UNCOVERED if self.delta is None else _NOTHING)

    def count(self, mechanism: Mechanism, releases: int) -> None:
        """Count so many releases of a mechanism, and say what may be published now."""
        if self.delta is None:
            return
        said = self._counted(mechanism, releases, self.delta)
        save_ledger(Ledger.of(mechanism, self.delta).spend(releases), self.vault.folder / LEDGER)
        self._say(f"{said}\n{_COVERED}{_SEED * self.seed}")

    def _counted(self, mechanism: Mechanism, releases: int, delta: float) -> str:
        """What may be published, when so many releases are in the ledger of the users."""
        if why := "; ".join(sentences(mechanism.unmet(Relation.REPLACE))):
            return f"Publish nothing of this that must stay private: {why}.\n"
        if self.ledger is None:
            return _UNNAMED
        joins, where = not mechanism.unmet(Relation.JOIN), str(self.vault.folder.resolve())
        entry = Entry.of(mechanism, releases, delta=delta, key=self.vault.identity, run=where, joins=joins)
        ledger = charge(self.ledger, entry)
        costs = in_all(self.ledger, UserLedger(entries=(entry,)).total(delta), ledger.total(delta))
        return f"{MAY}\n{costs}"

    def _say(self, text: str) -> None:
        replace_file(self.vault.folder / NOTICE, text.encode())


_SEED = "Keep the seed to yourself, too: whoever knows it can remove the noise.\n"


def alone_in(vault: Vault | None) -> AbstractContextManager[None]:
    """Keep other servers out of the folder: one that lost its SuperLink may still be running."""
    return nullcontext() if vault is None else vault.alone()


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
def _deciding(vault: Vault) -> Iterator[None]:
    """Keep others out while it is decided what is released: a loop of one's own holds no lock of `start`."""
    check_folder(vault.folder)
    with vault.alone():
        yield


# --- a training in rounds -----------------------------------------------------------------------------------


def save(vault: Vault, mark: str, saved: Saved, counted: Counted, count: Callable[[], object]) -> None:
    """Keep a round's models where nobody sees them, record them, count them, and only then publish them.

    Guarantee: noise is used for one release. A server that is killed before the record is there has shown
    nothing and may play the round again; one that is killed later publishes what it made, see `load`.

    Raises:
        ValueError: another server has played the round meanwhile.
    """
    state = saved.state
    name = f"models-{state.round:05d}.npz"
    with _deciding(vault):
        check_is_next(vault, mark, state.round, counted)
        told = {"round": state.round, "named": saved.named} | _told(saved.users, saved.metrics)
        vault.keep(_STATE, mark, {name: partial(_write_state, state)}, **told)
        vault.publish(_STATE, count)
        for number, old in _released(vault.folder).items():
            if number < state.round:
                old.unlink()


def load(
    vault: Vault, mark: str, counted: Counted, count: Callable[[int], Callable[[], object]]
) -> Saved | None:
    """What the vault holds of this training, None if nothing; its last round is published if it was not.

    Raises:
        ValueError: it holds another training, a file was altered or is missing, or more was released than
            is recorded.
    """
    with _deciding(vault):
        record = vault.made(_STATE, mark)
        done = 0 if record is None else _round(vault, record)
        _check_released(vault, done, counted)
        if record is None:
            return None
        (name,) = record.sha256
        if not vault.publish(_STATE, count(done)):
            raise vault.gone(name)
        count(done)()  # in a ledger that was named since, too
    with np.load(vault.folder / name, allow_pickle=False) as file:
        params: Params = file["params"]
        clip_norms: Floats = file["clip_norms"]
        heard = file["heard"]
    return Saved(
        state=State(round=done, params=params, clip_norms=clip_norms, heard=heard),
        users={int(node): int(number) for node, number in record.told["users"].items()},
        metrics=record.told["metrics"],
        named=record.told["named"],
    )


def check_is_next(vault: Vault, mark: str, round: int, counted: Counted) -> None:
    """Refuse a round unless it is the one after the last that the vault holds, whoever has played that."""
    record = vault.made(_STATE, mark)
    done = 0 if record is None else _round(vault, record)
    if done != round - 1:
        raise vault.taken(f"round {round}")
    _check_released(vault, done, counted)


def _check_released(vault: Vault, done: int, counted: Counted) -> None:
    """Refuse a state that is older than what was released: its rounds would be played again.

    The noise of a round is decided by the seed, so two releases of it would give the updates away. A round is
    recorded before it is counted and published, so whatever is counted or public beyond the record was shown.
    """
    path = vault.folder / LEDGER
    found = load_ledger(path) if path.exists() else None
    last = max(_released(vault.folder), default=0)
    if found is not None and found not in map(counted, range(done, 0, -1)):
        last = next((number for number in range(done + 1, done + _ROUNDS) if counted(number) == found), -1)
        if last < 0:
            raise ValueError(f"{vault.called}: {LEDGER} counts another mechanism or δ; choose another")
    if last > done:
        raise vault.gone(f"round {last}")


def _released(folder: Path) -> dict[int, Path]:
    """The public models, by their round."""
    found = {path.stem.removeprefix("models-"): path for path in folder.glob("models-*.npz")}
    return {int(number): path for number, path in found.items() if number.isdecimal()}


def _write_state(state: State, path: Path) -> None:
    with replacing(path) as file:
        np.savez(file, params=state.params, clip_norms=state.clip_norms, heard=state.heard)


def _round(vault: Vault, record: Record) -> int:
    """The round that was made last; the record is that of a training in rounds."""
    kinds = {"round": int, "users": dict, "metrics": list, "named": bool}
    if len(record.sha256) != 1 or any(
        not isinstance(record.told.get(key), kind) for key, kind in kinds.items()
    ):
        raise ValueError(f"{vault.called}: {PRIVATE}/{_STATE}.json is not the record of a training")
    return int(record.told["round"])


def _told(users: Mapping[int, int], metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {"users": {str(node): number for node, number in users.items()}, "metrics": metrics}


# --- one release --------------------------------------------------------------------------------------------


def count_question(
    vault: Vault, mark: str, empty: Ledger, check: Callable[[Ledger], None], count: Callable[[int], object]
) -> Ledger:
    """Count that everybody is asked once more, where users add noise of their own, before anybody is.

    A server that was killed does not know who had sent something already, and asks for other noise. `check`
    may refuse what would be counted.

    Raises:
        ValueError: the release has been made, or the folder is another's.
    """
    with _deciding(vault):
        _check_not_made(vault, mark, counted=True)
        ledger = resumed_ledger(empty, vault.folder / LEDGER).spend(1)
        check(ledger)
        count(ledger.replicas)
    return ledger


def save_release(
    vault: Vault,
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
    with _deciding(vault):
        _check_not_made(vault, mark, counted=counted)
        vault.keep(_STATE, mark, {RELEASE: release.save}, **_told(users, metrics))


def _check_not_made(vault: Vault, mark: str, *, counted: bool) -> None:
    made = vault.made(_STATE, mark) is not None or (vault.folder / RELEASE).exists()
    if made or ((vault.folder / LEDGER).exists() and not counted):
        raise vault.taken(RELEASE)


def publish(
    vault: Vault, mark: str, count: Callable[[], object], *, counted: bool = False
) -> list[dict[str, Any]] | None:
    """Count the release that the vault keeps, then put it in its place: its metrics, None if there is none.

    `counted`: it was when users were asked.

    Guarantee: noise is used for one release. Once the record is written, this release or none at all is
    what the folder gives; before, nobody has seen anything that the noise was added to.

    Raises:
        ValueError: the folder holds another training, or its release was altered or is missing.
    """
    with _deciding(vault):
        record = vault.made(_STATE, mark)
        if record is None:
            if (vault.folder / RELEASE).exists() or ((vault.folder / LEDGER).exists() and not counted):
                raise vault.gone(RELEASE)
            return None
        if not vault.publish(_STATE, count):
            raise vault.gone(RELEASE)
        count()  # in a ledger that was named since, too
    found: list[dict[str, Any]] = record.told["metrics"]
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
