"""What a long computation tells: how far it has come, and how much memory it took."""

import resource
from collections.abc import Callable
from pathlib import Path

Progress = Callable[[str, int, int], None]
"""Called with the stage's name, steps done and steps in all."""


Tally = Callable[[int, int], None]
"""Called with the number done and of all."""


def silent(stage: str, done: int, total: int) -> None:
    """A `Progress` that tells nobody."""


def peak_memory() -> int:
    """Largest resident size of this process in bytes.

    On Linux from the kernel's own mark for the running program: `getrusage` would also count what the parent
    process held before it started this one.
    """
    try:
        lines = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmHWM:"))
    except (OSError, StopIteration):
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
