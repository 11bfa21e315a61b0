"""Where data sets lie, and reading their files and archives without trusting them."""

import gzip
import hashlib
import os
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path, PurePosixPath
from typing import IO

from platformdirs import user_cache_path

from fedproof import check
from fedproof.files import opened

VARIABLE = "FEDPROOF_DATA"
MAX_BYTES = 2**31  # no file of the known data sets unpacks to more; a header may promise anything
MAX_RATIO = 1032  # the most that one byte of deflate can become (zlib's own technical notes)
MAX_LINE = 2**17
REMEDY = "remove it and fetch it again"
BLOCK = 2**20  # bytes unpacked at once
DAMAGE = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, NotImplementedError)


def data_folder(data_dir: str | os.PathLike[str] | None = None) -> Path:
    """The folder of all data sets: the argument, else FEDPROOF_DATA, else the platform's cache folder.

    Raises:
        ValueError: a folder was named but is not there.
    """
    named = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if not named:
        return user_cache_path("fedproof")
    folder = Path(named).expanduser()
    if not folder.is_dir():
        source = "data_dir" if data_dir is not None else VARIABLE
        raise ValueError(f"{source} = {str(named)!r} is no folder; make it, or name the folder with the data")
    return folder


def existing(path: Path, *, name: str | None) -> Path:
    """`path`, if it is a file that can be read; `name` is its data set, if that can be fetched."""
    if not path.is_file():
        how = "" if name is None else f"run `fedproof data fetch {name}`, or "
        raise ValueError(f"{path} is not there; {how}put the file there yourself")
    return path


def sha256_of(path: Path) -> str:
    """SHA-256 of a file, in hexadecimal digits."""
    with reading(path, "make it readable"), opened(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextmanager
def reading(path: Path, remedy: str) -> Iterator[None]:
    """Whatever the file's bytes cause becomes one ValueError that names the file and the remedy."""
    try:
        yield
    except (EOFError, zlib.error, gzip.BadGzipFile) as error:
        raise ValueError(f"{path} is truncated or no gzip file ({error}); {remedy}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no {error.encoding} text ({error.reason}); {remedy}") from None
    except OSError as error:
        raise ValueError(f"{path} cannot be read ({error.strerror or error}); {remedy}") from None


def lines(stream: IO[str], path: Path, *, max_characters: int) -> Iterator[str]:
    """Lines of a text, in bounded memory: a packed file may hold one endless line, or endless lines."""
    total = 0
    while line := stream.readline(MAX_LINE):
        total += len(line)
        if len(line) >= MAX_LINE or total > max_characters:
            raise ValueError(
                f"{path} has a line or a text longer than this format allows; fetch the file again"
            )
        yield line


def unpack(archive: Path, *, folder: Path, members: Mapping[str, int]) -> None:
    """Put the named files of a .zip or .tar.gz archive into `folder`, and nothing else anywhere.

    Folders inside the archive, links and other members are passed over, so no name in an archive can lead
    outside. A file appears under its name only when it is complete. `members` are names without folders, and
    the most bytes each may unpack to.
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
    with opened(archive) as file, tarfile.open(fileobj=file, mode="r:gz") as tar:
        for entry in tar:
            name = PurePosixPath(entry.name).name
            stream = tar.extractfile(entry) if entry.isreg() and name in wanted else None
            if stream is not None:
                yield name, stream


def _zip_entries(archive: Path, wanted: set[str]) -> Iterator[tuple[str, IO[bytes]]]:
    with opened(archive) as file, zipfile.ZipFile(file) as packed:
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
