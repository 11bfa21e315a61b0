"""A run's directory: belongs to one configuration, used by one process at a time, never overwritten."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from fedproof.config import Config, load_config

CONFIG = "config.toml"
_LOCK = ".lock"


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """An open run directory."""

    path: Path

    @property
    def parts(self) -> Path:
        """Where finished parts lie."""
        return self.path / "parts"

    @classmethod
    @contextmanager
    def open(cls, path: Path, config: Config, *, resume: bool) -> Iterator["RunFolder"]:
        """The directory of a run of `config`, locked while it is used.

        Raises:
            ValueError: it belongs to another configuration, is no run directory, holds a run that was not to
                be resumed, or is in use.
        """
        _check(path, config, resume=resume)
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = (path / _LOCK).open("w")
        except OSError as error:
            raise ValueError(f"--out {path}: cannot be written to: {error.strerror}") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                raise ValueError(f"--out {path}: another process is working in it") from error
            _check(path, config, resume=resume)  # again, now that nobody else can change it
            replace_file(path / CONFIG, config.to_toml().encode())
            yield cls(path=path)

    def write_scores(
        self, parts: Iterator[NDArray[np.float32]], shape: tuple[int, int, int]
    ) -> NDArray[np.float32]:
        """All parts' scores in `scores.npy`, memory-mapped: the ensemble never has to fit into memory."""
        partial = self.path / ".scores.npy.tmp"
        array = np.lib.format.open_memmap(partial, mode="w+", dtype=np.float32, shape=shape)
        begin = 0
        for part in parts:
            array[begin : begin + len(part)] = part
            begin += len(part)
        assert begin == shape[0]
        array.flush()
        del array
        partial.replace(self.path / "scores.npy")
        scores: NDArray[np.float32] = np.load(self.path / "scores.npy", mmap_mode="r")
        return scores


def _check(path: Path, config: Config, *, resume: bool) -> None:
    """Raise ValueError unless `path` is new, empty, or a run of `config` that is to be resumed."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"--out {path}: is a file, must be a directory")
    if not (path / CONFIG).exists():
        if any(entry.name != _LOCK for entry in path.iterdir()):
            raise ValueError(f"--out {path}: holds other files; choose a new directory")
        return
    found = load_config(path / CONFIG)
    if found != config:
        raise ValueError(
            f"--out {path}: belongs to another configuration ({_difference(found, config)}); choose another"
        )
    if not resume:
        raise ValueError(f"--out {path}: holds a run of this configuration; go on with --resume")


def _difference(found: Config, wanted: Config) -> str:
    """The first key in which two configurations differ."""
    there, here = (_flat(config.model_dump(mode="json")) for config in (found, wanted))
    key = next(key for key in here if here[key] != there.get(key))
    return f"{key} = {there.get(key)!r} there, {here[key]!r} here"


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, table in document.items() for key, value in table.items()}


def replace_file(path: Path, content: bytes) -> None:
    """Write a file so that a crash leaves the old one or the new one, never half of it."""
    partial = path.with_name(f".{path.name}.tmp")
    with partial.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
