"""Writing files so that a crash, a full disk or Ctrl-C leaves the old file or the new one, never half."""

import csv
import fcntl
import io
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO


@contextmanager
def replacing(path: Path, *, mode: int = 0o666) -> Iterator[IO[bytes]]:
    """A file to write to that takes the place of `path` when all has reached the disk, and only then.

    It never has more permissions than `mode`.

    Raises:
        OSError: it could not be written; the message names `path`.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with open(partial, "wb", opener=lambda name, flags: os.open(name, flags, mode)) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        partial.replace(path)
        _sync_folder(path.parent)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise OSError(error.errno, f"cannot be written ({error.strerror or error})", str(path)) from error
    except BaseException:
        partial.unlink(missing_ok=True)
        raise


def replace_file(path: Path, content: bytes, *, mode: int = 0o666) -> None:
    """Write `content` as the whole of `path`, with no more permissions than `mode`."""
    with replacing(path, mode=mode) as file:
        file.write(content)


def replace_rows(path: Path, rows: Sequence[Mapping[str, object]]) -> None:
    """Write rows with the same keys as the whole of a CSV file."""
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, fieldnames=list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    replace_file(path, text.getvalue().encode())


@contextmanager
def locked(path: Path, what: str) -> Iterator[None]:
    """Hold the lock file `path` for as long as the block runs; a process that dies lets go of it.

    Raises:
        ValueError: another process holds it; the message begins with `what`.
    """
    with path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise ValueError(f"{what}: another process is working in it") from error
        yield


def _sync_folder(folder: Path) -> None:
    """The name of a file is on disk only when its folder is."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
