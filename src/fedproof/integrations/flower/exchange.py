# mypy: disable-error-code="import-not-found, import-untyped"
"""Messages to nodes, and which of the replies count: one from each, whoever writes what into them."""

import logging
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import StrEnum
from secrets import token_hex
from threading import Thread

from flwr.app import Error, Message
from flwr.common.constant import SUPERLINK_NODE_ID
from flwr.serverapp import Grid
from flwr.serverapp.exception import AggregationError

from fedproof.check import one_line
from fedproof.integrations.flower.pulling import UNREADABLE, pulled

_LOG = logging.getLogger("flwr")
_PAUSES = (0.1, 1.0)  # seconds between two looks for replies, at least and at most
_TRIES = 3  # how often a node that fails or goes away is asked again
_LONGEST = 200  # characters of a reason that are shown
_HELD = 8 << 20  # bytes of replies that are held at once, or one reply
_SLACK = 64 << 10  # bytes of a reply besides the numbers that were asked for


class Fault(StrEnum):
    """Why a reply, or a part of it, counts as zero."""

    SILENT = "silent"  # invited, and no reply in time
    ERROR = "error"  # the node's app failed, or Flower lost the node or its reply
    MALFORMED = "malformed"  # not one model of the expected names and shapes
    NOT_FINITE = "not-finite"  # NaN or infinity
    TWICE = "twice"  # another reply of the node has been counted
    LATE = "late"  # belongs to an earlier round, or to what was never sent to this node
    UNINVITED = "uninvited"  # not in the cohort
    NAMELESS = "nameless"  # connected, but nobody knows which user it is: not asked


UNHEARD = frozenset({Fault.SILENT, Fault.ERROR, Fault.MALFORMED})
"""What an invited node did that has not replied: nothing of it counts, and nobody knows what it holds."""


class TooFewRepliesError(AggregationError):
    """Fewer than `min_replies` users are there, or have replied: nothing was released; it may be tried again.

    An attempt that asked users who add noise of their own has been counted, and no other.
    """


def reason_of(error: Error) -> str:
    """What Flower says of a failed reply, in one short line: the node may have written it."""
    shown = "".join(letter if letter.isprintable() else " " for letter in str(error.reason or ""))
    text = " ".join(shown.split())
    cut = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
    return f"code {error.code!s:.20}: {cut or 'no reason given'}"


def named(group: str, nodes: Iterable[int]) -> dict[int, str]:
    """What the message to each node is called: a name that begins with `group`, and that nobody can guess.

    Replies repeat it. A SuperLink checks who sends the envelope of a reply, but what a ServerApp gets to see
    is what the node has written inside, another node's number perhaps. Who repeats the name of a message has
    seen it; nobody else can answer for a node, or guess the id of its message, which is a hash of all of it.
    """
    return {node: f"{group}.{token_hex(16)}" for node in nodes}


def judged(names: Mapping[int, str], replies: Iterable[Message]) -> Iterator[tuple[int, Message | Fault]]:
    """What each invited node sent, or why there is nothing of it that counts; `names` are of its messages.

    Guarantee: at most one message of each invited node, the first that repeats the name of the message to it,
    whoever sends how often, and in whose name.
    """
    waiting = set(names)
    for reply in replies:
        node = reply.metadata.src_node_id
        if node not in names:
            if not reply.has_error():  # errors come from the SuperLink, about a node that stays silent
                yield node, Fault.UNINVITED
        elif reply.metadata.group_id != names[node]:
            yield node, Fault.LATE
        elif node not in waiting:
            yield node, Fault.TWICE
        else:
            waiting.discard(node)
            yield node, Fault.ERROR if reply.has_error() else reply
        del reply  # before the next one is there
    for node in sorted(waiting):
        yield node, Fault.SILENT


def most_of(size: int) -> int:
    """Bytes that a reply with numbers of `size` bytes may take: Flower cuts them into pieces of 5 MiB."""
    return size + size // 1024 + _SLACK


def exchange(
    grid: Grid,
    messages: Sequence[Message],
    *,
    timeout: float,
    size: int = 0,
    comeback: float = 0.0,
    alone: bool = False,
    hopeless: bool = False,
    warn: Callable[[str], None] = _LOG.warning,
) -> Iterator[Message]:
    """Replies one by one as they arrive; `size` is how many bytes of numbers an honest one holds at most.

    `Grid.send_and_receive` holds all replies until the last is there. Here every message is pushed at once,
    so nodes work side by side, and replies are pulled for some messages at a time.

    Guarantee: whatever nodes send, 8 MiB of replies are held at once, or one reply, and no more of any than
    an honest one may take. What is larger is an error of its node, and not read further, see `pulled`.

    A node that fails or goes away has `comeback` seconds to be there and is asked again: killed in the middle
    and started anew, it replies as if nothing had happened. If all have failed, and none has replied, that is
    `hopeless`: it ends at once.

    A reply that cannot be read takes those along that were pulled with it. Their nodes are asked again, and
    from then on, or from the beginning (`alone`), replies are pulled one at a time. No node holds up others,
    see `_Looks`.
    """
    waiting, returning = _pushed(grid, messages), _Returning(comeback, len(messages) if hopeless else None)
    looks = _Looks(grid, most_of(size), alone, warn)
    heard = time.monotonic()
    end = heard + timeout
    while (waiting or looks.held or returning.failed) and time.monotonic() < end + looks.grace:
        silent, begun = True, time.monotonic()
        for found in looks.over(waiting, end):
            silent = silent and not found
            while found:
                reply = found.pop(0)
                message = waiting.pop(reply.metadata.reply_to_message_id, None)
                reply = _addressed(reply, message)
                if not returning.keeps(message, reply):
                    yield reply
                del reply  # nothing here holds on to what was handed over
        if returning.hopeless:
            break
        waiting |= _pushed(grid, returning.back(grid))
        yield from returning.given_up(time.monotonic())
        now = time.monotonic()
        if not silent:
            heard = now
        else:  # looks are requests to the SuperLink: after a tenth of the silence is soon enough
            busy = 0.0 if looks.held else now - begun  # many looks are half of the time's work at most
            pause = max(min(max(_PAUSES[0], (now - heard) / 10), _PAUSES[1]), busy)
            time.sleep(min(pause, max(0.0, end + looks.grace - now)))
    yield from returning.errors.values()


class _Look(Thread):
    """A look for the replies to some messages, which nobody has to wait for."""

    def __init__(
        self,
        grid: Grid,
        messages: dict[str, Message],
        most: int,
        patience: float,
        warn: Callable[[str], None],
    ) -> None:
        super().__init__(daemon=True)
        self.messages, self.late = messages, time.monotonic() + patience
        self._grid, self._most, self._warn = grid, most, warn
        self._found: list[Message] = []
        self._failed: BaseException | None = None

    def run(self) -> None:
        try:
            self._found = pulled(self._grid, self.messages.keys(), self._most)
        except BaseException as error:
            self._failed = error

    def result(self) -> tuple[list[Message], bool]:
        """The replies, once, and whether all of them could be read: nodes write what they like."""
        found, self._found = self._found, []
        if isinstance(self._failed, UNREADABLE):
            self._warn(f"a reply cannot be read: {one_line(self._failed)}")
        elif self._failed is not None:
            raise self._failed
        return found, self._failed is None


class _Looks:
    """Looks for replies, of which none holds up another.

    Flower hands on a reply before its node has sent the numbers, and waits for them within the look, hours if
    the node likes. The server would stay there until all others are late: one poisoned node would silence
    everybody. So a look that takes longer than one node's share of the time that is left is `held` aside.
    It is over when it is over; those who were looked for with it, and may be behind it, are asked again in
    the end.
    """

    def __init__(self, grid: Grid, most: int, alone: bool, warn: Callable[[str], None]) -> None:
        self.held: list[_Look] = []
        self._grid, self._most, self._warn = grid, most, warn
        self._asked = 1 if alone else max(1, _HELD // most)

    @property
    def grace(self) -> float:
        """Seconds that a look which has begun in time may take beyond it."""
        return _PAUSES[1] if self.held else 0.0

    def over(self, waiting: dict[str, Message], end: float) -> Iterator[list[Message]]:
        """Replies to what is `waiting`, look by look; whoever takes them removes what is answered."""
        held, self.held = self.held, []
        for look in held:
            if not look.is_alive() or (len(look.messages) > 1 and time.monotonic() > look.late):
                yield self._result(look, waiting)
            else:
                self.held.append(look)
        left = list(waiting) if time.monotonic() < end else []
        while left:
            some, left = left[: self._asked], left[self._asked :]
            remaining = end - time.monotonic()
            asked = {name: waiting.pop(name) for name in some if name in waiting}
            if len(asked) == 1:
                self._clear()
            look = _Look(self._grid, asked, self._most, remaining / 4, self._warn)
            look.start()
            look.join(max(_PAUSES[0], remaining / (2 + len(waiting))))
            if look.is_alive():
                self.held.append(look)
            else:
                yield self._result(look, waiting)

    def _clear(self) -> None:
        """Take out of the way what nobody asked for, before one reply is looked for.

        Flower lets nodes write to the server in the server's own name, and hands that on with the next look,
        for whatever it is. What cannot be read, or never ends, would take the reply along that is looked for.
        """
        strays = _Look(self._grid, {}, self._most, 0.0, self._warn)
        strays.start()
        strays.join(_PAUSES[0])

    def _result(self, look: _Look, waiting: dict[str, Message]) -> list[Message]:
        """What a look has found; all its messages are waited for again, or sent again if nobody knows."""
        found, readable = look.result() if not look.is_alive() else ([], False)
        if readable:
            waiting |= look.messages
        else:
            waiting |= _pushed(self._grid, self._unread(list(look.messages.values())))
            self._asked = 1
        return found

    def _unread(self, lost: Sequence[Message]) -> list[Message]:
        """What to send again, where one of several could not be read; one that was alone is ignored."""
        for message in lost if len(lost) == 1 else ():
            self._warn(f"node {message.metadata.dst_node_id}: its reply cannot be read, and is ignored")
        return [_again(message) for message in lost] if len(lost) > 1 else []


def _pushed(grid: Grid, messages: Sequence[Message]) -> dict[str, Message]:
    """Messages that may be answered, by their ids."""
    found = zip(grid.push_messages(messages), messages, strict=True) if messages else ()
    return {identity: message for identity, message in found if identity}


def _addressed(reply: Message, message: Message | None) -> Message:
    """The reply; an error that the SuperLink wrote, as one of the node that the `message` was sent to.

    A node that writes in the SuperLink's name can only say so of itself: it knows no other message's id.
    """
    if message is None or not reply.has_error() or reply.metadata.src_node_id != SUPERLINK_NODE_ID:
        return reply
    return Message(reply.error, reply_to=message)


class _Returning:
    """Nodes that have failed or gone away, and are asked again when they are there.

    It is `hopeless` if all of so many nodes have failed, and none has replied; None never gives up.
    """

    def __init__(self, patience: float, asked: int | None) -> None:
        self.failed: dict[int, tuple[Message, float]] = {}  # what was sent, until when it is waited for
        self._patience, self._asked = patience, asked
        self._tries: Counter[int] = Counter()
        self.errors: dict[int, Message] = {}  # the last of each node that has not replied since
        self._heard = False

    @property
    def hopeless(self) -> bool:
        """Whether all have failed."""
        return bool(self._tries) and not self._heard and len(self._tries) == self._asked

    def keeps(self, message: Message | None, reply: Message) -> bool:
        """Whether the node of a reply is to be asked again, and nothing is to be heard of the reply."""
        if message is None:
            return False
        node, failed = message.metadata.dst_node_id, reply.has_error()
        self._heard = self._heard or not failed
        if not failed or not self._patience or self._tries[node] == _TRIES:
            self.errors.pop(node, None)
            return False
        self._tries[node] += 1
        self.errors[node] = reply
        self.failed[node] = message, time.monotonic() + self._patience
        return True

    def back(self, grid: Grid) -> list[Message]:
        """What to send again, to nodes that are there."""
        there = self.failed.keys() & set(grid.get_node_ids()) if self.failed else set()
        return [_again(self.failed.pop(node)[0]) for node in sorted(there)]

    def given_up(self, now: float) -> Iterator[Message]:
        """Errors of nodes whose time is over."""
        for node in [node for node, (_, until) in self.failed.items() if until <= now]:
            del self.failed[node]
            yield self.errors.pop(node)


def _again(message: Message) -> Message:
    known = message.metadata
    return Message(
        message.content, known.dst_node_id, known.message_type, ttl=known.ttl, group_id=known.group_id
    )
