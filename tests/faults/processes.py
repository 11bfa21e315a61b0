"""Kill the processes of a real Flower deployment: `python -m tests.faults.processes COUNT FOLDER`.

One SuperLink and two SuperNodes, with TLS and node keys, serve all runs of the example. In each run one of
four kinds of process gets SIGKILL at a random moment: the ServerApp, a ClientApp, a SuperNode with all that it
started, the SuperLink with all that it started. What ended is started again as an operator would: a node by
its service manager, the SuperLink by its own, the app by submitting it as it was. Prints one JSON document.
"""

import json
import os
import random
import sys
import time
from collections import Counter
from pathlib import Path

import psutil

from fedproof.accounting.ledger import load_ledger
from fedproof.certificates import verify
from tests.faults.federations import EXAMPLE, SEED

sys.path.insert(0, str(EXAMPLE))
import deploy  # noqa: E402

KINDS = ("serverapp", "clientapp", "supernode", "superlink")
SETTINGS = {
    "users": 2, "rounds": 2, "probability": 0.75, "noise-multiplier": 1.0, "replicas": 6, "part-size": 3,
    "local-epochs": 2, "timeout": 400.0, "connect-timeout": 400.0,
}  # fmt: skip
OUTPUTS = ("certificate.json", "scores.npy", "ledger.json")


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


def trial(running, out, kind, rng, found):
    """One run, in which a process of the kind is killed when some rounds are over and some time has passed."""
    config = SETTINGS | {"out": str(out)}
    running.run_app(config)
    rounds, moment = rng.randrange(4), rng.uniform(0, 3)
    running.wait(lambda: deploy.rounds_done(out) >= rounds, f"{rounds} rounds are over")
    time.sleep(moment)
    running.wait(lambda: kill(running, kind, rng) or done(out), f"there is a {kind}")
    found["killed"] += not done(out)
    found["counted_too_little"] += counted_too_little(out)
    if kind in ("serverapp", "superlink"):
        running.run_app(config)
    looked = time.monotonic()

    def over():
        nonlocal looked
        if time.monotonic() > looked + 5:
            revive(running)
            looked = time.monotonic()
        return done(out)

    running.wait(over, "the certificate is there")
    revive(running)


def done(out):
    return (out / "certificate.json").exists()


def counted_too_little(out):
    """Whether models that lie there to be published are more than the ledgers count."""
    kept = deploy.rounds_done(out) * SETTINGS["part-size"]
    ledger = out / "ledger.json"
    if not ledger.exists():
        return kept > 0
    found = load_ledger(ledger)
    return found.replicas * found.queries[0].count < kept


def outputs(out):
    return {name: (out / name).read_bytes() for name in OUTPUTS}


def main(count, base, kinds):
    os.environ["FEDPROOF_SEED"] = str(SEED)
    rng = random.Random(0)
    names = ("deployments", "equal", "killed", "counted_too_little", "wrong")
    found, faults = Counter(dict.fromkeys(names, 0)), {}
    with deploy.Deployment(folder=base / "deployment", nodes=2) as running:
        running.run_app(SETTINGS | {"out": str(base / "undisturbed")})
        running.wait(lambda: done(base / "undisturbed"), "the certificate is there")
        for number in range(count):
            kind, out = kinds[number % len(kinds)], base / f"run-{number}"
            trial(running, out, kind, rng, found)
            found["counted_too_little"] += counted_too_little(out)
            found["wrong"] += bool(verify((out / "certificate.json").read_text(), out / "scores.npy"))
            same = outputs(out) == outputs(base / "undisturbed")
            found["equal"] += same
            found["deployments"] += 1
            if not same:
                states = map(Path.read_text, sorted(out.glob("part-*/private/state.json")))
                metrics = [row for state in states for row in json.loads(state)["metrics"]]
                faults[f"{number} {kind}"] = [row["faults"] for row in metrics]
            print(number, kind, same, dict(found), file=sys.stderr, flush=True)
    print(json.dumps(found | {"faults": faults}))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]).resolve(), sys.argv[3:] or KINDS)
