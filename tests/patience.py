"""Waiting for a process by what it does: on a busy machine all is late, and nothing is wrong.

A process is given up when it and its children have neither computed nor ended for `IDLE` seconds, or have
computed for `CPU` seconds, which no test needs. It is looked at `EVERY` two seconds.
"""

import subprocess
import time

import psutil

IDLE, CPU, EVERY = 180.0, 1800.0, 2.0


class Watch:
    """Looks at a process and its children again and again."""

    def __init__(self, process: subprocess.Popen) -> None:
        self._process, self._used, self._moved = process, 0.0, time.monotonic()

    def look(self) -> None:
        """AssertionError, with the whole family ended, if there is no use in waiting."""
        used = computed(self._process)
        if abs(used - self._used) > 0.05:  # less, too: a child has ended
            self._used, self._moved = used, time.monotonic()
        idle = time.monotonic() - self._moved
        if idle > IDLE or used > CPU:
            end(self._process)
            raise AssertionError(f"{self._process.args}: idle for {idle:.0f} s after {used:.0f} s of work")


def computed(process: subprocess.Popen) -> float:
    """Seconds that the process and all that descend from it have computed."""
    total = 0.0
    for one in family(process):
        try:
            times = one.cpu_times()
        except psutil.Error:
            continue
        total += times.user + times.system + times.children_user + times.children_system
    return total


def family(process: subprocess.Popen) -> list[psutil.Process]:
    """The process and all that descend from it."""
    try:
        parent = psutil.Process(process.pid)
        return [parent, *parent.children(recursive=True)]
    except psutil.NoSuchProcess:
        return []


def end(process: subprocess.Popen) -> None:
    """End a process and its children, and return when all of them have ended."""
    members = family(process)
    for one in reversed(members):
        try:
            one.kill()
        except psutil.NoSuchProcess:
            continue
    process.wait()
    while any(map(_works, members)):  # a signal takes its time to arrive
        time.sleep(0.01)


def _works(one: psutil.Process) -> bool:
    try:
        return one.is_running() and one.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def finish(process: subprocess.Popen) -> tuple:
    """What the process has printed, when it has ended."""
    watch = Watch(process)
    with process:
        while True:
            try:
                return process.communicate(timeout=EVERY)
            except subprocess.TimeoutExpired:
                watch.look()
            except BaseException:
                end(process)
                raise


def finished(command: list, *, text: bool = True, **how: object) -> subprocess.CompletedProcess:
    """The command when it has ended, with all that it printed."""
    process = subprocess.Popen(
        list(map(str, command)), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=text, **how
    )
    out, errors = finish(process)
    return subprocess.CompletedProcess(process.args, process.returncode, out, errors)


def until(condition, process: subprocess.Popen, *, every: float = 0.005) -> None:
    """Return when `condition` holds or the process has ended; the caller looks which."""
    watch, looked = Watch(process), time.monotonic()
    while not condition() and process.poll() is None:
        time.sleep(every)
        if time.monotonic() > looked + EVERY:
            watch.look()
            looked = time.monotonic()
