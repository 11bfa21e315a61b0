"""Where data sets lie, and reading their files without trusting them."""

import gzip
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from platformdirs import user_cache_path

VARIABLE = "FEDPROOF_DATA"
MAX_BYTES = 2**31  # no file of the known data sets unpacks to more; a header may promise anything
MAX_RATIO = 1032  # the most that one byte of deflate can become (zlib's own technical notes)
MAX_LINE = 2**17


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


def existing(path: Path, *, name: str) -> Path:
    """`path`, if it is a file that can be read; `name` is the data set it belongs to."""
    if not path.is_file():
        raise ValueError(
            f"{path} is not there; run `fedproof data fetch {name}`, or put the file there yourself"
        )
    return path


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
