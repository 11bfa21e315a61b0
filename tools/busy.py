"""Run a command while every core is kept busy: `python tools/busy.py COMMAND ...`.

Each core gets one process that counts. They end with this one, whatever ends
it; the exit status is the command's.
"""

import os
import subprocess
import sys

COUNT = """
import os, sys
while os.getppid() == int(sys.argv[1]):
    for _ in range(1_000_000):
        pass
"""


def main(command: list[str]) -> int:
    """Exit status of `command`, run on busy cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    counting = [subprocess.Popen([sys.executable, "-S", "-c", COUNT, str(os.getpid())]) for _ in range(cores)]
    try:
        return subprocess.run(command).returncode
    finally:
        for process in counting:
            process.kill()
            process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
