"""Kill servers and nodes of Flower deployments: `python -m tests.faults.deployments FOLDER COUNT ...`.

The server is a process of its own, ended by SIGKILL before or after any of its steps: each file that it
writes, renames or removes, each message that it sends, each look for replies. Strategies, ServerApps and
ClientApps are real; between them is a grid of functions, for Flower's own processes take a minute to come
back (`processes.py` kills those). A node that is killed stays silent, or its app fails; it may be back when
it is asked again, or for the server that is started last.

What is sent is written down before it is sent. After every kill it is held against the ledgers, and against
what was sent before: a round that was shown must not be played again with other replies and the same noise.
Forks: all is imported once. Prints a line of JSON for each count. With `COUNT:uncounted` strategies write no
ledger, with `COUNT:forgetful` no state, and both must be noticed.
"""

import hashlib
import itertools
import json
import logging
import os
import random
import signal
import sys
import traceback
from collections import Counter, defaultdict
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from uuid import uuid4

import numpy as np
from flwr.app import Context, Error, Message, MessageType, RecordDict
from flwr.serverapp import Grid
from flwr.supercore.task_identity import TaskIdentity

from fedproof.certificates import verify
from fedproof.integrations.flower import arrays, files
from fedproof.seeds import SeededGenerator
from fedproof.vault import Vault
from tests.faults.federations import GROUPS, USERS, counted, example, must_count, serve

FIRST = 100  # node of user 0
FOUND = (
    "deployments", "equal", "refused", "servers_killed", "nodes_killed", "counted_too_little", "shown_twice",
    "wrong",
)  # fmt: skip


class Steps:
    """Counts what the server does, and kills it before or after one of its steps."""

    def __init__(self, kill):
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
    deaths: dict  # of (round, node): it is `silent`, or its app is `failing`, or fails and is `back` then
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
        return range(FIRST, FIRST + USERS)

    def push_messages(self, messages):
        return [self._push(message) for message in messages]

    def pull_messages(self, message_ids):
        with self.steps.step():
            return [reply for name in message_ids for reply in self.replies.pop(name, ())]

    def send_and_receive(self, messages, *, timeout=None):
        return self.pull_messages([name for name in self.push_messages(messages) if name])

    def _push(self, message):
        """Id of the message; none if it will never be answered, so that nobody waits."""
        if message.metadata.message_type == MessageType.TRAIN:
            with self.record.open("a") as file:
                print(json.dumps(noted(message)), file=file)
        with self.steps.step():
            message.metadata.__dict__["_message_id"] = name = str(uuid4())
            self.replies[name] = self._answers(message)
        return name if self.replies[name] else None

    def _answers(self, message):
        node = message.metadata.dst_node_id
        asked = (group_of(message), node)
        how = self.deaths.get(asked)
        if how == "back":
            del self.deaths[asked]
        if how is not None:
            return [] if how == "silent" else [Message(Error(code=0, reason="killed"), reply_to=message)]
        known = {"partition-id": node - FIRST, "num-partitions": USERS}
        context = Context(run_id=1, node_id=node, node_config=known, state=RecordDict(), run_config={})
        return [self.app(message, context)]


def group_of(message):
    """The round that a message belongs to: the name without what nobody else can guess."""
    return message.metadata.group_id.partition(".")[0]


def noted(message):
    """What a message shows to a node: the models of which replicas, or of its group, before which round."""
    config = next(iter(message.content.config_records.values()))
    arrays = [array.numpy() for record in message.content.array_records.values() for array in record.values()]
    replicas = config.get("fedproof-replicas")
    if replicas is None:
        shown = {f"node {message.metadata.dst_node_id}": arrays}
    else:
        shown = {f"replica {name}": [array[row] for array in arrays] for row, name in enumerate(replicas)}
    return {
        "group": group_of(message),
        "round": config["server-round"],
        "shown": {
            name: hashlib.sha256(b"".join(part.tobytes() for part in parts)).hexdigest()
            for name, parts in shown.items()
        },
    }


def served(kind, folder, deaths, kill):
    """The steps of a server that did its work in `folder`."""
    steps = Steps(kill)
    for name in ("replace", "fsync", "unlink", "rename", "mkdir"):
        setattr(os, name, steps.counted(getattr(os, name)))
    arrays.SecureGenerator = lambda: SeededGenerator(
        np.random.SeedSequence(0)
    )  # of nodes: or no two releases were the same
    app, record = example("digits_app.client_app").app, folder.with_suffix(".sent")
    serve(kind, LoopGrid(app=app, deaths=deaths, steps=steps, record=record), folder)
    return steps.done


def forked(kind, folder, deaths, kill=None):
    """What a server said in the end that worked in `folder`; None if it was killed."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        try:
            said = {"steps": served(kind, folder, deaths, kill)}
        except ValueError as error:
            said = {"refused": str(error)}
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as answer:
        text = answer.read()
    status = os.waitpid(child, 0)[1]
    assert status in (0, signal.SIGKILL), f"the server of {folder} ended in an error"
    return json.loads(text) if status == 0 else None


def outputs(kind, folder):
    """What nobody's death changes: everything but who is where and how often it was asked."""
    names = {"certificate.json", "scores.npy", "labels.npy", "ledger.json", "release.npz", "models.npz"}
    names -= {"ledger.json"} if kind == "local" else set()  # which counts how often
    return {name: (folder / name).read_bytes() for name in names if (folder / name).exists()}


@cache
def undisturbed(kind, dead, base):
    """Steps and outputs of a server that nobody kills, among nodes of which these are `dead`."""
    folder = base / f"undisturbed-{kind}-{abs(hash(dead))}"
    return forked(kind, folder, dict(dead))["steps"], outputs(kind, folder)


def judge(kind, folder, found):
    """Hold what was shown against what is counted, and against what was shown before."""
    record = folder.with_suffix(".sent")
    sent = list(map(json.loads, record.read_text().splitlines())) if record.exists() else []
    for path, shown in must_count(kind, folder, sent).items():
        found["counted_too_little"] += counted(path) < shown - 1e-9
    versions = defaultdict(set)
    for line in sent:
        for name, digest in line["shown"].items():
            versions[line["group"], name].add(digest)
    found["shown_twice"] += any(len(digests) > 1 for digests in versions.values())
    certificate = folder / "certificate.json"
    if certificate.exists():  # whole and true, or not there
        found["wrong"] += bool(verify(certificate.read_text(), folder / "scores.npy"))


def deaths_of(rng, kind):
    """Which nodes are killed in which rounds, and what is heard of them."""
    asked = [(group, FIRST + user) for group in GROUPS[kind] for user in range(USERS)]
    killed = rng.sample(asked, rng.choice((0, 0, 1, 2)))
    ways = (
        ("silent", "failing") if kind == "local" else ("silent", "failing", "back")
    )  # nobody is asked again
    return {each: rng.choice(ways) for each in killed}


def expected(kind, deaths, base, *, returned):
    """What may come out: without the dead nodes; if they `returned`, without them in some of their rounds."""
    deaths = {each: how for each, how in deaths.items() if how != "back"}
    groups = sorted({group for group, _ in deaths})
    sizes = range(len(groups) + 1) if returned else (len(groups),)
    for missed in itertools.chain.from_iterable(itertools.combinations(groups, size) for size in sizes):
        left = frozenset((each, how) for each, how in deaths.items() if each[0] in missed)
        yield undisturbed(kind, left, base)[1]


def drawn(number, rng, base):
    """A kind of deployment, its dead nodes, whether they return, and when its server is killed."""
    kind = list(GROUPS)[number % len(GROUPS)]
    deaths = deaths_of(rng, kind)
    steps = undisturbed(kind, frozenset(deaths.items()), base)[0]
    kills = [(rng.randrange(steps), rng.random() < 0.5) for _ in range(rng.randint(1, 3))]
    return kind, deaths, rng.random() < 0.5, kills


def late(number, rng, base):
    """The server dies when it has shown some, and nodes return that were silent in the first round."""
    deaths = {("0-1", FIRST + user): "silent" for user in range(USERS - 1)}
    return "cohort-once", deaths, True, [(undisturbed("cohort-once", frozenset(), base)[0] // 2, True)]


def deployment(folder, found, kind, deaths, returned, kills):
    """One deployment: its server is killed so often, and maybe some of its nodes."""
    release, shown = folder / "release.npz", None
    found["nodes_killed"] += len(deaths)
    for kill in kills:
        end = forked(kind, folder, deaths, kill)
        found["servers_killed"] += end is None
        judge(kind, folder, found)
        shown = shown or (release.read_bytes() if release.exists() else None)
    end = forked(kind, folder, {} if returned else deaths)
    judge(kind, folder, found)
    found["shown_twice"] += shown is not None and release.read_bytes() != shown
    found["refused"] += "refused" in end
    if "steps" in end:
        found["equal"] += outputs(kind, folder) in expected(kind, deaths, folder.parent, returned=returned)
    found["deployments"] += 1


def campaign(base, count, planted):
    """Print what was found in so many deployments, whose strategies have the planted mistake, if any."""
    base.mkdir()
    if planted == "uncounted":
        files.save_ledger = lambda ledger, path: None
    if planted == "forgetful":
        files.load = files.check_is_next = lambda *known: None
        Vault._known = lambda *known: {}
    rng, found = random.Random(0), Counter(dict.fromkeys(FOUND, 0))
    draw = late if planted == "forgetful" else drawn
    for number in range(count):
        deployment(base / f"deployment-{number}", found, *draw(number, rng, base))
    print(json.dumps(found), flush=True)


def main(base, *words):
    logging.getLogger("flwr").setLevel(logging.ERROR)
    for name in ("_task_id", "_run_id", "_node_id"):  # what the runtime tells a process about itself
        setattr(TaskIdentity, name, 1)
    example("digits_app.server_app"), example("digits_app.client_app")
    data = example("digits_app.data")
    data.encode(data.simulated_users(USERS)[0][0])  # what this loads no server need load again
    for word in words:
        count, _, planted = word.partition(":")
        child = os.fork()  # a mistake stays where it was planted
        if child == 0:
            try:
                campaign(base / (planted or "honest"), int(count), planted)
            except BaseException:
                traceback.print_exc()
                os._exit(1)
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0, f"{word} ended in an error"


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
