# mypy: disable-error-code="import-not-found"
"""Nodes: what they run besides the user's ClientApp, who is there, and the sum of what they send."""

import logging
import time
from collections import Counter
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, MessageType, RecordDict
from flwr.clientapp.typing import ClientAppCallable
from flwr.serverapp import Grid
from numpy.typing import NDArray

from fedproof.arrays import Floats
from fedproof.integrations.flower.arrays import Layout, decode, records_in
from fedproof.integrations.flower.exchange import Fault, exchange, judged, named
from fedproof.integrations.server import Bounded, Plan, State, addends, bound

REPLICAS = "fedproof-replicas"  # key of the ConfigRecord: which replicas a message holds the models of
REPLICA = "replica"
PARTITION = "partition-id"  # Flower's own name, in the node's configuration

_LOG = logging.getLogger("flwr")
_IDENTITIES = 2**63  # of users; Flower carries numbers up to twice as large
_POLL = 0.5  # seconds between two looks at who is there


def replicas_mod(message: Message, context: Context, call_next: ClientAppCallable) -> Message:
    """Mod for a ClientApp: one message holds the models of many replicas, the app is called for each.

    `ClientApp(mods=[replicas_mod])` is all that a node needs to take part in an ensemble; the app itself
    trains one model at a time, as ever. Its configuration tells it the `replica`.

    Guarantee: what the app makes of one replica, whether it fails there, and what it writes into its context,
    changes nothing that is sent for another. Where it fails numbers that are none are sent, which the server
    takes for no update: a poisoned model, on which honest apps fail, would otherwise take them out of
    replicas that drew nobody poisoned. Each replica has a copy of context and configuration, which is thrown
    away: an app that keeps something of the models it has seen would carry what poisoned users did into
    those that they were not in.

    Assumes: the app keeps nothing from one replica to another by itself either, in variables of its module or
    in files.
    """
    configs = list(message.content.config_records.items())
    if message.metadata.message_type != MessageType.TRAIN or not configs or REPLICAS not in configs[0][1]:
        return call_next(message, context)
    key, config = configs[0]
    arrays_key, stacked = next(iter(message.content.array_records.items()))
    models = {name: array.numpy() for name, array in stacked.items()}
    trained: list[ArrayRecord] = []
    for row, replica in enumerate(cast(list[int], config[REPLICAS])):
        own: dict[str, Any] = deepcopy({name: value for name, value in config.items() if name != REPLICAS})
        model = ArrayRecord({name: Array(np.array(rows[row])) for name, rows in models.items()})
        message.content = RecordDict({arrays_key: model, key: ConfigRecord(own | {REPLICA: replica})})
        trained.append(_trained(message, context, call_next, model))
    stacks = {name: Array(np.stack([one[name].numpy() for one in trained])) for name in trained[0]}
    return Message(RecordDict({arrays_key: ArrayRecord(stacks)}), reply_to=message)


def _trained(
    message: Message, context: Context, call_next: ClientAppCallable, model: ArrayRecord
) -> ArrayRecord:
    """What the app makes of one model; numbers that are none where it fails, or makes something else."""
    try:
        reply = call_next(message, deepcopy(context))
        if not reply.has_error():
            found = next(iter(reply.content.array_records.values()))
            if {name: found[name].shape for name in found} == {name: model[name].shape for name in model}:
                return ArrayRecord({name: found[name] for name in model})
        _LOG.warning("a replica is left out: the app replied with an error, or with another model")
    except Exception:
        _LOG.exception("a replica is left out: the app failed")
    return ArrayRecord({name: Array(np.full(model[name].shape, np.nan)) for name in model})


# --- who is there -------------------------------------------------------------------------------------------


def answer_partition(message: Message, context: Context) -> Message:
    """A node's answer to `ask_partitions`: register it with `@app.query()`."""
    number = context.node_config.get(PARTITION)
    if number is None:
        _LOG.warning("this node has no %s in its --node-config: it cannot say which user it is", PARTITION)
    content: dict[str, Any] = {} if number is None else {PARTITION: number}
    return Message(RecordDict({"config": ConfigRecord(content)}), reply_to=message)


def ask_partitions(grid: Grid, *, timeout: float = 60.0, unique: bool = False) -> dict[int, int]:
    """The partition that each connected node says it holds, for repeatable runs.

    Cohorts are drawn by the numbers of users, and Flower's node ids change from run to run. A number is worth
    no more than a name: it only says which of the independent draws is the node's. So that no two nodes share
    one, a number claimed twice counts for none of its claimants.

    Where everybody is counted once that is not enough: a node that claims another's number would shut it out,
    and one poisoned node would count for two. `unique` refuses such claims.

    Raises:
        ValueError: two nodes claim one number, and numbers must be `unique`.
    """
    names = named(PARTITION, grid.get_node_ids())
    messages = [
        Message(RecordDict(), node, MessageType.QUERY, ttl=timeout, group_id=name)
        for node, name in names.items()
    ]
    claims: dict[int, int] = {}
    replies = exchange(grid, messages, timeout=timeout, comeback=timeout)
    for node, reply in judged(names, replies):
        if isinstance(reply, Fault):
            continue
        number = next((config.get(PARTITION) for config in records_in(reply.content, ConfigRecord)), None)
        if isinstance(number, int) and not isinstance(number, bool) and 0 <= number < _IDENTITIES:
            claims[node] = number
        else:
            _LOG.warning("node %s names no %s: it has no identity", node, PARTITION)
    often = Counter(claims.values())
    for number in (number for number in often if unique and often[number] > 1):
        who = " and ".join(str(node) for node in sorted(claims) if claims[node] == number)
        raise ValueError(f"nodes {who} both claim {PARTITION} = {number}: turn one away; nobody was asked")
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


@dataclass(frozen=True, kw_only=True)
class Invitation:
    """What each invited node was sent: a message of this name, see `named`, with these rows of replicas."""

    names: Mapping[int, str]
    rows: Mapping[int, NDArray[np.int64]]


@dataclass(frozen=True, kw_only=True)
class Received:
    """What a round brought: the sum of bounded updates, how many they were, and how many were clipped or not.

    All of it for each replica, but for the bytes of what was received, and nodes whose updates count as zero.
    """

    total: Floats
    replied: NDArray[np.int64]
    below: NDArray[np.int64]
    clipped: NDArray[np.int64]
    bytes: int
    faults: tuple[tuple[int, Fault], ...]

    def told(self, invitation: Invitation, clip_norm: float) -> dict[str, Any]:
        """Numbers for the operator's eyes, on average over the replicas."""
        replicas, replied = len(self.replied), int(self.replied.sum())
        return {
            "replicas": replicas,
            "cohort": sum(len(rows) for rows in invitation.rows.values()) / replicas,
            "replied": replied / replicas,
            "clipped-share": int(self.clipped.sum()) / max(1, replied),
            "clip-norm": clip_norm,
            "messages": len(invitation.rows),
            "upload-bytes": self.bytes,
        }


def receive(
    plan: Plan,
    state: State,
    layout: Layout,
    invitation: Invitation,
    replies: Iterable[Message],
    *,
    stacked: bool,
) -> Received:
    """The sum of what the invited nodes sent, each update bounded; `stacked`: as several models in one.

    Guarantee: a node moves the sum of a replica by at most one bounded update, and only if it was drawn: the
    order of replies changes no bit, see `addends`.
    """
    state = replace(state, params=state.params.astype(np.float64))  # once, not for every reply
    total = np.zeros((1 if plan.mechanism.noise_multiplier else 2, *state.params.shape))
    replied, below, clipped = (np.zeros(len(state.params), dtype=np.int64) for _ in range(3))
    faults: list[tuple[int, Fault]] = []
    size = 0
    for node, reply in judged(invitation.names, replies):
        if isinstance(reply, Fault):
            faults.append((node, reply))
            continue
        rows = invitation.rows[node]
        found = _bounded(plan, state, layout, rows, reply, stacked=stacked)
        if isinstance(found, Fault):
            faults.append((node, found))
            continue
        size += sum(len(array.data) for array in records_in(reply.content, ArrayRecord)[0].values())
        if not found.finite.all():
            faults.append((node, Fault.NOT_FINITE))
        _add(total, rows, addends(plan, found.updates))
        replied[rows] += found.finite
        clipped[rows] += found.clipped
        below[rows] += found.finite & ~found.clipped
    return Received(
        total=total.sum(axis=0),
        replied=replied,
        below=below,
        clipped=clipped,
        bytes=size,
        faults=tuple(faults),
    )


def _add(total: Floats, rows: NDArray[np.int64], parts: tuple[Floats, ...]) -> None:
    """Add one node's parts to the sums of its replicas, in place."""
    for whole, part in zip(total, parts, strict=True):
        if len(rows) == len(whole):
            whole += part  # without the copies that an index makes
        else:
            whole[rows] += part


def _bounded(
    plan: Plan, state: State, layout: Layout, rows: NDArray[np.int64], reply: Message, *, stacked: bool
) -> Bounded | Fault:
    records = records_in(reply.content, ArrayRecord)
    if len(records) != 1:
        return Fault.MALFORMED
    models = decode(records[0], layout, len(rows), stacked=stacked)
    if models is None:
        return Fault.MALFORMED
    with np.errstate(over="ignore", invalid="ignore"):
        models -= state.params if len(rows) == len(state.params) else state.params[rows]
    return bound(plan, models, state.clip_norms[rows], layout.layers)
