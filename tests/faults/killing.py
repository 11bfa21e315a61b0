"""Kill training processes at random moments and resume them: `python -m tests.faults.killing COUNT FOLDER`.

A program of its own that forks: torch is imported once, not a hundred times. Prints one JSON document.
"""

import json
import os
import random
import signal
import sys
import time
from pathlib import Path

import torch

from fedproof.certificates import loads, verify
from fedproof.experiment import run
from tests.tiny import outputs, tiny


def forked(folder):
    """A child that works in `folder`, as its process id."""
    child = os.fork()
    if child == 0:
        try:
            run(tiny(), folder, resume=True)
        except BaseException as error:
            print(repr(error), file=sys.stderr)
            os._exit(1)
        os._exit(0)
    return child


def killed(folder, delay, parts):
    """Whether the child was still at work after `parts` new parts and `delay` seconds; now it is not."""
    wanted = len(stamps(folder)) + parts
    child = forked(folder)
    while parts and len(stamps(folder)) < wanted and alive(child):
        time.sleep(0.0005)
    time.sleep(delay)
    os.kill(child, signal.SIGKILL)  # a child that has ended waits to be asked for its status
    return os.waitpid(child, 0)[1] == signal.SIGKILL


def alive(child):
    """Whether the child is still at work; its status is left for who asks for it."""
    return os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None


def stamps(folder):
    return {path.name: path.stat().st_mtime_ns for path in folder.glob("private/parts/part-*.json")}


def main(count, base):
    torch.set_num_threads(1)
    run(tiny(), base / "straight")
    began = time.perf_counter()
    assert os.waitpid(forked(base / "timed"), 0)[1] == 0
    duration = time.perf_counter() - began
    straight = outputs(base / "straight")
    rng = random.Random(0)
    found = {"runs": 0, "killed": 0, "kills": 0, "identical": 0, "lost": 0, "wrong": 0, "parts_kept": 0}
    for number in range(count):
        folder = base / f"killed-{number}"
        kills = 0
        # Every other run at any moment, the others soon after a part: those are at work on any machine.
        while kills < 3:
            after_part = number % 2 == 0 and kills == 0
            delay = rng.uniform(0, 0.02) if after_part else rng.uniform(0, 1.1) * duration
            if not killed(folder, delay, parts=rng.randrange(1, 6) if after_part else 0):
                break
            kills += 1
            certificate = folder / "certificate.json"
            if certificate.exists():  # whole and true, or not there
                text = certificate.read_text()
                found["wrong"] += bool(loads(text) is None or verify(text, folder / "scores.npy"))
        before = stamps(folder)
        status = os.waitpid(forked(folder), 0)[1]
        after = stamps(folder)
        found["runs"] += 1
        found["killed"] += kills > 0
        found["kills"] += kills
        found["parts_kept"] += len(before)
        found["lost"] += sum(after[name] != moment for name, moment in before.items())
        found["identical"] += status == 0 and outputs(folder) == straight
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]))
