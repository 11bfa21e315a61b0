"""Nodes that send far more than they were asked for cost the server's process little: Flower's HTTP grid."""

import json
import sys
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import numpy as np
import pytest

from tests.patience import finished

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")

HONEST, LOUD, LARGE, MOST = 60, 60, 64 << 20, 200 << 20
SHAPE = (66, 10)


class SuperLink:
    """Flower's Runtime API in a process of the test's: nodes answer at once, each in its own way."""

    def __init__(self, content_of, nodes):
        self._content_of, self._nodes, self.spoilt = content_of, nodes, {}
        self._asked, self._pieces, self._trees, self.delivered = {}, {}, {}, set()

    def GetNodes(self, request):
        from flwr.proto.node_pb2 import NodeInfo
        from flwr.proto.runtime_pb2 import GetNodesResponse

        return GetNodesResponse(nodes=[NodeInfo(node_id=100 + n) for n in range(self._nodes)])

    def PushMessages(self, request):
        from flwr.proto.runtime_pb2 import PushAppMessagesResponse

        ids = [message.metadata.message_id for message in request.messages_list]
        self._asked |= dict(zip(ids, request.messages_list, strict=True))
        return PushAppMessagesResponse(message_ids=ids)

    def PullMessages(self, request):
        from flwr.proto.runtime_pb2 import PullAppMessagesResponse
        from flwr.supercore.inflatable.inflatable_object import no_object_id_recompute

        with no_object_id_recompute():  # of 64 MiB, for every node
            found = [
                self._reply(self._asked.pop(name)) for name in request.message_ids if name in self._asked
            ]
        sent, trees = zip(*found, strict=True) if found else ((), ())
        return PullAppMessagesResponse(messages_list=sent, message_object_trees=trees)

    def _reply(self, known):
        from flwr.app import Message, RecordDict
        from flwr.app.message import make_message, remove_content_from_message
        from flwr.common.serde import message_to_proto, metadata_from_proto
        from flwr.proto.message_pb2 import ObjectTree
        from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects, get_object_tree

        asked = make_message(metadata=metadata_from_proto(known.metadata), content=RecordDict())
        content = self._content_of(asked.metadata.dst_node_id)
        if id(content) not in self._trees:
            self._pieces |= {name: part.deflate() for name, part in get_all_nested_objects(content).items()}
            self._trees[id(content)] = get_object_tree(content)
        reply = Message(content, reply_to=asked)
        reply.metadata.__dict__["_message_id"] = name = reply.object_id
        self._pieces[name] = reply.deflate()
        tree = ObjectTree(object_id=name, children=[self._trees[id(content)]])
        return message_to_proto(remove_content_from_message(reply)), tree

    def PullObject(self, request):
        from flwr.proto.message_pb2 import PullObjectResponse

        content = self.spoilt.get(request.object_id, self._pieces[request.object_id])
        return PullObjectResponse(object_found=True, object_available=True, object_content=content)

    def ConfirmMessageReceived(self, request):
        from flwr.proto.message_pb2 import ConfirmMessageReceivedResponse

        self.delivered.add(request.message_object_id)
        return ConfirmMessageReceivedResponse()


@pytest.fixture
def served(monkeypatch):
    """`served(content_of)`: the port of a SuperLink whose nodes send this content, and the SuperLink."""
    from flwr.proto import message_pb2, runtime_pb2
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)
    requests = {
        "get-nodes": ("GetNodes", runtime_pb2.GetNodesRequest),
        "push-messages": ("PushMessages", runtime_pb2.PushAppMessagesRequest),
        "pull-messages": ("PullMessages", runtime_pb2.PullAppMessagesRequest),
        "pull-object": ("PullObject", message_pb2.PullObjectRequest),
        "confirm-message-received": ("ConfirmMessageReceived", message_pb2.ConfirmMessageReceivedRequest),
    }

    @contextmanager
    def run(content_of, nodes=HONEST + LOUD):
        superlink = SuperLink(content_of, nodes)

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def do_POST(self):
                name, kind = requests[self.path.rsplit("/", 1)[1]]
                body = self.rfile.read(int(self.headers["content-length"]))
                answer = getattr(superlink, name)(kind.FromString(body)).SerializeToString()
                self.send_response(200)
                self.send_header("content-type", "application/protobuf")
                self.send_header("content-length", str(len(answer)))
                self.end_headers()
                self.wfile.write(answer)

            def log_message(self, *arguments):
                pass

            def handle(self):
                try:
                    super().handle()
                except ConnectionError:  # whoever stops reading
                    self.close_connection = True

        with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
            Thread(target=server.serve_forever, daemon=True).start()
            try:
                yield server.server_address[1], superlink
            finally:
                server.shutdown()

    return run


@pytest.fixture
def measured(served):
    """`measured(content_of)`: what the server's process says, where each node sends this content."""

    def run(content_of):
        with served(content_of) as (port, superlink):
            done = finished([sys.executable, Path(__file__).with_name("memory.py"), str(port)])
        assert done.returncode == 0, done.stderr[-3000:]
        return json.loads(done.stdout.splitlines()[-1]) | {"delivered": len(superlink.delivered)}

    return run


@pytest.fixture
def grid_at(flower):
    """`grid_at(port)`: Flower's own grid."""
    from flwr.supercore.run import Run
    from flwr.superlink.grid.http_grid import HttpGrid

    grids = []

    def connected(port):
        grids.append(HttpGrid(f"127.0.0.1:{port}", insecure=True, token="none"))
        grids[-1].set_run(Run.create_empty(1))
        return grids[-1]

    yield connected
    for grid in grids:
        grid.close()


def upload(array):
    from flwr.app import Array, ArrayRecord, RecordDict

    return RecordDict({"upload": ArrayRecord({"upload": Array(array)})})


def as_one_array():
    return upload(np.random.default_rng(1).integers(0, 255, LARGE, dtype=np.uint8))


def as_one_piece():
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({"upload": ConfigRecord({"labels": bytes(LARGE)})})


def as_many_pieces():
    from flwr.app import ConfigRecord, RecordDict

    return RecordDict({f"{number}": ConfigRecord({"x": number}) for number in range(4000)})


def as_one_piece_many_times(monkeypatch):
    """A few kilobytes on the wire that Flower puts together to 64 MiB: the same piece, again and again."""
    from flwr.app.message import array
    from flwr.common import constant

    monkeypatch.setattr(array, "FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE", 1 << 14)
    assert constant.FLWR_PRIVATE_MAX_ARRAY_CHUNK_SIZE > 1 << 14
    return upload(np.zeros(LARGE, np.uint8))


@pytest.fixture(scope="module")
def quiet():
    """The peak of a server whose nodes all send what they were asked for, once it was measured."""
    return {}


@pytest.mark.slow
@pytest.mark.parametrize("way", [as_one_array, as_one_piece, as_many_pieces, as_one_piece_many_times])
def test_loud_nodes_cost_the_server_little_memory_and_nobody_else(measured, quiet, monkeypatch, way):
    honest = upload(np.ones(SHAPE, np.float32))
    if not quiet:
        quiet |= measured(lambda node: honest)
        assert (quiet["replied"], quiet["faults"]) == (HONEST + LOUD, [])
    loud = way(monkeypatch) if way is as_one_piece_many_times else way()
    found = measured(lambda node: loud if node >= 100 + HONEST else honest)
    assert found["replied"] == HONEST
    assert sorted(node for node, _ in found["faults"]) == list(range(100 + HONEST, 100 + HONEST + LOUD))
    more = found["peak"] - quiet["peak"]
    print(f"{way.__name__}: {more / 2**20:.1f} MiB more than {quiet['peak'] / 2**20:.0f}")
    assert more <= MOST
    assert found["delivered"] >= HONEST + LOUD  # the SuperLink need not keep them


def test_the_largest_reply_that_an_honest_node_may_send_is_read(flower, served, grid_at):
    """Three models of 200 arrays and a large one, in double precision, with counters that are not trained."""
    from flwr.app import Array, ArrayRecord, RecordDict

    from fedproof.mechanisms import Poisson, UserFedAvg

    arrays = {f"a{number}.weight": np.zeros(number + 1) for number in range(200)}
    arrays |= {"large.weight": np.ones(2 << 18), "norm.count": np.arange(1000)}
    stacked = {name: np.stack([array] * 3) for name, array in arrays.items()}
    stacked["large.weight"] *= np.arange(1.0, 3 * (2 << 18) + 1).reshape(3, -1)  # no two pieces alike
    record = [ArrayRecord({name: Array(array) for name, array in each.items()}) for each in (arrays, stacked)]
    mechanism = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=1.0))
    strategy = flower.RoundsStrategy(
        mechanism, num_users=2, delta=0.01, replicas=range(3), min_replies=1, connect_timeout=0.0
    )
    honest = RecordDict({"arrays": record[1]})
    late = RecordDict({"arrays": record[1], "more": record[1]})  # names twice what is sent once
    with served({100: honest, 101: late}.get, nodes=2) as (port, _):
        strategy.start(grid_at(port), record[0], timeout=60.0)
    assert strategy.metrics[0]["replied"] == 1
    assert strategy.metrics[0]["upload-bytes"] > 8 * 3 * (2 << 18)
    assert strategy.faults == [(1, 101, "malformed")]


@pytest.mark.parametrize("kind", ["garbage", "no numbers", "a piece that is none"])
def test_a_reply_that_cannot_be_read_is_an_error_of_its_node_alone(served, grid_at, flower, kind):
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body

    from fedproof.mechanisms import OneRound
    from fedproof.mechanisms.uploads import Rows

    honest, odd = upload(np.ones(SHAPE, np.float32)), upload(np.zeros(SHAPE, np.float32))
    array = odd["upload"]["upload"]
    body = {"garbage": b"\xff", "no numbers": b"{}", "a piece that is none": b'{"arraychunk_ids": [7]}'}[kind]
    mechanism = OneRound(upload=Rows(features=66, classes=10), noise_multiplier=1.0)
    strategy = flower.OneRoundStrategy(mechanism, num_users=HONEST + LOUD, delta=0.01, connect_timeout=0.0)
    with served(lambda node: odd if node == 103 else honest) as (port, superlink):
        superlink.spoilt = {array.object_id: add_header_to_object_body(body, array)}
        strategy.start(grid_at(port), timeout=60.0)
    assert strategy.faults == [(1, 103, "error")]
    assert "its reply cannot be read" in strategy.reasons[103]
