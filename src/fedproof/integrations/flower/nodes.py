# mypy: disable-error-code="import-not-found"
"""Nodes: what they run besides the user's ClientApp, who is there, and judging what they send."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedproof.arrays import Floats
from fedproof.integrations.flower.arrays import Layout, decode
from fedproof.integrations.server import Bounded, Plan, State, bound

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


# --- who is there -------------------------------------------------------------------------------------------


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


# --- what comes back ----------------------------------------------------------------------------------------


class Fault(StrEnum):
    """Why a reply, or a part of it, counts as zero."""

    SILENT = "silent"  # invited, and no reply in time
    ERROR = "error"  # the node's app failed
    MALFORMED = "malformed"  # not one model of the expected names and shapes
    NOT_FINITE = "not-finite"  # NaN or infinity
    TWICE = "twice"  # another reply of the node has been counted
    LATE = "late"  # belongs to an earlier round
    UNINVITED = "uninvited"  # not in the cohort


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """What was sent in a round.

    Attributes:
        group: names the round in the messages.
        rows: for each invited node, the rows of the replicas whose cohort it is in.
    """

    group: str
    rows: Mapping[int, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Received:
    """What a round brought.

    Attributes:
        total: `(replicas, dim)`, sum of the bounded updates.
        replied: `(replicas,)`, how many updates there were.
        below: `(replicas,)`, how many of them were not longer than the clip norm.
        clipped: `(replicas,)`, how many were.
        faults: which nodes sent what is counted as zero, and why.
    """

    total: Floats
    replied: NDArray[np.int64]
    below: NDArray[np.int64]
    clipped: NDArray[np.int64]
    faults: tuple[tuple[int, Fault], ...]


def receive(
    plan: Plan, state: State, layout: Layout, invitation: Invitation, replies: Iterable[Message]
) -> Received:
    """The sum of what the invited nodes sent, each update bounded.

    Guarantee: a node moves the sum of a replica by at most one bounded update, and only if it was drawn.
    """
    state = replace(state, params=state.params.astype(np.float64))  # once, not for every reply
    total = np.zeros(state.params.shape)
    replied, below, clipped = (np.zeros(len(state.params), dtype=np.int64) for _ in range(3))
    faults: list[tuple[int, Fault]] = []
    for node, found in _judged(plan, state, layout, invitation, replies):
        if isinstance(found, Fault):
            faults.append((node, found))
            continue
        rows = invitation.rows[node]
        if not found.finite.all():
            faults.append((node, Fault.NOT_FINITE))
        if len(rows) == len(total):
            total += found.updates  # without the copies that an index makes
        else:
            total[rows] += found.updates
        replied[rows] += found.finite
        clipped[rows] += found.clipped
        below[rows] += found.finite & ~found.clipped
    return Received(total=total, replied=replied, below=below, clipped=clipped, faults=tuple(faults))


def _judged(
    plan: Plan, state: State, layout: Layout, invitation: Invitation, replies: Iterable[Message]
) -> Iterator[tuple[int, Bounded | Fault]]:
    waiting = set(invitation.rows)
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in invitation.rows:
            if not reply.has_error():  # errors come from the SuperLink, about a node that stays silent
                yield node, Fault.UNINVITED
        elif reply.metadata.group_id != invitation.group and not reply.has_error():
            yield node, Fault.LATE
        elif node not in waiting:
            yield node, Fault.TWICE
        else:
            waiting.discard(node)
            yield node, _bounded(plan, state, layout, invitation.rows[node], reply)
    for node in sorted(waiting):
        yield node, Fault.SILENT


def _bounded(
    plan: Plan, state: State, layout: Layout, rows: NDArray[np.int64], reply: Message
) -> Bounded | Fault:
    if reply.has_error():
        return Fault.ERROR
    records = list(reply.content.array_records.values())
    if len(records) != 1:
        return Fault.MALFORMED
    models = decode(records[0], layout, len(rows), stacked=len(plan.replicas) > 1)
    if models is None:
        return Fault.MALFORMED
    with np.errstate(over="ignore", invalid="ignore"):
        models -= state.params if len(rows) == len(state.params) else state.params[rows]
    return bound(plan, models, state.clip_norms[rows], layout.layers)
