# mypy: disable-error-code="import-not-found, import-untyped"
"""Replies out of Flower's SuperLink, none of which takes more memory than it may.

Flower's own grid reads whatever a node has sent, and puts it together as the node says: an array of a
thousand times the same piece is a thousand times as large as what was sent. Here every answer of the
SuperLink is read up to a limit, pieces are counted as often as they are to be put together, and a reply that
would be too large is an error of its node. The others are read as if it were not there.
"""

import json
import sys
from collections import Counter
from collections.abc import Collection
from copy import copy
from itertools import islice
from threading import Lock
from typing import TYPE_CHECKING, Any, cast

import httpx
from flwr.app import Array, Error, Message, Metadata
from flwr.app.message import make_message
from flwr.common.constant import SUPERLINK_NODE_ID, ErrorCode
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.runtime_pb2 import PullAppMessagesRequest
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    UnexpectedObjectContentError,
    get_object_body,
    get_object_head_values_from_object_content,
    iterate_object_tree,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import make_pull_object_fn_protobuf
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
)
from google.protobuf.message import DecodeError

if TYPE_CHECKING:
    from flwr.superlink.grid.http_grid import HttpGrid

UNREADABLE = (
    *(ValueError, TypeError, LookupError, AttributeError, RecursionError, MemoryError, DecodeError),
    *(UnexpectedObjectContentError, ObjectPullError),
)
"""What reading a reply may raise: nodes write what they like."""

_LISTED = 4 << 20  # bytes of an answer that lists replies, without their contents
_PIECE = 1 << 10  # bytes that a piece of a reply takes here besides its content
_FRAME = 1 << 10  # bytes that an answer may have besides one piece


def pulled(grid: Grid, names: Collection[str], most: int) -> list[Message]:
    """The replies to messages of these ids that have come, each of at most `most` bytes.

    Where nodes are simulated there is no limit: their replies lie in this process already.
    """
    http = sys.modules.get("flwr.superlink.grid.http_grid")  # loads much, which others have no use for
    if http is None or not isinstance(grid, http.HttpGrid):
        return list(grid.pull_messages(list(names)))
    found = _limited(grid, _LISTED).PullMessages(PullAppMessagesRequest(message_ids=list(names)))
    listed = zip(found.messages_list, found.message_object_trees, strict=True)
    return [
        _read(grid, sent.metadata, tree, most)
        for sent, tree in listed
        if sent.metadata.reply_to_message_id in names  # what nobody asked for is not read
    ]


def _read(grid: "HttpGrid", told: Any, tree: ObjectTree, most: int) -> Message:
    """One reply, as Flower's grid reads it; an error if there is more of it, or none that can be read."""
    client = _limited(grid, most + _FRAME)
    run, name = grid.run.run_id, told.message_id
    weight = _Weight(most)
    pull = make_pull_object_fn_protobuf(client.PullObject, grid.node, run)

    def weighed(piece: str) -> bytes:
        content = pull(piece)
        weight.add(piece, content)
        return content

    done = ConfirmMessageReceivedRequest(node=grid.node, run_id=run, message_object_id=name)
    try:
        try:
            contents = pull_objects(weight.pieces(tree), weighed)
        finally:  # the SuperLink keeps it no longer
            client.ConfirmMessageReceived(done)
        message = cast(Message, inflate_object_from_contents(name, contents))
        message.metadata.__dict__["_message_id"] = name
    except UNREADABLE as error:
        return make_message(
            metadata=Metadata(
                run_id=run,
                message_id="",
                src_node_id=SUPERLINK_NODE_ID,
                dst_node_id=SUPERLINK_NODE_ID,
                reply_to_message_id=told.reply_to_message_id,
                group_id="",
                created_at=told.created_at,
                ttl=0,
                message_type=told.message_type,
            ),
            error=Error(code=ErrorCode.MESSAGE_UNAVAILABLE, reason=f"its reply cannot be read: {error}"),
        )
    return message


class _Weight:
    """How many bytes a reply takes when it is put together; ValueError if these are more than `most`."""

    def __init__(self, most: int) -> None:
        self._most, self._total = most, 0
        self._sizes: dict[str, int] = {}
        self._times: Counter[str] = Counter()  # that a piece is put into arrays
        self._lock = Lock()

    def pieces(self, tree: ObjectTree) -> list[str]:
        """The ids of all pieces."""
        found = [each.object_id for each in islice(iterate_object_tree(tree), self._most // _PIECE + 1)]
        self._grow(len(found) * _PIECE)
        return found

    def add(self, piece: str, content: bytes) -> None:
        """Count a piece that has come."""
        kind, children, _ = get_object_head_values_from_object_content(content)
        with self._lock:
            if piece not in self._sizes:
                self._sizes[piece] = len(content)
                self._grow(len(content) * max(1, self._times[piece]))
            if kind == Array.__qualname__:
                places = json.loads(get_object_body(content, Array))["arraychunk_ids"]
                for child, often in Counter(children[place] for place in places).items():
                    before = self._times[child]
                    self._times[child] += often
                    more = max(1, before + often) - max(1, before)
                    self._grow(self._sizes.get(child, 0) * more)

    def _grow(self, size: int) -> None:
        self._total += size
        if self._total > self._most:
            raise ValueError(f"it is larger than {self._most} bytes")


def _limited(grid: "HttpGrid", most: int) -> Any:
    """The grid's connection to its SuperLink, which reads at most `most` bytes of an answer."""
    client = copy(grid._runtime_client)
    client._client = _Limited(client._client, most)  # type: ignore[assignment]  # all that is asked of it
    return client


class _Limited:
    """An HTTP client that stops reading an answer that is too large."""

    def __init__(self, client: httpx.Client, most: int) -> None:
        self._client, self._most = client, most

    def __getattr__(self, name: str) -> Any:
        return getattr(self._client, name)

    def send(self, request: httpx.Request) -> httpx.Response:
        """The answer, read."""
        answer = self._client.send(request, stream=True)
        try:
            content = bytearray()
            for some in answer.iter_bytes():
                content += some
                if len(content) > self._most:
                    raise ValueError(f"it is larger than {self._most} bytes")
        finally:
            answer.close()
        known = [(key, value) for key, value in answer.headers.items() if not key.startswith("content-")]
        return httpx.Response(answer.status_code, headers=known, content=bytes(content), request=request)
