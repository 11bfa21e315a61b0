"""A run's directory: belongs to one configuration, used by one process at a time, never overwritten."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from fedproof.config import Config, load_config
from fedproof.files import locked, replace_file, replacing

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
            (path / _LOCK).touch()
        except OSError as error:
            raise ValueError(f"--out {path}: cannot be written to: {error.strerror}") from error
        with locked(path / _LOCK, f"--out {path}"):
            _check(path, config, resume=resume)  # again, now that nobody else can change it
            _remove_unfinished(path)
            replace_file(path / CONFIG, config.to_toml().encode())
            yield cls(path=path)

    def write_scores(
        self, parts: Iterator[NDArray[np.float32]], shape: tuple[int, int, int]
    ) -> NDArray[np.float32]:
        """All parts' scores in `scores.npy`, memory-mapped: the ensemble never has to fit into memory."""
        header = {"descr": "<f4", "fortran_order": False, "shape": shape}
        begin = 0
        # Written, not mapped: on a full disk a mapping ends the process without a word.
        with replacing(self.path / "scores.npy") as file:
            npy.write_array_header_1_0(file, header)
            for part in parts:
                file.write(np.ascontiguousarray(part, dtype="<f4").data)
                begin += len(part)
            assert begin == shape[0]
        scores: NDArray[np.float32] = np.load(self.path / "scores.npy", mmap_mode="r")
        return scores


def read_config(folder: Path) -> Config:
    """The configuration that a run's directory belongs to.

    Directories of earlier releases do not say `data.seed`: there one seed decided who holds what as well.
    """
    config = load_config(folder / CONFIG)
    if "seed" in config.data.model_fields_set or config.ensemble.seed is None:
        return config
    return config.model_copy(update={"data": config.data.model_copy(update={"seed": config.ensemble.seed})})


def _check(path: Path, config: Config, *, resume: bool) -> None:
    """Raise ValueError unless `path` is new, empty, or a run of `config` that is to be resumed."""
    if not path.exists():
        return
    if not path.is_dir():
        raise ValueError(f"--out {path}: is a file, must be a directory")
    if not (path / CONFIG).exists():
        if any(entry.name != _LOCK and not _is_unfinished(entry) for entry in path.iterdir()):
            raise ValueError(f"--out {path}: holds other files; choose a new directory")
        return
    found = read_config(path)
    if found != config:
        raise ValueError(
            f"--out {path}: belongs to another configuration ({_difference(found, config)}); choose another"
        )
    if not resume:
        raise ValueError(f"--out {path}: holds a run of this configuration; go on with --resume")


def _is_unfinished(path: Path) -> bool:
    """Whether a process that was killed left this file before it was whole."""
    return path.name.startswith(".") and path.name.endswith(".tmp")


def _remove_unfinished(path: Path) -> None:
    for entry in (*path.glob(".*.tmp"), *path.glob("parts/.*.tmp")):
        entry.unlink(missing_ok=True)


def _difference(found: Config, wanted: Config) -> str:
    """The first key in which two configurations differ."""
    there, here = (_flat(config.model_dump(mode="json")) for config in (found, wanted))
    key = next(key for key in here if here[key] != there.get(key))
    return f"{key} = {there.get(key)!r} there, {here[key]!r} here"


def _flat(document: dict[str, Any]) -> dict[str, Any]:
    return {f"{section}.{key}": value for section, table in document.items() for key, value in table.items()}
