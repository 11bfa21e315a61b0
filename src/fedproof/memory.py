"""How much memory this process has used at most."""

import resource
from pathlib import Path


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
