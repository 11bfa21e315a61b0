"""A run's directory: belongs to one configuration, used by one process at a time, never overwritten.

What must not be published lies in `private`, the seed among it.
"""

import re
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproof.config import Config, load_config
from fedproof.federation import TESTS_OF_USERS, Federation
from fedproof.files import locked, read_whole, replace_file, replacing
from fedproof.mechanisms import Mechanism, is_private
from fedproof.seeds import BITS, FRESH, KNOWN, NO_SEED, common_half, fresh_seed, paired_seed

CONFIG = "config.toml"
NOTICE = "PUBLISH.txt"
PRIVATE = "private"
SEED = f"{PRIVATE}/seed"
ROUNDS = f"{PRIVATE}/rounds.csv"
OBSERVED = f"{PRIVATE}/observed.csv"
RELEASE = "release.npz"
LEDGER = "ledger.json"
SCORES = "scores.npy"
LABELS = "labels.npy"  # of the inputs that scores are of
MODELS = "models.npz"  # of a federation whose nodes train linear models
CERTIFICATE = "certificate.json"
MADE_OF = f"{PRIVATE}/release.sha256"
_NOISED = f"{PRIVATE}/noised.sha256"  # of the training that noise and ledger belong to
_LOCK = ".lock"
_UNFINISHED = ".*.tmp"  # what a process that was killed left of a file before it was whole
_DIGITS = BITS // 4


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """An open run directory, and the seed of the run in it."""

    path: Path
    seed: int = field(repr=False)

    @property
    def parts(self) -> Path:
        """Where finished parts lie."""
        return self.path / "parts"

    @classmethod
    @contextmanager
    def open(
        cls, path: Path, config: Config, *, resume: bool, seed: int | None = None
    ) -> Iterator["RunFolder"]:
        """The directory of a run of `config`, locked while it is used.

        Where `config` has no seed, the run has the one that is kept in the directory. A new directory gets
        one of the operating system, with `seed` as its common half if that is given.

        Raises:
            ValueError: it belongs to another configuration, is no run directory, holds a run that was not to
                be resumed, has lost its seed, or is in use.
        """
        _check(path, config, resume=resume)
        existed = path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            (path / _LOCK).touch()
        except OSError as error:
            raise ValueError(f"--out {path}: cannot be written to: {error.strerror}") from error
        with locked(path / _LOCK, f"--out {path}"):
            _check(path, config, resume=resume)  # again, now that nobody else can change it
            _remove_unfinished(path)
            begun = (path / CONFIG).exists()
            replace_file(path / CONFIG, config.to_toml().encode())
            (path / PRIVATE).mkdir(mode=0o700, exist_ok=True)
            if config.ensemble.seed is None and not (path / SEED).exists():
                _check_nothing_is_trained(path)
                keep_seed(path, fresh_seed() if seed is None else paired_seed(seed))
            try:
                yield cls(path=path, seed=seed_of(path, config))
            except ValueError:  # refused: what never trained must not ask to be gone on with
                if not begun and not any(path.glob("parts/part-*.json")):
                    _remove_beginning(path, existed=existed)
                raise

    def check_space(self, num_replicas: int, num_inputs: int, num_classes: int) -> None:
        """Raise ValueError if the disk cannot hold all scores twice, in parts and in one file."""
        needed, free = 8 * num_replicas * num_inputs * num_classes, shutil.disk_usage(self.path).free
        if needed > free + sum(file.stat().st_size for file in self.path.rglob("*") if file.is_file()):
            raise ValueError(
                f"--out {self.path}: scores of {num_replicas} replicas, {num_inputs} inputs and "
                f"{num_classes} classes need {needed / 1e9:.1f} GB, the disk has {free / 1e9:.1f} GB: "
                "set data.test_limit"
            )

    def use_noise_for(self, task: str, engine: str) -> None:
        """Give noise and ledger of the run to the task of this fingerprint, and this version of the engine.

        Raises:
            ValueError: they belong to others. Two models with the same noise differ by what was noised, so
                whoever saw both would know it; and a ledger counts one training.
        """
        mark, known = f"{task} {engine}\n".encode(), self.path / _NOISED
        # Parts whose mark is gone are another's: nobody knows whose noise they hold.
        used = read_whole(known) != mark if known.exists() else any(self.parts.glob("part-*.json"))
        if used:
            raise ValueError(
                f"--out {self.path}: its models were trained on other data, or by other code (yours, or "
                "another version of fedproof, torch or NumPy), and their noise must not be used again; "
                "choose a new directory"
            )
        replace_file(known, mark, mode=0o600)

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
                    raise ValueError(_no_scores(self.parts, f"{part.dtype} {part.shape}", shape))
                file.write(np.ascontiguousarray(part, dtype=kind).data)
                begin += len(part)
            if begin != shape[0]:
                raise ValueError(_no_scores(self.parts, f"{begin} replicas", shape))
        scores: NDArray[np.floating] = np.load(self.path / "scores.npy", mmap_mode="r")
        return scores


def _no_scores(parts: Path, found: str, shape: tuple[int, ...]) -> str:
    return f"{parts}: scores are {found}, must be {shape} over all parts; remove what is wrong, and --resume"


def read_config(folder: Path) -> Config:
    """The configuration that a run's directory belongs to."""
    return load_config(folder / CONFIG)


def _check(path: Path, config: Config, *, resume: bool) -> None:
    """Raise ValueError unless `path` is new, empty, or a run of `config` that is to be resumed."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"--out {path}: is a file, must be a directory")
    if not (path / CONFIG).exists():
        if any(entry.name != _LOCK and not entry.match(_UNFINISHED) for entry in path.iterdir()):
            raise ValueError(f"--out {path}: holds other files; choose a new directory")
        return
    found = read_config(path)
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
        raise ValueError(
            f"{folder}: {SEED} is missing, by which the run's models are known: put it back"
        ) from None
    if not re.fullmatch(rb"([0-9a-f]{%d}){1,2}\n?" % _DIGITS, text):
        raise ValueError(f"{folder / SEED}: is no seed of {_DIGITS} or {2 * _DIGITS} hexadecimal digits")
    return int(text, 16)


def keep_seed(folder: Path, seed: int) -> None:
    """Keep a seed in a directory, for the eyes of its owner alone."""
    (folder / PRIVATE).mkdir(mode=0o700, exist_ok=True)
    digits = _DIGITS if seed == common_half(seed) else 2 * _DIGITS
    replace_file(folder / SEED, f"{seed:0{digits}x}\n".encode(), mode=0o600)


def common_seed(out: Path) -> int:
    """The half of a seed that all runs under `out` have in common: drawn once, and kept there."""
    with locked(out / _LOCK, f"--out {out}"):
        if not (out / SEED).exists():
            keep_seed(out, fresh_seed())
    return kept_seed(out)


def _check_nothing_is_trained(path: Path) -> None:
    if any(path.glob("parts/part-*.json")):
        raise ValueError(
            f"--out {path}: {SEED} is missing, to which the finished parts belong: put it back, or choose a "
            "new directory"
        )


def _remove_beginning(path: Path, *, existed: bool) -> None:
    """Take back what a run writes before it trains, and the directory unless it was there before."""
    for name in (SEED, _NOISED, ROUNDS, CONFIG, NOTICE, _LOCK):
        (path / name).unlink(missing_ok=True)
    for folder in (path / PRIVATE, path / "parts", *[path] * (not existed)):
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def _remove_unfinished(path: Path) -> None:
    for folder in ("", "parts/", f"{PRIVATE}/"):
        for entry in list(path.glob(folder + _UNFINISHED)):
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

_COVERED = """\
ε of the ensemble (ledger.json) covers the models, parts/*.safetensors or release.npz, and what is computed
from them and public test inputs: scores.npy, certificate.json, metrics.csv, summary.json, report.html. It
does not cover how many users there are and how much they hold, what training took, or how the settings were
chosen.
"""
_PRIVATE = """\
private/ holds the seed, if the operating system drew one: whoever knows it knows cohorts and noise. Both
private/rounds.csv and parts/*.npz hold norms of updates, clipped shares and sizes of cohorts, round by round;
private/observed.csv comes from what every single unit sent. ε covers none of them.
"""
_KNOWN = """\
To publish models, leave ensemble.seed out of the configuration, or set ensemble.secure_noise = true, and
train again. Where the data are public anyway nothing is lost.
"""


def secret_of(config: Config) -> str:
    """What nobody who was corrupted may have known of a run's random numbers."""
    if config.ensemble.secure_noise:
        return NO_SEED
    return FRESH if config.ensemble.seed is None else KNOWN


def notice(config: Config, mechanism: Mechanism, federation: Federation) -> str:
    """What may be published of a run of `config`, which executes `mechanism` on a `federation`."""
    if not is_private(mechanism):
        first = "No noise was added, so no ε covers anything here; in any case keep private/ to yourself."
        return f"{first}\n\n{_PRIVATE}"
    if mechanism.reasons:
        first = f"Publish nothing of this that must stay private: {'; '.join(mechanism.reasons)}."
        return f"{first}\n\n{_PRIVATE}"
    if config.ensemble.seed is not None and not config.ensemble.secure_noise:
        first = "Publish nothing of this that must stay private: whoever knows the seed can remove the noise."
        return f"{first}\n\n{_KNOWN}\n{_PRIVATE}"
    if federation.tests_of_users:
        models = "" if federation.tested_only else " but the models, parts/*.safetensors or release.npz"
        return f"Publish nothing of this{models}: {TESTS_OF_USERS}.\n\n{_PRIVATE}"
    first = "Keep private/ and parts/*.npz to yourself; everything else here may be published."
    return f"{first}\n\n{_COVERED}\n{_PRIVATE}"
