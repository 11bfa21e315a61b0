import os
import sys
from pathlib import Path
from uuid import uuid4

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "flower"

collect_ignore = ["overhead.py", "site_app"]  # a script and an app, which need flwr


@pytest.fixture
def flower():
    """The integration, or a skip with the reason."""
    pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")
    from fedproof.integrations import flower

    return flower


def use_example(patch):
    """Make the example's modules importable, here and in child processes, and those quiet."""
    patch.syspath_prepend(str(EXAMPLE))
    patch.setenv("PYTHONPATH", str(EXAMPLE), prepend=os.pathsep)
    patch.setenv("FLWR_TELEMETRY_ENABLED", "0")
    patch.setenv("RAY_USAGE_STATS_ENABLED", "0")
    patch.setenv("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")


@pytest.fixture
def example_path(flower, monkeypatch):
    """The example's folder, importable here and in child processes."""
    use_example(monkeypatch)
    yield EXAMPLE
    for name in [name for name in sys.modules if name.split(".")[0] == "digits_app"]:
        del sys.modules[name]


@pytest.fixture
def make_grid(flower, monkeypatch):
    """A grid whose nodes are functions: message in, list of replies out."""
    from flwr.serverapp import Grid
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):  # what the runtime tells a process about itself
        monkeypatch.setattr(TaskIdentity, name, 1)

    class LoopGrid(Grid):
        def __init__(self, nodes):
            self.nodes, self.sent, self.replies = dict(nodes), [], {}

        def set_run(self, run):
            raise NotImplementedError

        @property
        def run(self):
            raise NotImplementedError

        def create_message(self, *args, **kwargs):
            raise NotImplementedError

        def push_messages(self, messages):
            """Ids of the messages; none of those that will never be answered, so that nobody waits."""
            self.sent.append(list(messages))
            return [self.push(message) for message in self.sent[-1]]

        def push(self, message):
            message.metadata.__dict__["_message_id"] = name = str(uuid4())
            self.replies[name] = self.nodes[message.metadata.dst_node_id](message)
            return name if self.replies[name] else None

        def pull_messages(self, message_ids):
            return [reply for name in message_ids for reply in self.replies.pop(name, ())]

        def get_node_ids(self):
            return list(self.nodes)

        def send_and_receive(self, messages, *, timeout=None):
            self.sent.append(list(messages))
            return [reply for m in self.sent[-1] for reply in self.nodes[m.metadata.dst_node_id](m)]

    return LoopGrid


@pytest.fixture
def reply_with(flower):
    """`reply_with(message, arrays)`: a node's reply with these named arrays."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    def reply(message, arrays):
        record = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
        return Message(RecordDict({"arrays": record}), reply_to=message)

    return reply


@pytest.fixture
def record(flower):
    """`record(**arrays)`: an ArrayRecord."""
    from flwr.app import Array, ArrayRecord

    return lambda **arrays: ArrayRecord(
        {k.replace("_", "."): Array(np.asarray(v)) for k, v in arrays.items()}
    )
