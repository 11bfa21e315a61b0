"""Replies whose insides say otherwise than their envelopes: in another name, of another kind, of no kind."""

import threading
import time
from types import SimpleNamespace

import numpy as np
import pytest

from fedproof.mechanisms import Bagging, Local, OneRound, Partition, Poisson, UserFedAvg
from fedproof.mechanisms.uploads import Rows

ROWS = Rows(features=2, classes=2)
NODES = range(100, 106)
ONCE = {
    "one-round": OneRound(upload=ROWS, noise_multiplier=1.0),
    "local": Local(upload=ROWS, noise_multiplier=1.0, honest=1),
}
ROUNDS = {
    "user-fedavg": UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=Poisson(probability=0.9)),
    "partition": Partition(pooled=True),
    "bagging": Bagging(rounds=2, sampling=Poisson(probability=0.9)),
}


def within(reply, **changes):
    """The reply with what its node has written into it; Flower's SuperLink looks at the envelope alone."""
    for name, value in changes.items():
        reply.metadata.__dict__[f"_{name}"] = value
    return reply


@pytest.fixture
def answers(flower, reply_with):
    """Honest nodes of any strategy, each with numbers of its own."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    def answer(message):
        number = message.metadata.dst_node_id - NODES.start + 1
        if "upload" in message.content["config"]:
            sent = ArrayRecord({"upload": Array(np.full((2, 2), 0.1) * [number, 1 - number])})
            return [Message(RecordDict({"upload": sent}), reply_to=message)]
        return [reply_with(message, {"weight": message.content["arrays"]["weight"].numpy() + 0.1 * number})]

    return dict.fromkeys(NODES, answer)


@pytest.fixture
def result(flower, make_grid, record):
    """`result(name, nodes)`: what is released, and the faults."""

    def run(name, nodes):
        common = {"num_users": len(NODES), "connect_timeout": 0.0}
        if name in ONCE:
            seed = {} if name == "local" else {"seed": 1}
            strategy = flower.OneRoundStrategy(ONCE[name], delta=0.01, **seed, **common)
            strategy.start(make_grid(nodes), timeout=1.0)
            return strategy.release.total, strategy.faults
        noise = {"delta": 0.01} if ROUNDS[name].noise_multiplier else {}
        strategy = flower.RoundsStrategy(ROUNDS[name], seed=1, **noise, **common)
        strategy.start(make_grid(nodes), record(weight=np.zeros(3)), timeout=1.0)
        return strategy._state.params, strategy.faults

    return run


def in_anothers_name(answers, error=False):
    from flwr.app import Error, Message

    def forge(message):
        (reply,) = answers[101](message)
        if error:
            reply = Message(Error(code=1, reason="broken"), reply_to=message)
        return [within(reply, src_node_id=102)]

    return {101: forge} | {node: answers[node] for node in NODES if node != 101}  # it is heard first


@pytest.mark.parametrize("error", [False, True], ids=["an upload", "an error"])
@pytest.mark.parametrize("name", [*ONCE, *ROUNDS])
def test_a_node_that_answers_as_another_silences_nobody_but_itself(answers, result, name, error):
    """Else one poisoned node would take one honest node out and count in its place."""
    found, faults = result(name, in_anothers_name(answers, error))
    want, _ = result(name, answers | {101: lambda message: []})
    np.testing.assert_array_equal(found, want)
    assert (1, 102, "late") in faults
    assert (1, 101, "silent") in faults


@pytest.mark.parametrize("name", [*ONCE, *ROUNDS])
def test_a_name_is_of_one_message_only(answers, result, name):
    """Two nodes that share what they see still have two replies, and an old one is too late."""
    seen = {}

    def spy(message):
        seen.setdefault("name", message.metadata.group_id)
        return [within(answers[101](message)[0], group_id=seen["name"])]

    def friend(message):
        (reply,) = answers[103](message)
        return [reply, within(answers[103](message)[0], src_node_id=101, group_id=seen.get("name", ""))]

    found, faults = result(name, {101: spy} | {n: answers[n] for n in NODES if n != 101} | {103: friend})
    rounds = 1 if name in ONCE else ROUNDS[name].rounds
    assert {fault for round_, node, fault in faults if node == 101 and round_ == 1} == {"twice"}
    assert {fault for round_, node, fault in faults if node == 101 and round_ == 2} <= {"late", "silent"}
    if rounds == 1:
        np.testing.assert_array_equal(found, result(name, answers)[0])


def test_flower_hands_on_what_a_node_has_written(answers, make_grid):
    """The premise: what a ServerApp gets is made of the node's bytes, which no envelope is held against."""
    from flwr.app import Message, RecordDict
    from flwr.supercore.inflatable.inflatable_object import add_header_to_object_body, get_all_nested_objects
    from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
    from google.protobuf.message import DecodeError

    asked = Message(RecordDict(), 101, "train", group_id="one-round.name")
    reply = within(Message(RecordDict(), reply_to=asked), src_node_id=102, reply_to_message_id="made up")
    nested = get_all_nested_objects(reply)
    parts = {name: part.deflate() for name, part in nested.items()}
    root = next(name for name, part in nested.items() if part is reply)
    found = inflate_object_from_contents(root, dict(parts))
    assert (found.metadata.src_node_id, found.metadata.reply_to_message_id) == (102, "made up")
    assert found.metadata.group_id == "one-round.name"
    parts[root] = add_header_to_object_body(b"\xff garbage", reply)
    with pytest.raises(DecodeError):
        inflate_object_from_contents(root, parts)


def test_messages_have_names_that_nobody_can_guess(flower, make_grid, answers):
    strategy = flower.OneRoundStrategy(ONCE["one-round"], num_users=6, delta=0.01, connect_timeout=0.0)
    grid = make_grid(answers)
    strategy.start(grid, timeout=1.0)
    names = [message.metadata.group_id for message in grid.sent[0]]
    assert len({name.partition(".")[2] for name in names}) == len(NODES)
    assert all(name.startswith("one-round.") and len(name) == len("one-round.") + 32 for name in names)


def test_nobody_says_another_nodes_number(flower, make_grid):
    from flwr.app import Context, RecordDict

    def honest(message):
        node = message.metadata.dst_node_id
        context = Context(1, node, {"partition-id": node - NODES.start}, RecordDict(), {})
        return [flower.answer_partition(message, context)]

    def forge(message):
        return [within(honest(message)[0], src_node_id=104)]

    nodes = dict.fromkeys(NODES, honest)
    want = {node: node - NODES.start for node in NODES if node != 105}
    for order in (nodes | {105: forge}, {105: forge} | nodes | {105: forge}):
        assert flower.ask_partitions(make_grid(order), timeout=1.0, unique=True) == want


@pytest.mark.parametrize("number", [2**63, 2**64 - 1])
def test_a_number_that_no_user_has_is_no_claim(flower, make_grid, answers, record, number):
    """Flower carries numbers of 64 bits; cohorts are drawn by those of 63."""
    from flwr.app import ConfigRecord, Message, RecordDict

    def claim(message):
        content = RecordDict({"config": ConfigRecord({"partition-id": number})})
        return [Message(content, reply_to=message)]

    users = flower.ask_partitions(make_grid({101: claim}), timeout=1.0)
    strategy = flower.RoundsStrategy(
        ROUNDS["user-fedavg"], num_users=6, delta=0.01, seed=1, users=users, connect_timeout=0.0
    )
    strategy.start(make_grid(answers), record(weight=np.zeros(3)), timeout=1.0)  # one node could end it
    assert users == {}


# --- contents ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ONCE, *ROUNDS])
def test_contents_of_another_kind_are_malformed(answers, result, name):
    """A reply is put together from what the node has sent, and may hold anything that Flower knows."""
    from flwr.app import Array, ArrayRecord, ConfigRecord

    want, _ = result(name, answers | {101: lambda message: []})
    for odd in (Array(np.zeros((2, 2))), ArrayRecord({"upload": Array(np.zeros((2, 2)))}), ConfigRecord()):

        def node(message, odd=odd):
            (reply,) = answers[101](message)
            reply.__dict__["_content"] = odd
            return [reply]

        found, faults = result(name, answers | {101: node})
        np.testing.assert_array_equal(found, want)
        assert (1, 101, "malformed") in faults


@pytest.mark.parametrize("name", [*ONCE, *ROUNDS])
def test_a_reply_that_cannot_be_read_is_its_nodes_own_loss(
    answers, result, make_grid, monkeypatch, caplog, name
):
    """Flower puts all replies of a pull together at once: one that is garbage takes the others along."""
    from google.protobuf.message import DecodeError

    bad, asked = 101, []
    pull, push = make_grid.pull_messages, make_grid.push

    def watched(self, message):
        asked.append(message.metadata.dst_node_id)
        return push(self, message)

    def unreadable(self, message_ids):
        replies = pull(self, message_ids)  # what was pulled is not there a second time
        if any(reply.metadata.src_node_id == bad for reply in replies):
            raise DecodeError("Error parsing message")
        return replies

    want, _ = result(name, answers | {bad: lambda message: []})
    monkeypatch.setattr(make_grid, "push", watched)
    monkeypatch.setattr(make_grid, "pull_messages", unreadable)
    with caplog.at_level("WARNING"):
        found, faults = result(name, answers)
    np.testing.assert_array_equal(found, want)
    assert {(node, fault) for _, node, fault in faults} == {(bad, "silent")}
    told = "node 101: its reply cannot be read, and is ignored"
    assert (told in caplog.messages) == (name != "user-fedavg")  # whose log must not show who was drawn
    if name == "local":  # whom another question would cost its ε again
        assert len(asked) == len(set(asked))


@pytest.mark.parametrize("alone", [True, False], ids=["looked for alone", "looked for together"])
def test_a_node_that_never_ends_its_upload_holds_up_nobody_else(answers, make_grid, flower, alone):
    """Flower hands on a reply whose numbers are still to come, and waits for them inside of its pull.

    A node that answers at once and sends no numbers would keep the server there until all others were late:
    one poisoned node would silence everybody.
    """
    never = threading.Event()

    class HeldGrid(make_grid):
        def push_messages(self, messages):
            self.begin, self.to = getattr(self, "begin", time.monotonic()), getattr(self, "to", {})
            return super().push_messages(messages)

        def push(self, message):
            name = super().push(message)
            self.to[name] = message.metadata.dst_node_id
            return name

        def pull_messages(self, message_ids):
            now = time.monotonic() - self.begin
            there = [name for name in message_ids if name in self.replies]
            held = [name for name in there if self.to[name] == 103]
            others = super().pull_messages(set(there) - set(held)) if 0.5 < now < 4.0 else []
            if super().pull_messages(held):  # the others train for half a second
                never.wait(20)
            return others

    name = "local" if alone else "one-round"
    strategy = flower.OneRoundStrategy(ONCE[name], num_users=6, delta=0.01, connect_timeout=0.0)
    grid = HeldGrid(answers)
    strategy.start(grid, timeout=4.0)
    never.set()
    assert time.monotonic() - grid.begin < 10
    assert strategy.faults == [(1, 103, "silent")]
    assert strategy.metrics[0]["replied"] == 5


# --- what nobody asked for ----------------------------------------------------------------------------------


def test_flower_lets_a_node_write_to_the_server_as_the_server(answers, make_grid, monkeypatch):
    """The premise: a node's key is held against the request, and nobody looks at who a message is from.

    What a node writes in the SuperLink's own name comes along with the next pull, whatever that was for.
    """
    from flwr.app import Message, RecordDict
    from flwr.app.message.message import remove_content_from_message
    from flwr.common.serde import message_to_proto
    from flwr.proto.fleet_pb2 import PushMessagesRequest
    from flwr.proto.runtime_pb2 import PullAppMessagesRequest
    from flwr.server.superlink.linkstate.linkstate_factory import LinkStateFactory
    from flwr.supercore.constant import FLWR_IN_MEMORY_DB_NAME, TaskType
    from flwr.supercore.inflatable.inflatable_object import get_object_tree
    from flwr.supercore.object_store import ObjectStoreFactory
    from flwr.supercore.task_identity import TaskIdentity
    from flwr.superlink.federation import NoOpFederationManager
    from flwr.superlink.servicer.fleet import fleet_handlers
    from flwr.superlink.servicer.runtime import runtime_handlers

    state = LinkStateFactory(FLWR_IN_MEMORY_DB_NAME, NoOpFederationManager(), ObjectStoreFactory()).state()
    run = state.create_run("a/b", "1", "0" * 64, {}, "none", None, None, TaskType.SERVER_APP)
    monkeypatch.setattr(TaskIdentity, "_run_id", run)
    monkeypatch.setattr(fleet_handlers, "check_abort", lambda *arguments: None)  # the run has begun
    stray = Message(RecordDict(), 1, "train", ttl=100)
    stray.metadata.__dict__["_message_id"] = stray.object_id
    sent = message_to_proto(remove_content_from_message(stray))
    request = PushMessagesRequest(messages_list=[sent], message_object_trees=[get_object_tree(stray)])
    request.node.node_id = 101
    fleet_handlers.push_messages(request, state)
    found = runtime_handlers.pull_messages(PullAppMessagesRequest(), state, SimpleNamespace(run_id=run))
    assert [message.metadata.message_id for message in found.messages_list] == [stray.object_id]


@pytest.mark.parametrize("kind", ["garbage", "never ended"])
@pytest.mark.parametrize("name", ["local", "one-round"])
def test_what_nobody_asked_for_takes_no_reply_along(answers, make_grid, flower, name, kind):
    """A poisoned node writes as soon as the server has looked for something; everybody else is heard."""
    from google.protobuf.message import DecodeError

    never = threading.Event()

    class StrayGrid(make_grid):
        stray = True

        def pull_messages(self, message_ids):
            stray, self.stray = self.stray, bool(message_ids)
            found = super().pull_messages(message_ids)
            if stray and kind == "garbage":
                raise DecodeError("Error parsing message")
            if stray:
                never.wait(20)
            return found

    strategy = flower.OneRoundStrategy(ONCE[name], num_users=6, delta=0.01, connect_timeout=0.0)
    strategy.start(StrayGrid(answers), timeout=8.0)
    never.set()
    assert strategy.faults == []
    assert strategy.metrics[0]["replied"] == 6
