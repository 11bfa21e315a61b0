"""Every certifying mechanism over a grid of functions, against the local engine and against hostile nodes."""

import itertools
import os
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import fedproof as fp
from fedproof import vault
from fedproof.accounting.ledger import load_ledger
from fedproof.certificates import dumps
from fedproof.data import load
from fedproof.digests import of_all, of_each
from fedproof.ensemble import Task, one_round, train_replicas
from fedproof.integrations import server
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    FixedSize,
    LocalTraining,
    NoisyPartition,
    OneRound,
    Partition,
    Poisson,
    Releases,
)
from fedproof.mechanisms.codec import describe
from fedproof.mechanisms.uploads import Anchors, Ball, NonNegative, Pairs, Rows
from fedproof.models.networks import linear
from fedproof.release import load_release
from fedproof.serving import predict
from fedproof.statements import Statement

files = pytest.importorskip(
    "fedproof.integrations.flower.files",
    reason="flwr is not installed: pip install 'fedproof[flower]'",
    exc_type=ImportError,
)

USERS, SEED, ANCHORS = 9, 5, 16
HEAD, NEAR = {"features": 64, "classes": 3}, {"anchors": ANCHORS, "classes": 3}
UPLOADS = [Rows(**HEAD), Ball(**HEAD), Pairs(**HEAD), NonNegative(**NEAR), Anchors(**NEAR)]


@pytest.fixture(scope="module")
def federation():
    found = load("digits", classes=[0, 1, 2], users=USERS)
    public = np.random.default_rng(0).permutation(found.test_features)[:ANCHORS]
    return replace(found, public_features=public.astype(np.float32))


def once(upload, **changes):
    return OneRound(**{"upload": upload, "noise_multiplier": 1.0} | changes)


def task_of(federation, mechanism, local=None):
    model = linear((64,), 3)
    return Task(
        federation=federation,
        model=replace(model, start=torch.zeros(model.layout.dim)),
        mechanism=mechanism,
        local=local or LocalTraining(solver="ridge", penalty=1.0),
        seed=SEED,
    )


@pytest.fixture
def sender(flower):
    """`sender(sent)`: a node that sends this upload, whatever it is told."""
    return lambda sent: lambda message: [flower.upload_reply(message, np.asarray(sent))]


@pytest.fixture
def make_once(flower, federation):
    def make(upload=UPLOADS[0], **changes):
        mechanism = changes.pop("mechanism", once(upload))
        public = federation.public_features[:ANCHORS] if upload.bumps else None
        arguments = {
            "num_users": USERS,
            "delta": 0.01,
            "seed": SEED,
            "anchors": public,
            "connect_timeout": 0.0,
        }
        return flower.OneRoundStrategy(mechanism, **arguments | changes)

    return make


@pytest.fixture
def uploads(federation):
    return lambda upload: np.concatenate(list(one_round.uploads_of(task_of(federation, once(upload)))))


@pytest.fixture
def nodes(sender, uploads):
    return lambda upload=UPLOADS[0]: {100 + user: sender(sent) for user, sent in enumerate(uploads(upload))}


# --- one round --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("upload", UPLOADS, ids=lambda upload: upload.kind)
def test_a_release_is_that_of_the_local_engine_bit_for_bit(
    make_once, make_grid, nodes, federation, upload, tmp_path
):
    task = task_of(federation, once(upload))
    want = one_round.release(task)
    strategy, grid = make_once(upload, folder=tmp_path), make_grid(nodes(upload))
    result = strategy.start(grid)
    np.testing.assert_array_equal(strategy.release.total, want.total)
    np.testing.assert_array_equal(load_release(tmp_path / "release.npz").total, want.total)
    assert len(grid.sent) == 1
    assert len(grid.sent[0]) == strategy.metrics[0]["messages"] == strategy.metrics[0]["replied"] == USERS
    assert result.arrays["upload"].numpy() == pytest.approx(want.total * want.mechanism.grid.step, rel=1e-6)
    certificate = strategy.certify(strategy.scores(federation.test_features), federation.test_labels)
    local = fp.train(task).certify()
    assert certificate.certified_size == local.certified_size
    assert certificate.sound
    text = (tmp_path / "certificate.json").read_text()
    assert not fp.verify(text, tmp_path / "scores.npy", tmp_path / "labels.npy")
    ledger = load_ledger(tmp_path / "ledger.json")
    assert ledger.epsilon["pld"] == strategy.metrics[0]["epsilon"] == fp.account(once(upload), 0.01)["pld"]


def test_an_upload_of_labels_takes_a_few_hundred_bytes(flower, make_once, make_grid, sender):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    taken = []

    def node(message):
        reply = flower.upload_reply(message, np.arange(256) % 3)
        taken.append(sum(len(part.deflate()) for part in get_all_nested_objects(reply).values()))
        return [reply]

    upload = Anchors(anchors=256, classes=3)
    strategy = make_once(upload, anchors=np.eye(256), num_users=1)
    strategy.start(make_grid({1: node}))
    assert strategy.metrics[0]["upload-bytes"] == upload.bytes == 256
    assert taken[0] < 700


def test_labels_of_many_classes_take_two_bytes_and_who_cannot_tell_abstains(
    flower, make_once, make_grid, sender
):
    upload = Anchors(anchors=3, classes=300)
    strategy = make_once(upload, mechanism=once(upload, noise_multiplier=0.0), anchors=np.eye(3), num_users=1,
                         delta=None)  # fmt: skip
    strategy.start(make_grid({1: sender([299, -1, 255])}))
    total = strategy.release.total
    assert total.argmax(axis=1)[[0, 2]].tolist() == [299, 255]
    assert not total[1].any()
    assert strategy.metrics[0]["upload-bytes"] == 6


def hostile(flower, reply_with):
    from flwr.app import Array, ArrayRecord, ConfigRecord, Error, Message, RecordDict

    def raw(**records):
        return lambda message: [Message(RecordDict(records), reply_to=message)]

    broken = Array(dtype="float64", shape=(64, 3), stype="numpy.ndarray", data=b"\x93NUMPY\x01\x00garbage")
    return {
        "malformed": [
            raw(),
            raw(a=ArrayRecord({"upload": broken})),
            raw(a=ArrayRecord({"other": Array(np.zeros((64, 3)))})),
            raw(a=ArrayRecord({"upload": Array(np.zeros((3, 64)))})),
            raw(a=ArrayRecord({"upload": Array(np.zeros((64, 3), dtype=np.int64))})),
            raw(a=ConfigRecord({"labels": bytes(16)})),
            raw(a=ConfigRecord({"labels": "x" * 16})),
        ],
        "not-finite": [
            raw(a=ArrayRecord({"upload": Array(np.full((64, 3), bad))})) for bad in (np.nan, np.inf, -np.inf)
        ],
        "error": [lambda message: [Message(Error(code=1, reason="out of memory"), reply_to=message)]],
        "silent": [lambda message: []],
    }


@pytest.mark.parametrize("fault", ["malformed", "not-finite", "error", "silent"])
def test_a_node_without_an_upload_is_absent(flower, reply_with, make_once, make_grid, nodes, uploads, fault):
    honest = nodes()
    without = make_once()
    without.start(make_grid({node: app for node, app in honest.items() if node != 104}))
    for bad in hostile(flower, reply_with)[fault]:
        strategy = make_once()
        strategy.start(make_grid(honest | {104: bad}))
        np.testing.assert_array_equal(strategy.release.total, without.release.total)
        assert strategy.faults == [(1, 104, fault)]
        assert strategy.metrics[0][f"faults-{fault}"] == 1


@pytest.mark.parametrize("upload", UPLOADS, ids=lambda upload: upload.kind)
def test_one_node_moves_a_release_by_one_vector_of_the_set(
    flower, make_once, make_grid, nodes, sender, upload
):
    before = make_once(upload)
    before.start(make_grid(nodes(upload)))
    huge = np.zeros(ANCHORS, np.int64) if upload.labels else np.full(upload.shape, 1e300)
    after = make_once(upload)
    # One node sends the largest upload that there is three times, and another one in its name.
    after.start(make_grid(nodes(upload) | {104: lambda message: 3 * sender(huge)(message)}))
    moved = (after.release.total - before.release.total) * 2.0**-32
    assert 0 < np.linalg.norm(moved) <= upload.distance
    assert {fault for _, _, fault in after.faults} == {"twice"}


def test_the_order_of_arrival_changes_nothing(make_once, make_grid, nodes):
    totals = []
    for order in (slice(None), slice(None, None, -1)):
        grid, strategy = make_grid(nodes()), make_once()
        pull = grid.pull_messages
        grid.pull_messages = lambda ids, pull=pull, order=order: pull(ids)[order]
        grid.push_messages = lambda messages, push=grid.push_messages, order=order: push(messages)[order]
        strategy.start(grid)
        totals.append(strategy.release.total)
    np.testing.assert_array_equal(*totals)


def test_uploads_are_pulled_a_few_at_a_time(flower, make_grid, nodes):
    from fedproof.integrations.flower import exchange as module

    grid, held = make_grid(nodes()), []
    pull = grid.pull_messages

    def counted(ids):
        held.append(pull(ids))
        return held[-1]

    grid.pull_messages = counted
    from flwr.app import ConfigRecord, Message, RecordDict

    config = ConfigRecord({"classes": 3})
    messages = [Message(RecordDict({"config": config}), node, "train") for node in grid.nodes]
    replies = module.exchange(grid, messages, timeout=5.0, size=module._HELD // 2 - module.most_of(4096))
    assert len(list(replies)) == USERS
    assert max(map(len, held)) == 2


def test_the_longer_nobody_replies_the_less_often_is_looked(flower, make_grid, monkeypatch):
    from flwr.app import Message, RecordDict

    from fedproof.integrations.flower import exchange as module

    clock, pauses, arrives = [0.0], [], 40.0

    def sleep(seconds):
        pauses.append(seconds)
        clock[0] += seconds

    monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: clock[0]))
    grid = make_grid({})
    grid.push_messages = lambda messages: ["first", "second"]
    told = SimpleNamespace(metadata=SimpleNamespace(reply_to_message_id="first"), has_error=lambda: False)
    grid.pull_messages = lambda ids: [told] if "first" in ids and clock[0] >= arrives else []
    messages = [Message(RecordDict(), node, "train") for node in (1, 2)]
    assert list(module.exchange(grid, messages, timeout=60.0)) == [told]
    assert sum(pauses) == pytest.approx(60.0)  # until the time is up, and no longer
    assert len(pauses) < 120  # at ten a second there were 600
    heard = next(place for place in range(len(pauses)) if sum(pauses[:place]) >= arrives)
    assert pauses[0] == pauses[heard] == 0.1
    assert pauses[heard - 1] == 1.0


# --- a server that is killed ------------------------------------------------------------------------------


class PowerCutError(Exception):
    pass


def cut_at(patch, moment):
    """Let the power fail at a moment: when a function of `files` is called, or a kept release is renamed."""
    calls, publish, rename = itertools.count(), files.publish, os.replace

    def cut(*arguments, **options):
        raise PowerCutError

    if moment == "publish":  # the second call: the first looks for what is there
        patch.setattr(files, moment, lambda *args, **more: cut() if next(calls) else publish(*args, **more))
    elif moment == "rename":
        kept = Path("private/release.npz").parts
        patch.setattr(os, "replace", lambda a, b: cut() if Path(a).parts[-2:] == kept else rename(a, b))
    elif moment == "record":
        patch.setattr(vault, "replace_file", cut)
    else:
        patch.setattr(files, moment, cut)


@pytest.mark.parametrize("moment", ["save_release", "record", "publish", "save_ledger", "rename"])
@pytest.mark.parametrize("seed", [SEED, None])
def test_a_killed_server_releases_once(
    make_once, make_grid, nodes, sender, tmp_path, monkeypatch, moment, seed
):
    with monkeypatch.context() as patch:
        cut_at(patch, moment)
        with pytest.raises(PowerCutError):
            make_once(folder=tmp_path, seed=seed).start(make_grid(nodes()))
    kept = [
        path for path in (tmp_path / "private" / "release.npz", tmp_path / "release.npz") if path.exists()
    ]
    made = (tmp_path / "private" / "state.json").exists()
    first = load_release(kept[0]).total if made else None
    assert (tmp_path / "ledger.json").exists() or not (tmp_path / "release.npz").exists()
    # The nodes would send something else now: noise that was used must not be used again.
    grid, again = (
        make_grid(dict.fromkeys(nodes(), sender(np.ones((64, 3))))),
        make_once(folder=tmp_path, seed=seed),
    )
    again.start(grid)
    assert load_ledger(tmp_path / "ledger.json").replicas == 1
    assert made == (grid.sent == []) == (moment not in ("save_release", "record"))
    if made:
        np.testing.assert_array_equal(again.release.total, first)
    assert not (tmp_path / "private" / "release.npz").exists()


def test_a_release_that_is_gone_is_not_made_again(make_once, make_grid, nodes, tmp_path):
    make_once(folder=tmp_path).start(make_grid(nodes()))
    with pytest.raises(ValueError, match="made of something else"):
        make_once(folder=tmp_path, seed=SEED + 1).start(make_grid(nodes()))
    (tmp_path / "release.npz").rename(tmp_path / "elsewhere.npz")
    for lost in ("release", "state"):
        grid = make_grid(nodes())
        with pytest.raises(ValueError, match="is missing or was altered; its noise must") as refused:
            make_once(folder=tmp_path).start(grid)
        assert "\n" not in str(refused.value)
        assert grid.sent == []
        if lost == "release":
            (tmp_path / "private" / "state.json").unlink()


def test_of_two_loops_in_one_folder_one_releases(make_once, make_grid, nodes, sender, tmp_path):
    from flwr.app import ArrayRecord, ConfigRecord

    grids = [make_grid(nodes()), make_grid(dict.fromkeys(nodes(), sender(np.ones((64, 3)))))]
    first, second = (make_once(folder=tmp_path) for _ in grids)
    sent = [
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
        for strategy, grid in zip((first, second), grids, strict=True)
    ]
    first.aggregate_train(1, grids[0].send_and_receive(sent[0]))
    with pytest.raises(ValueError, match="was made meanwhile") as refused:
        second.aggregate_train(1, grids[1].send_and_receive(sent[1]))
    assert "\n" not in str(refused.value)
    np.testing.assert_array_equal(load_release(tmp_path / "release.npz").total, first.release.total)
    with pytest.raises(ValueError, match="nothing has been released yet"):
        assert second.release


# --- who is who -------------------------------------------------------------------------------------------


def test_more_nodes_than_declared_are_refused_before_anybody_is_asked(make_once, make_grid, nodes):
    grid = make_grid(nodes())
    with pytest.raises(
        ValueError, match=r"num_users = 8 must be at least the number of nodes: node 108 would"
    ):
        make_once(num_users=8).start(grid)
    with pytest.raises(ValueError, match=r"node 100 would be user 9, counted from 0; nobody was asked"):
        make_once(users={100: 9}).start(grid)
    assert grid.sent == []


def test_a_node_without_an_identity_is_not_asked(flower, make_once, make_grid, nodes, caplog):
    from flwr.app import Context, MessageType, RecordDict

    claims = {100: 0, 101: 1, 102: 1, 103: None} | {100 + user: user for user in range(4, USERS)}

    def asked(node, app):
        def answer(message):
            if message.metadata.message_type != MessageType.QUERY:
                return app(message)
            config = {} if claims[node] is None else {"partition-id": claims[node]}
            return [flower.answer_partition(message, Context(1, node, config, RecordDict(), {}))]

        return answer

    honest = nodes()
    grid = make_grid({node: asked(node, app) for node, app in honest.items()})
    with caplog.at_level("WARNING"):
        users = flower.ask_partitions(grid)
        strategy = make_once(users=users)
        strategy.start(grid)
    assert strategy.faults == [(1, node, "nameless") for node in (101, 102, 103)]
    for line in (
        "this node has no partition-id in its --node-config",
        "node 103 names no partition-id: it has no identity",
        "node 101 claims partition-id = 1 like another",
    ):
        assert sum(line in message for message in caplog.messages) == 1
    # One node must not shut another out of what counts everybody once.
    with pytest.raises(ValueError, match=r"nodes 101 and 102 both claim partition-id = 1: turn one away"):
        flower.ask_partitions(grid, unique=True)
    alone = make_once()
    alone.start(make_grid({node: app for node, app in honest.items() if node not in (101, 102, 103)}))
    np.testing.assert_array_equal(strategy.release.total, alone.release.total)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": None}, "delta = None must be a number"),
        ({"mechanism": once(Rows(**HEAD), unit="instance")}, "unit = 'instance' must be 'user'"),
        ({"mechanism": once(Rows(**HEAD), noise_multiplier=0.0)}, "delta and max_epsilon must be left out"),
        ({"anchors": np.eye(3)}, "upload = 'rows' has no anchors"),
        (
            {"upload": UPLOADS[-1], "anchors": np.eye(3)},
            r"anchors have shape \(3, 3\), must be \(16, features\)",
        ),
        (
            {"upload": UPLOADS[-1], "anchors": np.ones(16)},
            r"anchors are float32 \(16,\), must be finite numbers",
        ),
        ({"upload": UPLOADS[-2], "anchors": np.full((16, 2), np.nan)}, "must be finite numbers"),
        ({"num_users": 2**30}, "1,073,741,824 units are more than"),
        ({"users": {100: 0, 101: 0}}, "users gives one number to two nodes"),
        ({"users": {100: 0, 101: -1}}, "users: -1 is no number of a user, they are counted from 0"),
    ],
)
def test_bad_arguments_of_one_round(make_once, change, message):
    with pytest.raises(ValueError, match=message):
        make_once(**change)


def test_nobody_is_asked_twice_or_beyond_the_budget(make_once, make_grid, nodes):
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.exception import PrivacyBudgetExhausted

    grid, strategy = make_grid(nodes()), make_once()
    with pytest.raises(ValueError, match="nothing has been released yet"):
        _ = strategy.release
    with pytest.raises(ValueError, match="has not been configured"):
        strategy.aggregate_train(1, [])
    with pytest.raises(ValueError, match="num_rounds = 2 must be 1"):
        strategy.start(grid, num_rounds=2)
    strategy.start(grid)
    with pytest.raises(ValueError, match="everybody is asked once"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(PrivacyBudgetExhausted, match=r"would exceed max_epsilon = 0.1"):
        make_once(max_epsilon=0.1).start(grid)


# --- groups and cohorts that are drawn once ---------------------------------------------------------------

LOCAL = LocalTraining(epochs=3, batch_size=1000, learning_rate=0.5)
ROUNDS = {
    "one vote each": Partition(pooled=True),
    "groups": Partition(groups=3, rounds=2),
    "noisy groups": NoisyPartition(groups=3, rounds=2, noise_multiplier=1.0, population=USERS),
    "bagging": Bagging(rounds=2, sampling=Poisson(probability=0.4)),
    "bagging, fixed": Bagging(rounds=2, sampling=FixedSize(cohort=3, users=USERS)),
    "cohort-once": CohortOnce(
        rounds=2, sampling=Poisson(probability=0.4), noise_multiplier=1.0, population=USERS
    ),
}
PRIVATE = {"delta": 0.01}


@pytest.fixture
def trainers(flower, example_path, federation, reply_with):
    """Nodes that train as the local engine does, in NumPy, with the mod that knows of replicas."""
    train = import_module("digits_app.model").train
    cuts = federation.offsets[1:-1]
    shares = zip(np.split(federation.features, cuts), np.split(federation.labels, cuts), strict=True)

    def node(features, labels):
        def fit(message, context=None):
            arrays = {name: array.numpy() for name, array in message.content["arrays"].items()}
            names = sorted(arrays)  # bias, weight
            with np.errstate(over="ignore", invalid="ignore"):  # in a group that somebody has poisoned
                weight, bias = train(
                    arrays[names[1]], arrays[names[0]], features, labels, epochs=3, learning_rate=0.5
                )
            return reply_with(message, {names[1]: weight, names[0]: bias})

        return lambda message: [flower.replicas_mod(message, None, fit)]

    return {100 + user: node(features.astype(np.float32), labels)
            for user, (features, labels) in enumerate(shares)}  # fmt: skip


@pytest.fixture
def make_rounds(flower):
    def make(mechanism, **changes):
        arguments = {"num_users": USERS, "seed": SEED, "min_replies": 1, "connect_timeout": 0.0}
        if mechanism.noise_multiplier:
            arguments |= PRIVATE
        if mechanism.models(USERS) is None:
            arguments["replicas"] = range(6)
        elif not mechanism.apart:
            arguments["users"] = {100 + user: user for user in range(USERS)}
        return flower.RoundsStrategy(mechanism, **arguments | changes)

    return make


@pytest.fixture
def zeros(record):
    return record(fc0_weight=np.zeros((3, 64), np.float32), fc0_bias=np.zeros(3, np.float32))


@pytest.mark.parametrize("name", ROUNDS)
def test_rounds_are_those_of_the_local_engine(
    flower, make_rounds, make_grid, trainers, zeros, federation, name, tmp_path
):
    mechanism = ROUNDS[name]
    strategy, grid = make_rounds(mechanism, folder=tmp_path), make_grid(trainers)
    models = flower.stacked_arrays(strategy.start(grid, zeros).arrays)
    task = task_of(federation, mechanism, LOCAL)
    want = train_replicas(task, strategy.plan.replicas)
    for name_, values in want.models.items():
        found = models[name_.replace("linear", "fc0")]
        np.testing.assert_allclose(found, values.numpy(), atol=1e-5)
    assert strategy.executed == mechanism
    assert len(grid.sent) == mechanism.rounds
    certificate = strategy.certify(want.scores, federation.test_labels, models=models)
    together = mechanism.noise_multiplier and strategy.executed.releases is Releases.REPLICAS
    assert [one.code for one in certificate.unmet] == ["attended-together"] * bool(together)
    text = (tmp_path / "certificate.json").read_text()
    assert not fp.verify(text, tmp_path / "scores.npy", tmp_path / "labels.npy")
    assert (tmp_path / "ledger.json").exists() == bool(mechanism.noise_multiplier)
    if mechanism.noise_multiplier:
        spent = load_ledger(tmp_path / "ledger.json").epsilon
        assert spent == fp.ensemble_account(mechanism, 0.01, len(strategy.plan.replicas))


def test_who_is_silent_has_no_vote(flower, make_rounds, make_grid, trainers, zeros):
    strategy = make_rounds(Partition(pooled=True))
    everybody = flower.stacked_arrays(strategy.start(make_grid(trainers), zeros).arrays)["fc0.weight"]
    bad = {101: lambda message: [], 105: lambda message: []}
    strategy = make_rounds(Partition(pooled=True))
    models = flower.stacked_arrays(strategy.start(make_grid(trainers | bad), zeros).arrays)["fc0.weight"]
    assert np.flatnonzero(~strategy.heard).tolist() == [1, 5]
    np.testing.assert_array_equal(models, np.delete(everybody, [1, 5], axis=0))


@pytest.mark.parametrize("name", ["groups", "bagging", "one vote each"])
@pytest.mark.parametrize("value", [np.nan, 3e38, 1e300])
def test_a_hostile_node_changes_only_models_that_it_is_in(
    flower, make_rounds, make_grid, trainers, zeros, reply_with, name, value
):
    def fit(message, context=None):
        return reply_with(
            message, {k: np.full(v.numpy().shape, value) for k, v in message.content["arrays"].items()}
        )

    mechanism = ROUNDS[name]
    poisoned = {104: lambda message: [flower.replicas_mod(message, None, fit)]}
    before, after = (make_rounds(mechanism) for _ in range(2))
    clean = flower.stacked_arrays(before.start(make_grid(trainers), zeros).arrays)["fc0.weight"]
    after.start(make_grid(trainers | poisoned), zeros)
    found = after._state.params
    member = server.draw_cohorts(after.plan)[:, 0, 4]
    np.testing.assert_array_equal(found[~member][:, : 3 * 64].reshape(-1, 3, 64), clean[~member])
    assert np.isfinite(found).all()


@pytest.mark.parametrize("name", [name for name in ROUNDS if ROUNDS[name].rounds > 1])
@pytest.mark.parametrize("seed", [SEED, None])
def test_a_killed_training_goes_on_with_the_same_members(
    flower, make_rounds, make_grid, trainers, zeros, tmp_path, name, seed
):
    grid = make_grid(trainers)
    push, sent = grid.push_messages, []

    def cut(messages):
        sent.append(messages)
        if len(sent) == 2:
            raise PowerCutError
        return push(messages)

    grid.push_messages = cut
    with pytest.raises(PowerCutError):
        make_rounds(ROUNDS[name], seed=seed, folder=tmp_path).start(grid, zeros)
    resumed, again = make_rounds(ROUNDS[name], seed=seed, folder=tmp_path), make_grid(trainers)
    resumed.start(again, zeros)
    asked = [[message.metadata.dst_node_id for message in messages] for messages in (sent[1], again.sent[0])]
    assert asked[0] == asked[1]
    assert resumed.executed == ROUNDS[name]
    secrets = {one.code for one in resumed.assumptions} & {"numbered", "no-seed", "seed-fresh"}
    assert bool(secrets) == ("groups" in name or seed is None)


# --- who is who after a resume ----------------------------------------------------------------------------

DRAWN_ONCE = {"one vote each": Partition(pooled=True, rounds=2)} | {
    name: ROUNDS[name] for name in ("groups", "noisy groups", "bagging", "cohort-once")
}
UNNAMED = [name for name in DRAWN_ONCE if "groups" not in name]
NAMED = {100 + user: user for user in range(USERS)}


@pytest.fixture
def play(make_rounds, make_grid, trainers, zeros, tmp_path):
    """`play(mechanism, nodes, rounds, users=...)`: the strategy, and which nodes each round has asked.

    `nodes` says which person is behind which node.
    """

    def start(mechanism, nodes, rounds=None, **changes):
        strategy = make_rounds(mechanism, **{"folder": tmp_path} | changes)
        grid = make_grid({node: trainers[100 + person] for node, person in nodes.items()})
        strategy.start(grid, zeros, num_rounds=rounds)
        return strategy, [{message.metadata.dst_node_id for message in sent} for sent in grid.sent]

    return start


def moved(mapping, by=400):
    """The same persons behind new nodes: the SuperLink has lost its database."""
    return {node + by: number for node, number in mapping.items()}


@pytest.mark.parametrize("name", UNNAMED)
def test_users_counted_as_they_came_are_not_named_later(play, name):
    play(DRAWN_ONCE[name], NAMED, 1, users=None)
    for users in (NAMED, moved(NAMED), {100 + user: USERS - 1 - user for user in range(USERS)}):
        with pytest.raises(ValueError, match="was begun without users and cannot go on with them"):
            play(DRAWN_ONCE[name], NAMED, users=users)


@pytest.mark.parametrize("name", UNNAMED)
def test_a_node_that_comes_after_the_first_round_unnamed_has_no_number(play, name):
    few = {100 + user: user for user in range(4)}
    first, _ = play(DRAWN_ONCE[name], few, 1, users=None)
    resumed, asked = play(DRAWN_ONCE[name], few | moved(few), users=None)
    assert resumed._users == first._users == few
    assert asked[0] <= set(few)
    assert resumed.faults == [(2, node, "nameless") for node in moved(few)]


def test_a_node_that_joins_between_rounds_unnamed_is_not_asked(make_rounds, make_grid, trainers, zeros):
    early = {node: trainers[node] for node in (100, 101, 102)}
    strategy, grid = make_rounds(DRAWN_ONCE["one vote each"]), make_grid(early)

    def join(server_round, arrays):
        grid.nodes[999] = trainers[102]  # a user under a second node id

    strategy.start(grid, zeros, evaluate_fn=join)
    assert strategy.faults == [(2, 999, "nameless")]
    assert strategy.heard.sum() == 3


@pytest.mark.parametrize("name", DRAWN_ONCE)
def test_a_node_keeps_the_number_that_it_was_named(play, name):
    here = {node: user for node, user in NAMED.items() if user < USERS - 1}
    play(DRAWN_ONCE[name], here, 1, users=here)
    for users in (
        here | {100: USERS - 1},  # an absent user's number
        here | {100: 1, 101: 0},
    ):
        with pytest.raises(ValueError, match=r"users says that node 100 is user \d: .* knows it as user 0"):
            play(DRAWN_ONCE[name], here, users=users)
    if name in UNNAMED:
        with pytest.raises(ValueError, match="was begun with users and cannot go on without them"):
            play(DRAWN_ONCE[name], here, users=None)


@pytest.mark.parametrize("name", DRAWN_ONCE)
def test_new_nodes_of_named_users_go_on_as_the_old_ones(play, name, tmp_path):
    play(DRAWN_ONCE[name], NAMED, 1, users=NAMED)
    resumed, _ = play(DRAWN_ONCE[name], moved(NAMED), users=moved(NAMED))
    assert resumed._users == moved(NAMED)
    assert not resumed.faults
    whole, _ = play(DRAWN_ONCE[name], NAMED, users=NAMED, folder=tmp_path / "whole")
    np.testing.assert_array_equal(resumed._state.params, whole._state.params)
    assert Statement.of("numbered") in resumed.assumptions


@pytest.mark.parametrize("name", DRAWN_ONCE)
def test_a_node_struck_from_users_is_not_asked_and_takes_no_other_number(play, name):
    mechanism = DRAWN_ONCE[name].altered(rounds=3)
    left = {node: user for node, user in NAMED.items() if node != 108}
    play(mechanism, NAMED, 1, users=NAMED)
    resumed, asked = play(mechanism, NAMED, 2, users=left)
    assert 108 not in asked[0]
    assert resumed.faults == [(2, 108, "nameless")]
    with pytest.raises(ValueError, match=r"users says that node 108 is user 0: .* knows it as user 8"):
        play(mechanism, NAMED, users={108: 0})


@pytest.mark.parametrize(
    ("mechanism", "message"),
    [
        (once(Rows(**HEAD)), "kind = 'one-round' must be one that trains in rounds"),
        (Partition(groups=3, pooled=True), "pooled = True must be False"),
        (Partition(groups=3, pooled=True, unit="instance"), "unit = 'instance' must be 'user'"),
        (Bagging(rounds=1, sampling=Poisson(probability=0.5), rule="krum"), "rule = 'krum' must be 'mean'"),
        (Partition(groups=20), "groups = 20 must be at most the number of units = 9"),
    ],
)
def test_what_cannot_be_played_among_nodes_is_refused(make_rounds, mechanism, message):
    with pytest.raises(ValueError, match=message):
        make_rounds(mechanism, **({"delta": 0.01} if mechanism.noise_multiplier else {}))


def test_a_ledger_of_another_mechanism_is_refused(make_rounds, make_grid, trainers, zeros, tmp_path):
    mechanism = ROUNDS["cohort-once"]
    fp.accounting.ledger.save_ledger(
        fp.Ledger.of(replace(mechanism, noise_multiplier=9.0), 0.01).spend(6), tmp_path / "ledger.json"
    )
    with pytest.raises(ValueError, match=r"ledger\.json counts another mechanism or δ"):
        make_rounds(mechanism, folder=tmp_path).start(make_grid(trainers), zeros)


# --- what the folder answers ------------------------------------------------------------------------------


def test_a_folder_without_a_configuration_serves_new_inputs(
    flower, make_rounds, make_once, make_grid, trainers, nodes, zeros, federation, tmp_path
):
    inputs = np.asarray(federation.test_features).reshape(-1, 64)
    once, votes = (tmp_path / name for name in ("once", "votes"))
    release = make_once(folder=once)
    release.start(make_grid(nodes()))
    rounds = make_rounds(Partition(pooled=True), folder=votes)
    models = flower.stacked_arrays(rounds.start(make_grid(trainers), zeros).arrays)
    logits = inputs @ models["fc0.weight"].swapaxes(1, 2) + models["fc0.bias"][:, None]
    scores = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    made = {once: release.certify(release.scores(inputs)), votes: rounds.certify(scores, models=models)}
    for folder, certificate in made.items():
        served = predict(folder, inputs[:5])
        assert served.prediction == certificate.prediction[:5]
        assert served.certified_size == certificate.certified_size[:5]
        with pytest.raises(ValueError, match="must be"):
            predict(folder, inputs[0])

    def others(named):
        """Other models are refused; under a certificate that names them they are still looked at."""
        np.savez(votes / "models.npz", **named)
        (votes / "certificate.json").write_text(dumps(made[votes]))
        with pytest.raises(ValueError, match=r"has the digest|as many models each"):
            predict(votes, inputs)
        if len({len(array) for array in named.values()}) == 1:
            sha256 = of_all(describe(made[votes].mechanism), of_each(named))
            about = replace(made[votes], models_sha256=sha256)
            (votes / "certificate.json").write_text(dumps(about))

    for name, change, message in (
        ("bias", lambda bias: bias, "must hold a weight"),
        ("weight", lambda weight: weight[:, :, 1:], "must hold a weight"),
        ("weight", lambda weight: weight[1:], "8 models of 3 classes answer, .* of 9 models of 3"),
    ):
        others({f"fc0.{name}": change(models[f"fc0.{name}"])})
        with pytest.raises(ValueError, match=message):
            predict(votes, inputs)
    for change, message in (
        (lambda array: array * np.nan, "must be finite floats"),
        (lambda array: array.astype(complex), "must be finite floats"),
        (lambda array: array.astype("S4"), "must be finite floats"),
        (lambda array: array[:, :1], "9 models of 1 classes answer, certificate.json is of 9 models of 3"),
        (lambda array: array if array.ndim == 3 else array[:, :1], "one bias for each model and class"),
        (lambda array: array if array.ndim == 3 else array[0], "must hold parameters of as many models each"),
        (lambda array: array.astype(np.float64) * 1e308, "numbers are too large to compute with"),
    ):
        others({name: change(array) for name, array in models.items()})
        with pytest.raises(ValueError, match=message):
            predict(votes, inputs)
    (votes / "models.npz").unlink()
    with pytest.raises(ValueError, match=r"holds neither release\.npz nor models\.npz"):
        predict(votes, inputs)


def test_an_app_that_fails_on_a_poisoned_model_fails_in_no_other_replica(
    flower, make_grid, reply_with, record
):
    def fit(message, context=None):
        weight = message.content["arrays"]["weight"].numpy()
        if np.abs(weight).max() > 1e100:
            raise ValueError("input contains a value too large")  # as scikit-learn says
        return reply_with(message, {"weight": weight + 1})

    def poison(message, context=None):
        return reply_with(message, {"weight": np.full(5, 1e200)})

    def trained(first):
        fits = {number: first if number == 100 else fit for number in range(100, 112)}
        nodes = {
            number: lambda message, own=own: [flower.replicas_mod(message, None, own)]
            for number, own in fits.items()
        }
        strategy = flower.RoundsStrategy(
            Bagging(rounds=2, sampling=Poisson(probability=0.2)),
            num_users=12,
            replicas=range(60),
            seed=1,
            connect_timeout=0.0,
        )
        strategy.start(make_grid(nodes), record(weight=np.zeros(5)))
        return strategy

    clean, attacked = trained(fit), trained(poison)
    drew = server.draw_cohorts(clean.plan)[:, 0, 0]
    assert 0 < drew.sum() < 30
    np.testing.assert_array_equal(clean._state.params[~drew], attacked._state.params[~drew])
    assert not np.array_equal(clean._state.params[drew], attacked._state.params[drew])


@pytest.mark.parametrize("place", ["state", "settings"])
def test_an_app_that_remembers_models_carries_none_into_another_replica(
    flower, make_grid, reply_with, record, place
):
    from flwr.app import ConfigRecord, Context, Message, MessageType, RecordDict

    def remembering(message, context):
        """It adds what it was sent last, as an app with momentum or a personal model does."""
        kept = context.state["kept"] if place == "state" else message.content["config"]
        weight = message.content["arrays"]["weight"].numpy()
        last = np.array(kept["last"])
        kept["last"][:] = weight.tolist()
        return reply_with(message, {"weight": weight + last})

    def sent(first):
        config = ConfigRecord({"fedproof-replicas": [4, 7], "last": [0.0] * 3})
        content = RecordDict({"arrays": record(weight=np.stack([first, np.ones(3)])), "config": config})
        context = Context(1, 1, {}, RecordDict({"kept": ConfigRecord({"last": [0.0] * 3})}), {})
        replies = []

        def node(message):
            replies.append(flower.replicas_mod(message, context, remembering))
            return replies

        make_grid({1: node}).push_messages([Message(content, 1, MessageType.TRAIN)])
        return replies[0].content["arrays"]["weight"].numpy()

    clean, poisoned = sent(np.zeros(3)), sent(np.full(3, 1e9))
    assert (clean[0] != poisoned[0]).all()
    np.testing.assert_array_equal(clean[1], poisoned[1])
