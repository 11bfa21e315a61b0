"""Files out of archives that are not trusted."""

import gzip
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from fedproof import check

REMEDY = "remove it and fetch it again"
BLOCK = 2**20
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


def unpack(archive: Path, *, folder: Path, members: Mapping[str, int]) -> None:
    """Put the named files of a tar or zip archive into `folder`, and nothing else anywhere.

    Folders inside the archive, links and other members are passed over, so no name in an archive can
    lead outside. A file appears under its name only when it is complete.

    Args:
        archive: a .zip or .tar.gz file.
        folder: where the files go.
        members: names without folders, and the most bytes each may unpack to.
    """
    entries = _zip_entries if archive.suffix == ".zip" else _tar_entries
    missing = set(members)
    try:
        for name, stream in entries(archive, missing):
            _write(stream, folder / name, members[name], archive)
            missing.discard(name)
    except (*DAMAGE, RuntimeError) as error:  # zipfile's word for a password
        raise ValueError(f"{archive} is damaged ({check.one_line(error)}); {REMEDY}") from None
    except OSError as error:
        raise ValueError(
            f"{archive} cannot be unpacked ({error}); make room, or choose another folder"
        ) from None
    if missing:
        raise ValueError(f"{archive} does not hold {', '.join(sorted(missing))}; {REMEDY}")


def _tar_entries(archive: Path, wanted: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with tarfile.open(archive) as tar:
        for entry in tar:
            name = PurePosixPath(entry.name).name
            stream = tar.extractfile(entry) if entry.isreg() and name in wanted else None
            if stream is not None:
                yield name, stream


def _zip_entries(archive: Path, wanted: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with zipfile.ZipFile(archive) as packed:
        for entry in packed.infolist():
            name = PurePosixPath(entry.filename).name
            if name in wanted and not entry.is_dir():
                with packed.open(entry) as stream:
                    yield name, stream


def _write(stream: IO[bytes], path: Path, most: int, archive: Path) -> None:
    """Copy at most so many bytes; the name is given last, so a crash leaves no half file under it."""
    handle, partial = tempfile.mkstemp(dir=path.parent, prefix=path.name, suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as out:
            written = 0
            while block := stream.read(BLOCK):
                written += len(block)
                if written > most:
                    raise ValueError(f"{archive}: {path.name} unpacks to more than {most} bytes; {REMEDY}")
                out.write(block)
        os.replace(partial, path)
    finally:
        Path(partial).unlink(missing_ok=True)
