"""Kill servers and nodes of Flower deployments: `python -m tests.faults.deployments COUNT FOLDER`.

The server is a process of its own, ended by SIGKILL before or after any of its steps: each file that it
writes, renames or removes, each message that it sends, each reply that it gets. Strategy, ServerApp and
ClientApp are the real ones; between them is a grid of functions, for Flower's own processes take a minute to
come back (`test_deployments.py` kills those, too). A node that is killed stays silent, or its app fails.

What was sent is written down before it is sent, and held against the ledgers after every kill. Forks: all is
imported once. Prints one JSON document. With `uncounted` as a third word strategies write no ledger, which
must be noticed.
"""

import json
import logging
import os
import random
import signal
import sys
from collections import Counter
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from uuid import uuid4

from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedproof.accounting import ledger as ledgers
from fedproof.certificates import verify
from fedproof.integrations.flower import files
from tests.faults.federations import FEDERATIONS

USERS = 6


@dataclass(frozen=True, kw_only=True)
class Deaths:
    """What goes wrong with nodes: which of them do not reply in which round of which replicas, and how."""

    silent: frozenset = frozenset()
    failing: frozenset = frozenset()


class Steps:
    """Counts what the server does, and kills it before or after one of its steps."""

    def __init__(self, kill=None):
        self.done, self._kill = 0, kill

    @contextmanager
    def step(self):
        self._die(before=True)
        yield
        self._die(before=False)
        self.done += 1

    def _die(self, *, before):
        if self._kill == (self.done, before):
            os.kill(os.getpid(), signal.SIGKILL)

    def counted(self, function):
        def counted(*arguments, **options):
            with self.step():
                return function(*arguments, **options)

        return counted


@dataclass(kw_only=True)
class LoopGrid(Grid):
    """Nodes that are functions of this process, and a record of all that was sent to them."""

    app: object
    deaths: Deaths
    steps: Steps
    record: Path
    replies: dict = field(default_factory=dict)

    def set_run(self, run):
        raise NotImplementedError

    @property
    def run(self):
        raise NotImplementedError

    def create_message(self, *arguments, **options):
        raise NotImplementedError

    def get_node_ids(self):
        return range(100, 100 + USERS)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids):
        with self.steps.step():
            return [reply for name in message_ids for reply in self.replies.pop(name, ())]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages([name for name in self.push_messages(messages) if name])

    def _push(self, message):
        """Id of the message; none if it will never be answered, so that nobody waits."""
        with self.record.open("a") as file:
            print(json.dumps(noted(message)), file=file)
        with self.steps.step():
            message.metadata.__dict__["_message_id"] = name = str(uuid4())
            self.replies[name] = self._answers(message)
        return name if self.replies[name] else None

    def _answers(self, message):
        node = message.metadata.dst_node_id
        asked = (message.metadata.group_id, node)
        if asked in self.deaths.silent:
            return []
        if asked in self.deaths.failing:
            return [Message(Error(code=0, reason="killed"), reply_to=message)]
        known = {"partition-id": node - 100, "num-partitions": USERS}
        context = Context(run_id=1, node_id=node, node_config=known, state=RecordDict(), run_config={})
        return [self.app(message, context)]


def noted(message):
    """What a message shows to a node: the models of which replicas after which round."""
    config = next(iter(message.content.config_records.values()), {})
    return {
        "group": message.metadata.group_id,
        "node": message.metadata.dst_node_id,
        "trains": message.metadata.message_type == MessageType.TRAIN,
        "round": config.get("server-round", 0),
    }


def served(kind, folder, deaths, kill=None, record=None):
    """The steps of a server that did its work in `folder`."""
    steps = Steps(kill)
    record = record or folder.with_suffix(".sent")
    for name in ("replace", "fsync", "unlink", "rename", "mkdir"):
        setattr(os, name, steps.counted(getattr(os, name)))
    federation = FEDERATIONS[kind]
    grid = LoopGrid(app=federation.client_app(), deaths=deaths, steps=steps, record=record)
    federation.serve(grid, folder, USERS)
    return steps.done


def forked(kind, folder, deaths, kill=None):
    """How a server ended that worked in `folder`: its steps and what it said, or None where it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        try:
            said = {"steps": served(kind, folder, deaths, kill)}
        except (ValueError, OSError) as error:
            said = {"refused": str(error)}
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    if status == signal.SIGKILL:
        return None
    assert status == 0, f"{kind}: the server ended with {status}"
    return json.loads(text)


def counted_too_little(kind, folder):
    """Whether more was shown than the ledgers count, by what was sent and what lies there to be published."""
    record = folder.with_suffix(".sent")
    lines = record.read_text().splitlines() if record.exists() else []
    sent = [line for line in map(json.loads, lines) if line["trains"]]
    return any(
        shown and (not path.exists() or counted(path) < shown)
        for path, shown in FEDERATIONS[kind].shown(folder, sent).items()
    )


def counted(path):
    """Releases that a ledger counts: rounds, of each replica."""
    ledger = ledgers.load_ledger(path)
    return ledger.replicas * sum(query.count for query in ledger.queries)


def deaths_of(rng, kind):
    """Who is killed: nobody, or some nodes in some rounds."""
    asked = [(group, 100 + user) for group in FEDERATIONS[kind].groups for user in range(USERS)]
    if rng.random() < 0.5:
        return Deaths()
    killed = rng.sample(asked, rng.randint(1, 3))
    cut = rng.randint(0, len(killed))
    return Deaths(silent=frozenset(killed[:cut]), failing=frozenset(killed[cut:]))


def outputs(folder, kind):
    return {name: (folder / name).read_bytes() for name in FEDERATIONS[kind].outputs}


def deployment(number, rng, base, undisturbed, found):
    """One deployment with one to three kills of its server, and maybe some of its nodes."""
    kind = list(FEDERATIONS)[number % len(FEDERATIONS)]
    deaths, folder = deaths_of(rng, kind), base / f"deployment-{number}"
    if (kind, deaths) not in undisturbed:
        straight = base / f"straight-{number}"
        end = forked(kind, straight, deaths)
        assert "steps" in end, end
        undisturbed[kind, deaths] = end["steps"], outputs(straight, kind)
    steps, expected = undisturbed[kind, deaths]
    found["nodes_killed"] += len(deaths.silent | deaths.failing)
    for _ in range(rng.randint(1, 3)):
        end = forked(kind, folder, deaths, (rng.randrange(steps), rng.random() < 0.5))
        found["servers_killed"] += end is None
        found["counted_too_little"] += counted_too_little(kind, folder)
        certificate = folder / "certificate.json"
        if certificate.exists():  # whole and true, or not there
            found["wrong"] += bool(verify(certificate.read_text(), folder / "scores.npy"))
    end = forked(kind, folder, deaths)
    found["counted_too_little"] += counted_too_little(kind, folder)
    found["refused"] += "refused" in end
    found["equal"] += "steps" in end and outputs(folder, kind) == expected
    found["deployments"] += 1


def main(count, base, *planted):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    if "uncounted" in planted:
        files.save_ledger = lambda ledger, path: None
    for name in ("_task_id", "_run_id", "_node_id"):  # what the runtime tells a process about itself
        setattr(TaskIdentity, name, 1)
    names = (
        "deployments",
        "equal",
        "refused",
        "servers_killed",
        "nodes_killed",
        "counted_too_little",
        "wrong",
    )
    for federation in FEDERATIONS.values():  # imports what children would import again and again
        federation.warm()
    rng, undisturbed, found = random.Random(0), {}, Counter(dict.fromkeys(names, 0))
    for number in range(count):
        deployment(number, rng, base, undisturbed, found)
    print(json.dumps(found))


if __name__ == "__main__":
    main(int(sys.argv[1]), Path(sys.argv[2]), *sys.argv[3:])
