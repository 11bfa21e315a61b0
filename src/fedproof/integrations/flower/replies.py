# mypy: disable-error-code="import-not-found"
"""Judging what comes back: one bounded contribution from each invited node, whatever it sends."""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import numpy as np
from flwr.app import Message
from numpy.typing import NDArray

from fedproof.arrays import Floats
from fedproof.integrations.flower.arrays import Layout, decode
from fedproof.integrations.server import Bounded, Plan, State, bound


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
