"""What carries noise is made once, counted, and only then shown: one protocol for everything. Free of torch.

A release is *made* where nobody sees it, in `private`, and *marked* there by a record of what it belongs to.
Then it is *counted*, and *published* by a move into its place. Each step is on the disk before the next
begins. After a crash, the next process finds the last step that was finished and takes the one after it.

Guarantee: nothing public is uncounted, and noise is used for one release.
Proof: files become public by a rename alone, after `count` has returned. A record is one atomic write, after
its files are whole. Without a record nobody has seen anything, so the release may be made, with whatever
noise. With a record its files are shown as they were made, or not at all: nothing with other digests takes
their place.
"""

import hashlib
import json
import secrets
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fedproof.files import (
    MAX_BYTES,
    locked,
    make_folder,
    move,
    opened,
    parse_json,
    read_text,
    read_whole,
    replace_file,
)

PRIVATE = "private"
LOCK = ".lock"
_IDENTITY = "identity"

Write = Callable[[Path], object]
"""Writes a file whole, or not at all."""


@dataclass(frozen=True, kw_only=True)
class Record:
    """A release that was made.

    Attributes:
        mark: what it belongs to.
        sha256: of each of its files, by the name that it is published under; those in `private` stay there.
        told: what its maker wants to know again, as plain JSON values.
    """

    mark: str
    sha256: dict[str, str]
    told: dict[str, Any]


class Vault:
    """A folder whose releases are made once; `called` is its name in messages."""

    def __init__(self, folder: Path, called: str | None = None) -> None:
        self.folder = folder
        self.called = str(folder) if called is None else called
        self._held = False

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Keep other processes, and other vaults of this folder, out; inside itself this does nothing.

        The lock file is never removed: whoever waits for a removed one would not be alone.

        Raises:
            ValueError: another process is working in the folder.
        """
        if self._held:
            yield
            return
        make_folder(self.folder / PRIVATE, mode=0o700)
        with locked(self.folder / PRIVATE / LOCK, self.called):
            self._held = True
            try:
                yield
            finally:
                self._held = False

    @property
    def identity(self) -> str:
        """Tells this folder from every other one, a copy of it included, while it stays in its place."""
        path = self.folder / PRIVATE / _IDENTITY
        if not path.exists():
            replace_file(path, f"{secrets.token_hex(16)}\n".encode(), mode=0o600)
        own = f"{read_text(path).strip()} {self.folder.resolve()}"
        return hashlib.sha256(own.encode()).hexdigest()[:32]

    def record(self, item: str) -> Record | None:
        """What was made under this name; None if nothing was.

        Raises:
            ValueError: the record cannot be read.
        """
        path = self._record(item)
        try:
            found = parse_json(read_whole(path))
            record = Record(mark=found["mark"], sha256=dict(found["sha256"]), told=dict(found["told"]))
            values = (record.mark, *record.sha256, *record.sha256.values())
        except FileNotFoundError:
            return None
        except (OSError, ValueError, TypeError, LookupError) as error:
            raise ValueError(f"{self.called}: {path.name} is not the record of a release") from error
        if not all(isinstance(value, str) for value in values):
            raise ValueError(f"{self.called}: {path.name} is not the record of a release")
        return record

    def made(self, item: str, mark: str) -> Record | None:
        """What was made under this name, which must belong to the same; None if nothing was."""
        record = self.record(item)
        if record is not None and record.mark != mark:
            raise self.other()
        return record

    @property
    def begun(self) -> bool:
        """Whether anything was made."""
        return any((self.folder / PRIVATE).rglob("*.json"))

    def keep(
        self, item: str, mark: str, files: Mapping[str, Write], *, free: bool = False, **told: Any
    ) -> Record:
        """Make the files of a release where nobody sees them, then the record that says what they are.

        What was made and is gone may be made again if it becomes the same, digit for digit. `free`: nothing
        is lost if it becomes something else, because no noise hides anybody in it.

        Raises:
            ValueError: it was made, and is there or was something else.
        """
        known = {} if free else self._known(item, mark, files)
        for name, write in files.items():
            make_folder(self._hidden(name).parent, mode=0o700)
            write(self._hidden(name))
        digests = {name: _digest(self._hidden(name)) or "" for name in files}
        if any(digests[name] != known.get(name, digests[name]) for name in files):
            raise self.gone(item)
        record = {"mark": mark, "sha256": digests, "told": told}
        path = self._record(item)
        make_folder(path.parent, mode=0o700)
        replace_file(path, (json.dumps(record, indent=1) + "\n").encode(), mode=0o600)
        return Record(mark=mark, sha256=digests, told=told)

    def publish(self, item: str, count: Callable[[], object]) -> bool:
        """Count what was made, then put it in its place, unless it is there; False if some of it is gone."""
        record = self.record(item)
        if record is None or not self.there(item):
            return False
        waiting = [name for name, digest in record.sha256.items() if _digest(self.folder / name) != digest]
        if waiting:
            count()
        for name in waiting:
            make_folder((self.folder / name).parent)
            move(self._hidden(name), self.folder / name)
        return True

    def there(self, item: str) -> bool:
        """Whether all that was made is as it was made, in its place or waiting for it."""
        record = self.record(item)
        return record is not None and all(
            digest in (_digest(self.folder / name), _digest(self._hidden(name)))
            for name, digest in record.sha256.items()
        )

    def whole(self, item: str) -> bool:
        """Whether what was made is in its place, as it was made."""
        record = self.record(item)
        return record is not None and all(
            _digest(self.folder / name) == digest for name, digest in record.sha256.items()
        )

    def other(self) -> ValueError:
        """The error where the folder's noise belongs to something else."""
        return ValueError(
            f"{self.called}: what it holds was made of something else (other data, settings, seed or code, "
            "or another version of fedproof, torch or NumPy), and its noise must not be used again; choose "
            "another folder"
        )

    def gone(self, what: str) -> ValueError:
        """The error where something that was made is missing."""
        return ValueError(
            f"{self.called}: {what} was made, and is missing or was altered; its noise must not be used "
            "again: put it back, or choose another folder"
        )

    def taken(self, what: str) -> ValueError:
        """The error where another process was first."""
        return ValueError(f"{self.called}: {what} was made meanwhile, and must not be made again")

    def _known(self, item: str, mark: str, files: Mapping[str, Write]) -> dict[str, str]:
        """Digests that the files of a release must have, because they were recorded or shown."""
        record = self.made(item, mark)
        if record is None:
            shown = {name: _digest(self.folder / name) for name in files if not _stays(name)}
            return {name: digest for name, digest in shown.items() if digest is not None}
        known = {name: digest for name, digest in record.sha256.items() if name in files}
        if known and self.there(item):
            raise self.taken(item)
        return known

    def _hidden(self, name: str) -> Path:
        return self.folder / (name if _stays(name) else f"{PRIVATE}/{name}")

    def _record(self, item: str) -> Path:
        return self.folder / PRIVATE / f"{item}.json"


def _stays(name: str) -> bool:
    return name.startswith(f"{PRIVATE}/")


def _digest(path: Path) -> str | None:
    try:
        with opened(path, MAX_BYTES) as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError:
        return None
