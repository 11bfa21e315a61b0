"""A disk whose operations are counted, and after one of which the process is dead."""

import builtins
import os

import pytest


class KilledError(BaseException):
    """The process is dead: nothing that would clean up after it may run to its end."""


class Disk:
    """Counts what is done to files below a folder, and ends the process at one of these operations.

    After it nothing is done any more: who is killed cleans nothing up.
    """

    def __init__(self, patch, folder):
        self.folder, self.done, self.last, self.trace = str(folder), 0, None, []
        for name in ("replace", "rename", "mkdir", "unlink", "rmdir"):
            patch.setattr(os, name, self._counted(name, getattr(os, name)))
        self._handles, self._sync, self._open = {}, os.fsync, os.open
        patch.setattr(os, "fsync", self._fsync)
        patch.setattr(os, "open", self._os_open)
        self._builtin = builtins.open
        patch.setattr(builtins, "open", self._file)

    def kill_at(self, step):
        """Let the process die instead of doing operation number `step`."""
        self.done, self.last, self.trace = 0, step, []

    def _step(self, name, path):
        if str(path).startswith(self.folder):
            if self.last is not None and self.done >= self.last:
                raise KilledError
            self.done += 1
            self.trace.append((name, str(path)))

    def _counted(self, name, original):
        def counted(path, *rest, **options):
            self._step(name, path)
            return original(path, *rest, **options)

        return counted

    def _fsync(self, handle):
        self._step("fsync", self._handles.get(handle, ""))
        return self._sync(handle)

    def _os_open(self, path, flags, *rest, **options):
        if flags & os.O_CREAT:
            self._step("open", path)
        handle = self._open(path, flags, *rest, **options)
        self._handles[handle] = str(path)
        return handle

    def _file(self, path, mode="r", *rest, **options):
        file = self._builtin(path, mode, *rest, **options)
        return _Torn(file, path, self) if "w" in mode and str(path).startswith(self.folder) else file


class _Torn:
    """A file to which the last process wrote half of what it wanted to write."""

    def __init__(self, file, path, disk):
        self._file, self._path, self._disk = file, path, disk

    def write(self, content):
        try:
            self._disk._step("write", self._path)
        except KilledError:
            self._file.write(content[: len(content) // 2])
            self._file.flush()
            raise
        return self._file.write(content)

    def __getattr__(self, name):
        return getattr(self._file, name)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self._file.close()


@pytest.fixture
def disk(monkeypatch, tmp_path):
    """`Disk` below the test's folder."""
    with monkeypatch.context() as patch:
        yield Disk(patch, tmp_path)
