"""A run's directory: belongs to one configuration, used by one process at a time, never overwritten.

What must not be published lies in `private`, the seed among it.
"""

import math
import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproof.accounting.ledger import Total
from fedproof.config import Config, load_config
from fedproof.data import is_public
from fedproof.federation import Federation
from fedproof.files import make_folder, read_whole, replace_file, replacing
from fedproof.mechanisms import Mechanism, is_private
from fedproof.seeds import BITS, common_half, fresh_seed, paired_seed
from fedproof.statements import Statement
from fedproof.threat import changed_in_words
from fedproof.vault import LOCK, PRIVATE, Vault

CONFIG = "config.toml"
NOTICE = "PUBLISH.txt"
SEED = f"{PRIVATE}/seed"
ROUNDS = f"{PRIVATE}/rounds.csv"
OBSERVED = f"{PRIVATE}/observed.csv"
RELEASE = "release.npz"
LEDGER = "ledger.json"
SCORES = "scores.npy"
LABELS = "labels.npy"  # of the inputs that scores are of
MODELS = "models.npz"  # of a federation whose nodes train linear models
CERTIFICATE = "certificate.json"
_UNFINISHED = ".*.tmp"  # what a process that was killed left of a file before it was whole
_DIGITS = BITS // 4


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """An open run directory, and the seed of the run in it."""

    vault: Vault
    seed: int = field(repr=False)

    @property
    def path(self) -> Path:
        """Where it is."""
        return self.vault.folder

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, config: Config, *, resume: bool, seed: int | None = None
    ) -> Iterator["RunFolder"]:
        """The directory of a run of `config`, locked while it is used.

        Where `config` has no seed, the run has the one that is kept in the directory. A new directory gets
        one of the operating system, with `seed` as its common half if that is given. Of a run that is refused
        before anything is made, the directory keeps its lock alone.

        Raises:
            ValueError: it belongs to another configuration, is no run directory, holds a run that was not to
                be resumed, has lost its seed, or is in use.
        """
        check_run_folder(path, config, resume=resume)
        vault = Vault(path, f"--out {path}")
        try:
            make_folder(path / PRIVATE, mode=0o700)
            (path / PRIVATE / LOCK).touch()
        except OSError as error:
            raise ValueError(f"--out {path}: cannot be written to: {error.strerror}") from error
        with vault.alone():
            check_run_folder(path, config, resume=resume)  # again, now that nobody else can change it
            _remove_unfinished(path)
            begun = (path / CONFIG).exists()
            replace_file(path / CONFIG, config.to_toml().encode())
            if config.ensemble.seed is None and not (path / SEED).exists():
                if vault.begun:
                    raise _lost_seed(path)
                keep_seed(path, fresh_seed() if seed is None else paired_seed(seed))
            try:
                yield cls(vault=vault, seed=seed_of(path, config))
            except ValueError:  # refused: what never trained must not ask to be gone on with
                if not begun and not vault.begun:
                    for name in (SEED, NOTICE, CONFIG):
                        (path / name).unlink(missing_ok=True)
                raise

    def write_scores(
        self, parts: Iterable[NDArray[np.floating]], shape: tuple[int, int, int], kind: str = "<f4"
    ) -> NDArray[np.floating]:
        """All parts' scores in `scores.npy`, memory-mapped: the ensemble never has to fit into memory.

        Raises:
            ValueError: the parts hold something else than `shape`, which a resumed run would certify.
        """
        header = {"descr": kind, "fortran_order": False, "shape": shape}
        begin = 0
        # Written, not mapped: on a full disk a mapping ends the process without a word.
        with replacing(self.path / "scores.npy") as file:
            npy.write_array_header_1_0(file, header)
            for part in parts:
                if part.dtype.kind != "f" or part.ndim != 3 or part.shape[1:] != shape[1:]:
                    raise ValueError(_no_scores(self.path / "parts", f"{part.dtype} {part.shape}", shape))
                file.write(np.ascontiguousarray(part, dtype=kind).data)
                begin += len(part)
            if begin != shape[0]:
                raise ValueError(_no_scores(self.path / "parts", f"{begin} replicas", shape))
        scores: NDArray[np.floating] = np.load(self.path / "scores.npy", mmap_mode="r")
        return scores


def _no_scores(parts: Path, found: str, shape: tuple[int, ...]) -> str:
    return f"{parts}: scores are {found}, must be {shape} over all parts; remove what is wrong, and --resume"


def read_config(folder: Path) -> Config:
    """The configuration that a run's directory belongs to."""
    return load_config(folder / CONFIG)


def check_run_folder(path: Path, config: Config, *, resume: bool) -> None:
    """Raise ValueError unless `path` is new, empty, or a run of `config` that is to be resumed."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"--out {path}: is a file, must be a directory")
    if not (path / CONFIG).exists():
        if any(not _is_new(entry) for entry in path.iterdir()):
            raise ValueError(f"--out {path}: holds other files; choose a new directory")
        return
    found = read_config(path)
    if found.privacy.ledger is None:  # to be counted is never too late: nothing was called publishable
        found = found.model_copy(update={"privacy": config.privacy})
    if found != config:
        raise ValueError(
            f"--out {path}: belongs to another configuration ({_difference(found, config)}); choose another"
        )
    if not resume:
        raise ValueError(f"--out {path}: holds a run of this configuration; continue with --resume")


def seed_of(folder: Path, config: Config) -> int:
    """The seed of the run of `config` in `folder`."""
    return kept_seed(folder) if config.ensemble.seed is None else config.ensemble.seed


def kept_seed(folder: Path) -> int:
    """The seed that is kept in a directory; ValueError if none is, which does not repeat what was found."""
    try:
        text = read_whole(folder / SEED)
    except FileNotFoundError:
        raise _lost_seed(folder) from None
    if not re.fullmatch(rb"([0-9a-f]{%d}){1,2}\n?" % _DIGITS, text):
        raise ValueError(f"{folder / SEED}: is no seed of {_DIGITS} or {2 * _DIGITS} hexadecimal digits")
    return int(text, 16)


def keep_seed(folder: Path, seed: int) -> None:
    """Keep a seed in a directory, for the eyes of its owner alone."""
    make_folder(folder / PRIVATE, mode=0o700)
    digits = _DIGITS if seed == common_half(seed) else 2 * _DIGITS
    replace_file(folder / SEED, f"{seed:0{digits}x}\n".encode(), mode=0o600)


def common_seed(out: Path) -> int:
    """The half of a seed that all runs under `out` have in common: drawn once, and kept there."""
    with Vault(out, f"--out {out}").alone():
        if not (out / SEED).exists():
            keep_seed(out, fresh_seed())
    return kept_seed(out)


def _lost_seed(folder: Path) -> ValueError:
    return ValueError(f"{folder}: {SEED} is missing, by which what was made is known: put it back")


def _is_new(entry: Path) -> bool:
    """Whether something in a directory that holds no run is what a process leaves that has made nothing."""
    if entry.name == PRIVATE and entry.is_dir():
        return all(inside.name == LOCK or inside.match(_UNFINISHED) for inside in entry.iterdir())
    return entry.match(_UNFINISHED)


def check_space(folder: Path, num_replicas: int, num_inputs: int, num_classes: int) -> None:
    """Raise ValueError if the disk cannot hold all scores twice, in parts and in one file."""
    there = next(one for one in (folder, *folder.absolute().parents) if one.exists())
    needed, free = 8 * num_replicas * num_inputs * num_classes, shutil.disk_usage(there).free
    held = folder.rglob("*") if folder.exists() else ()
    if needed > free + sum(file.stat().st_size for file in held if file.is_file()):
        raise ValueError(
            f"--out {folder}: scores of {num_replicas} replicas, {num_inputs} inputs and "
            f"{num_classes} classes need {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB: "
            "set data.test_limit"
        )


def _remove_unfinished(path: Path) -> None:
    for entry in list(path.rglob(_UNFINISHED)):
        entry.unlink(missing_ok=True)


def _difference(found: Config, wanted: Config) -> str:
    """The first key in which two configurations differ."""
    there, here = (_flat(config.model_dump(mode="json")) for config in (found, wanted))
    key = next(key for key in here if here[key] != there.get(key))
    return f"{key} = {there.get(key)!r} there, {here[key]!r} here"


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, table in document.items() for key, value in table.items()}


# --- what of a run is secret, and what may leave the machine that trained it, in words ----------------------

UNCOVERED = (
    "ε does not cover these numbers: no noise hides them. They are for whoever trained, and must not be "
    "published."
)
UNFINISHED = "This run is not finished: publish nothing of it yet.\n"

_COVERED = """\
ε of the ensemble (ledger.json) covers the models, parts/ or release.npz, and what is computed from them and
public test inputs: scores.npy, certificate.json, metrics.csv, summary.json, report.html. It does not cover
how many users there are and how much they hold, what training took, or how the settings were chosen.
"""
_PRIVATE = """\
private/ holds the seed, if the operating system drew one: whoever knows it knows cohorts and noise.
private/rounds.csv and private/parts/ hold norms of updates, clipped shares and sizes of cohorts, round by
round; private/observed.csv comes from what every single unit sent. ε covers none of them.
"""
_KNOWN = """\
To publish models, leave ensemble.seed out of the configuration, or set ensemble.secure_noise = true, and
train again. Where the data are public anyway nothing is lost.
"""
_UNNAMED = """\
Name the set of users, the same for all that is trained on them, and what was made here is counted too:
fedproof run CONFIG --out FOLDER --resume --set privacy.ledger=NAME
"""
UNCOUNTED = "no ledger counts what all trainings on these users cost together"
FILTER = """\
The total holds if the settings of all entries were fixed beforehand. If you chose one after looking at the
results of another, no sum bounds the cost, but a budget does that was declared before the first.
"""


class Private(Protocol):
    """What of a task decides what may be published."""

    @property
    def mechanism(self) -> Mechanism:
        """What is executed."""
        ...

    @property
    def federation(self) -> Federation:
        """On whose data."""
        ...


def secret_of(config: Config) -> Statement:
    """What nobody who was corrupted may have known of a run's random numbers."""
    if config.ensemble.secure_noise:
        return Statement.of("no-seed")
    return Statement.of("seed-fresh" if config.ensemble.seed is None else "seed-known")


def hindrance(config: Config, task: Private, unmet: Iterable[Statement]) -> str | None:
    """Why no ε covers what a run of `config` makes, so that no ledger counts it; None if one does.

    `unmet` are the conditions without which the ε of its mechanism bounds nothing.
    """
    if not is_private(task.mechanism):
        return "No noise was added, so no ε covers anything here; in any case keep private/ to yourself."
    if config.ensemble.seed is not None and not config.ensemble.secure_noise:
        return "Publish nothing of this that must stay private: whoever knows the seed can remove the noise."
    if not is_public(config.data.name) and task.federation.tests_of_users and task.federation.tested_only:
        unmet = (*unmet, _TESTED)
    if why := "; ".join(one.text for one in unmet):
        return f"Publish nothing of this that must stay private: {why}."
    return None


def notice(config: Config, task: Private, unmet: Iterable[Statement], spent: str | None) -> str:
    """What may be published of a finished run; `spent` says what was counted, None where nothing was."""
    if why := hindrance(config, task, unmet):
        known = [_KNOWN] if is_private(task.mechanism) and secret_of(config).code == "seed-known" else []
        return "\n".join((f"{why}\n", *known, _PRIVATE))
    if is_public(config.data.name):
        first = f"{MAY} {config.data.name} is public, and counted nowhere.\n"
    elif spent is None:
        first = f"Publish nothing of this that must stay private: {UNCOUNTED}.\n\n{_UNNAMED}"
    elif task.federation.tests_of_users:
        first = f"Publish nothing of this but the models, parts/ or release.npz: {_TESTED.text}.\n{spent}"
    else:
        first = f"{MAY}\n{spent}"
    return "\n".join((first, _COVERED, _PRIVATE))


_TESTED = Statement.of("tests-of-users")
MAY = "Keep private/ to yourself; everything else here may be published."


def in_all(name: str, own: Total, total: Total) -> str:
    """What a training costs, and what all costs that the ledger counts."""
    return (
        f"This training: ε = {_up(own.epsilon)} at δ = {own.delta:g}, for one {own.unit} "
        f"{changed_in_words(own.relation)}.\n"
        f"All {total.entries} in ledger {name}: ε = {_up(total.epsilon)}, for one {total.unit} "
        f"{changed_in_words(total.relation)}, on {date.today()}. Now: fedproof ledger {name}\n\n{FILTER}"
    )


def _up(epsilon: float) -> str:
    return f"{math.ceil(epsilon * 1000) / 1000:.3f}"
