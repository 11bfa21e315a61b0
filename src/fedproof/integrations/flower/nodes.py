# mypy: disable-error-code="import-not-found"
"""What a node runs besides the user's ClientApp, and how the server learns who is there."""

import logging
import time
from collections import Counter
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid

REPLICAS = "fedproof-replicas"  # key of the ConfigRecord: which replicas a message holds the models of
REPLICA = "replica"
PARTITION = "partition-id"  # Flower's own name, in the node's configuration

_LOG = logging.getLogger("flwr")
_POLL = 0.5  # seconds between two looks


def replicas_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mod for a ClientApp: one message holds the models of many replicas, the app is called for each.

    `ClientApp(mods=[replicas_mod])` is all that a node needs to take part in an ensemble; the app itself
    trains one model at a time, as ever. Its configuration tells it the `replica`.
    """
    configs = list(message.content.config_records.items())
    if message.metadata.message_type != MessageType.TRAIN or not configs or REPLICAS not in configs[0][1]:
        return call_next(message, context)
    key, config = configs[0]
    arrays_key, stacked = next(iter(message.content.array_records.items()))
    models = {name: array.numpy() for name, array in stacked.items()}
    trained: list[ArrayRecord] = []
    for row, replica in enumerate(cast(list[int], config[REPLICAS])):
        own: dict[str, Any] = {name: value for name, value in config.items() if name != REPLICAS}
        model = ArrayRecord({name: Array(np.array(rows[row])) for name, rows in models.items()})
        message.content = RecordDict({arrays_key: model, key: ConfigRecord(own | {REPLICA: replica})})
        reply = call_next(message, context)
        if reply.has_error():
            return reply
        trained.append(next(iter(reply.content.array_records.values())))
    return Message(RecordDict({arrays_key: _stack(trained)}), reply_to=message)


def _stack(records: list[ArrayRecord]) -> ArrayRecord:
    names = list(records[0])
    return ArrayRecord(
        {name: Array(np.stack([record[name].numpy() for record in records])) for name in names}
    )


def answer_partition(message: Message, context: Context) -> Message:
    """A node's answer to `ask_partitions`: register it with `@app.query()`."""
    number = context.node_config.get(PARTITION)
    content: dict[str, Any] = {} if number is None else {PARTITION: number}
    return Message(RecordDict({"config": ConfigRecord(content)}), reply_to=message)


def ask_partitions(grid: Grid, *, timeout: float = 60.0) -> dict[int, int]:
    """The partition that each connected node says it holds, for repeatable runs.

    Cohorts are drawn by the numbers of users, and Flower's node ids change from run to run. A number is worth
    no more than a name: it only says which of the independent draws is the node's. So that no two nodes share
    one, a number claimed twice counts for none of its claimants.
    """
    messages = [Message(RecordDict(), node, MessageType.QUERY, ttl=timeout) for node in grid.get_node_ids()]
    claims: dict[int, int] = {}
    for reply in grid.send_and_receive(messages, timeout=timeout):
        if reply.has_error() or not reply.content.config_records:
            continue
        number = next(iter(reply.content.config_records.values())).get(PARTITION)
        if isinstance(number, int) and not isinstance(number, bool) and number >= 0:
            claims[reply.metadata.src_node_id] = number
    often = Counter(claims.values())
    for node, number in claims.items():
        if often[number] > 1:
            _LOG.warning("node %s claims %s = %s like another: its claim is ignored", node, PARTITION, number)
    return {node: number for node, number in claims.items() if often[number] == 1}


def wait_for_nodes(grid: Grid, count: int, *, timeout: float) -> list[int]:
    """The connected nodes, as soon as there are `count` of them or the time is up."""
    end = time.monotonic() + timeout
    while True:
        nodes = list(grid.get_node_ids())
        if len(nodes) >= count or time.monotonic() >= end:
            return nodes
        _LOG.info("waiting for nodes: %s of %s are connected", len(nodes), count)
        time.sleep(min(_POLL, max(0.0, end - time.monotonic())))
