"""Kill the processes of a real Flower deployment: `python -m tests.faults.processes COUNT FOLDER`.

One SuperLink and two SuperNodes, with TLS and node keys, serve all runs of the example, one strategy after
another. In each run one of four kinds of process gets SIGKILL at some moment: the ServerApp, a ClientApp, a
SuperNode or the SuperLink with all that they started. What ended is started again as an operator would: nodes
and SuperLink by their service managers, the app by submitting it as it was. Prints one JSON document.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from fedproof.certificates import verify
from tests.faults.federations import SEED, counted, example

deploy = example("deploy")
KINDS = ("serverapp", "clientapp", "supernode", "superlink")
STRATEGIES = ("user-fedavg", "one-round", "cohort-once", "partition")
SETTINGS = {
    "users": 2, "rounds": 2, "probability": 0.75, "noise-multiplier": 1.0, "replicas": 6, "part-size": 3,
    "local-epochs": 2, "timeout": 400.0, "connect-timeout": 400.0,
}  # fmt: skip
OUTPUTS = ("certificate.json", "scores.npy", "ledger.json", "release.npz", "models.npz")


def children(running, name, word):
    """The processes that one of the deployment started and whose command line holds the word."""
    found = []
    for child in psutil.Process(running.processes[name].pid).children(recursive=True):
        try:
            found += [child] * (word in " ".join(child.cmdline()))
        except psutil.Error:
            continue
    return found


def kill(running, kind, rng):
    """Kill a process of that kind, if there is one now; whether there was."""
    if kind == "superlink":
        running.kill("superlink")
        running.start_superlink()
        return True
    node = f"node-{rng.randrange(running.nodes)}"
    if kind == "supernode":
        running.kill(node)
        return True
    found = children(running, "superlink" if kind == "serverapp" else node, f"flwr-{kind}")
    for process in found:
        process.kill()
    return bool(found)


def revive(running):
    """Start nodes that have ended, as a service manager would, again and again."""
    for node in range(running.nodes):
        process = running.processes.get(f"node-{node}")
        if process is None or process.poll() is not None:
            running.start_node(node)


def trial(running, config, kind, rng, found):
    """One run, in which a process of the kind is killed at some moment."""
    out = Path(config["out"])
    running.run_app(config)
    time.sleep(rng.uniform(0, 15))
    running.wait(lambda: done(out) or kill(running, kind, rng), f"there is a {kind}")
    found["killed"] += not done(out)
    found["counted_too_little"] += counted_too_little(out)
    if kind in ("serverapp", "superlink"):
        running.run_app(config)
    looked = busy = time.monotonic()

    def over():
        nonlocal looked, busy
        now = time.monotonic()
        if now > looked + 5:
            revive(running)
            looked = now
            busy = now if children(running, "superlink", "flwr-serverapp") else busy
        return done(out) or now > busy + 60

    running.wait(over, "the certificate is there, or the app has ended without")


def done(out):
    return (out / "certificate.json").exists()


def counted_too_little(out):
    """Whether what lies there to be published is more than the ledger counts."""
    kept = deploy.rounds_done(out) * SETTINGS["part-size"] or (out / "release.npz").exists()
    if not kept or not (out / "ledger.json").exists():
        return bool(kept)
    return counted(out / "ledger.json") < kept - 1e-9


def outputs(out):
    return {name: (out / name).read_bytes() for name in OUTPUTS if (out / name).exists()}


def main(count, base, *kinds):
    os.environ["FEDPROOF_SEED"] = str(SEED)
    kinds = kinds or KINDS
    rng, expected = random.Random(0), {}
    names = ("deployments", "equal", "refused", "killed", "counted_too_little", "wrong")
    found = Counter(dict.fromkeys(names, 0))
    with deploy.Deployment(folder=base / "deployment", nodes=2) as running:
        for strategy in STRATEGIES[:count]:
            out = base / strategy
            running.run_app(SETTINGS | {"out": str(out), "strategy": strategy})
            running.wait(lambda out=out: done(out), "the certificate is there")
            expected[strategy] = outputs(out)
        for number in range(count):
            kind, strategy = kinds[number % len(kinds)], STRATEGIES[(number + number // 4) % len(STRATEGIES)]
            out = base / f"run-{number}"
            trial(running, SETTINGS | {"out": str(out), "strategy": strategy}, kind, rng, found)
            found["deployments"] += 1
            found["counted_too_little"] += counted_too_little(out)
            found["refused"] += not done(out)
            if done(out):
                found["wrong"] += bool(verify((out / "certificate.json").read_text(), out / "scores.npy"))
                found["equal"] += outputs(out) == expected[strategy]
            print(number, strategy, kind, dict(found), file=sys.stderr, flush=True)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]).resolve(), *sys.argv[3:])
