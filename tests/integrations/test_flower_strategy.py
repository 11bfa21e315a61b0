"""The strategy over a grid of functions: what is executed is what is described, whatever nodes send."""

import itertools
import json
import logging
import math
import os
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from scipy.stats import norm

from fedproof import certify
from fedproof.accounting import account, ensemble_account
from fedproof.accounting.ledger import load_ledger, load_user_ledger
from fedproof.folder import MAY
from fedproof.integrations import server
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FixedSize,
    OneRound,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.mechanisms.uploads import Rows
from fedproof.statements import Statement
from fedproof.vault import Vault

MECHANISM = UserFedAvg(rounds=3, noise_multiplier=1.5, sampling=Poisson(probability=0.5), clip_norm=0.8)
ALL = replace(MECHANISM, sampling=Everyone())
DIM = 5
NOT_RECORDED = ("models", "record")  # when the power failed before these, nothing was made


files = pytest.importorskip(
    "fedproof.integrations.flower.files",
    reason="flwr is not installed: pip install 'fedproof[flower]'",
    exc_type=ImportError,
)


@pytest.fixture
def make_strategy(flower):
    def make(mechanism=MECHANISM, **changes):
        once = {"num_users": 4, "delta": 0.01, "seed": 3, "min_replies": 1, "connect_timeout": 0.0}
        return flower.RoundsStrategy(mechanism, **once | changes)

    return make


@pytest.fixture
def initial(record):
    return record(fc_weight=np.arange(DIM, dtype=np.float32))


@pytest.fixture
def honest(reply_with):
    """A node that adds a constant to whatever it gets; it runs Flower's ordinary protocol."""

    def make(value):
        return lambda m: [reply_with(m, {k: a.numpy() + value for k, a in m.content["arrays"].items()})]

    return make


@pytest.fixture
def nodes(honest):
    return {100 + user: honest(np.float32(0.1 * (user + 1))) for user in range(4)}


def vector(result):
    return result.arrays["fc.weight"].numpy()


def expected(plan, rounds, value_of):
    """The definition, written out: cohorts, clipping, noise and divisor of one replica."""
    params = np.arange(DIM, dtype=np.float32)
    noise = np.random.PCG64(np.random.SeedSequence(plan.seed, spawn_key=(3, plan.replicas.start)))
    cohorts = server.draw_cohorts(plan)[0]
    for r in range(rounds):
        total = np.zeros(DIM)
        for user in np.flatnonzero(cohorts[r]):
            update = np.full(DIM, value_of(int(user)), dtype=np.float64)
            total += update * min(1.0, plan.mechanism.clip_norm / max(np.linalg.norm(update), 1e-300))
        std = plan.mechanism.noise_multiplier * plan.mechanism.clip_norm
        uniform = (noise.random_raw(DIM).view(np.int64) + 0.5) * 2.0**-64
        total += std * np.copysign(norm.ppf(abs(uniform)), uniform)
        params = (params + total / plan.divisor).astype(np.float32)
    return params


@pytest.mark.parametrize(
    "sampling", [Poisson(probability=0.5), FixedSize(cohort=2, users=4), Everyone()], ids=repr
)
def test_a_training_is_what_the_description_says(make_strategy, make_grid, nodes, initial, sampling):
    strategy = make_strategy(replace(MECHANISM, sampling=sampling))
    result = strategy.start(make_grid(nodes), initial)
    want = expected(strategy.plan, 3, lambda user: 0.1 * (user + 1))
    np.testing.assert_allclose(vector(result), want, atol=1e-6)
    assert strategy.executed == strategy.plan.mechanism


def test_two_runs_are_byte_identical(make_strategy, make_grid, nodes, initial):
    runs = [make_strategy().start(make_grid(nodes), initial) for _ in range(2)]
    assert runs[0].arrays["fc.weight"].data == runs[1].arrays["fc.weight"].data


def test_replicas_in_one_message_are_the_replicas_one_by_one(
    flower, make_strategy, make_grid, nodes, initial
):
    def with_mod(node):
        return lambda m: [flower.replicas_mod(m, None, lambda message, context: node(message)[0])]

    together = make_strategy(replicas=range(2, 7)).start(
        make_grid({node: with_mod(app) for node, app in nodes.items()}), initial
    )
    for row, replica in enumerate(range(2, 7)):
        alone = make_strategy(replicas=range(replica, replica + 1)).start(make_grid(nodes), initial)
        np.testing.assert_array_equal(flower.stacked_arrays(together.arrays)["fc.weight"][row], vector(alone))


def test_epsilon_of_every_round_is_in_the_metrics(make_strategy, make_grid, nodes, initial):
    result = make_strategy().start(make_grid(nodes), initial)
    for done, metrics in result.train_metrics_clientapp.items():
        want = account(replace(MECHANISM, rounds=done), 0.01, ["pld"])["pld"]
        assert metrics["epsilon"] == metrics["ensemble-epsilon"] == want


def test_an_epsilon_that_does_not_hold_is_nowhere(
    make_strategy, make_grid, nodes, initial, tmp_path, caplog, monkeypatch
):
    """Were a strategy to execute what its accounting does not cover, no number would say otherwise."""
    void = Statement.of("clip-norm")
    monkeypatch.setattr(UserFedAvg, "unmet", lambda mechanism, relation: (void,))
    strategy = make_strategy(folder=tmp_path)
    with caplog.at_level(logging.INFO):
        strategy.summary()
    result = strategy.start(make_grid(nodes), initial)
    assert "ε not proved at δ" in caplog.text
    assert void.sentence in caplog.text
    for metrics in result.train_metrics_clientapp.values():
        assert not {"epsilon", "ensemble-epsilon"} & set(metrics)
    note = (tmp_path / "PUBLISH.txt").read_text()
    assert note.startswith("Publish nothing of this that must stay private: the clip norm")
    assert "may be published" not in note


def test_epsilon_of_all_replicas(make_strategy):
    strategy = make_strategy(replicas=range(20))
    assert strategy._cost(3, 20) == ensemble_account(MECHANISM, 0.01, 20)["pld"]


# --- nodes that misbehave ---------------------------------------------------------------------------------


def with_shape(reply_with, array):
    return lambda m: [reply_with(m, {"fc.weight": array})]


@pytest.fixture
def bad_nodes(reply_with, honest, flower):
    from flwr.app import Array, ArrayRecord, Error, Message, RecordDict

    def broken(m):
        raw = Array(dtype="float32", shape=(DIM,), stype="numpy.ndarray", data=b"\x93NUMPY\x01\x00garbage")
        return [Message(RecordDict({"arrays": ArrayRecord({"fc.weight": raw})}), reply_to=m)]

    ones = np.ones(DIM, dtype=np.float32)
    return {
        "nan": (with_shape(reply_with, ones * np.nan), "not-finite"),
        "infinity": (with_shape(reply_with, ones * np.inf), "not-finite"),
        "shape": (with_shape(reply_with, np.ones((DIM, 1), dtype=np.float32)), "malformed"),
        "scalar": (with_shape(reply_with, np.float32(1)), "malformed"),
        "integers": (with_shape(reply_with, np.ones(DIM, dtype=np.int64)), "malformed"),
        "names": (lambda m: [reply_with(m, {"other": ones})], "malformed"),
        "garbage": (broken, "malformed"),
        "empty": (lambda m: [Message(RecordDict(), reply_to=m)], "malformed"),
        "error": (lambda m: [Message(Error(code=1, reason="out of memory"), reply_to=m)], "error"),
        "silent": (lambda m: [], "silent"),
    }


KINDS = ["nan", "infinity", "shape", "scalar", "integers", "names", "garbage", "empty", "error", "silent"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_faulty_node_counts_as_zero_and_is_reported(
    make_strategy, make_grid, nodes, initial, bad_nodes, kind
):
    bad, fault = bad_nodes[kind]
    strategy = make_strategy(ALL)
    result = strategy.start(make_grid(nodes | {102: bad}), initial)
    want = expected(strategy.plan, 3, lambda user: 0.0 if user == 2 else 0.1 * (user + 1))
    np.testing.assert_allclose(vector(result), want, atol=1e-6)
    assert strategy.faults == [(r, 102, fault) for r in (1, 2, 3)]
    assert strategy.metrics[0][f"faults-{fault}"] == 1


def test_a_huge_update_is_clipped_not_lost(make_strategy, make_grid, nodes, initial, reply_with):
    huge = with_shape(reply_with, np.full(DIM, 1e300))
    strategy = make_strategy(ALL)
    result = strategy.start(make_grid(nodes | {102: huge}), initial)
    want = expected(strategy.plan, 3, lambda user: 1e100 if user == 2 else 0.1 * (user + 1))
    np.testing.assert_allclose(vector(result), want, atol=1e-6)


def test_a_second_reply_is_ignored(make_strategy, make_grid, nodes, initial, honest):
    twice = lambda m: honest(0.3)(m) + honest(9.0)(m)  # noqa: E731
    strategy = make_strategy(ALL)
    result = strategy.start(make_grid(nodes | {102: twice}), initial)
    np.testing.assert_allclose(
        vector(result), expected(strategy.plan, 3, lambda user: 0.1 * (user + 1)), atol=1e-6
    )
    assert {fault for _, _, fault in strategy.faults} == {"twice"}


@pytest.mark.parametrize(
    "mechanism",
    [
        MECHANISM,
        replace(MECHANISM, clipping=Quantile()),
        CohortOnce(rounds=1, noise_multiplier=1.0, sampling=Poisson(probability=0.7), clip_norm=0.003),
        Bagging(rounds=1, sampling=Poisson(probability=0.7)),
    ],
    ids=repr,
)
def test_the_order_of_replies_changes_no_bit(make_strategy, make_grid, record, reply_with, mechanism):
    """One node decides it for others: Flower loses the replies that it was pulled with; they come later."""
    from flwr.app import ConfigRecord

    initial, generator = record(weight=np.linspace(-1, 1, 200)), np.random.default_rng(0)
    held = {number: initial["weight"].numpy() + generator.normal(size=200) for number in range(100, 120)}

    def node(message):
        return [reply_with(message, {"weight": held[message.metadata.dst_node_id]})]

    found = []
    for order in (slice(None), slice(None, None, -1)):
        delta = 0.01 if mechanism.noise_multiplier else None
        strategy = make_strategy(mechanism, num_users=20, delta=delta)
        grid = make_grid(dict.fromkeys(held, node))
        messages = list(strategy.configure_train(1, initial, ConfigRecord(), grid))
        strategy.aggregate_train(1, grid.send_and_receive(messages)[order])
        found.append(strategy._state.params)
    np.testing.assert_array_equal(*found)


def test_late_and_uninvited_replies_are_ignored(make_strategy, make_grid, nodes, initial, honest):
    late = []

    def slow(m):
        answer, late[:] = list(late), honest(0.3)(m)
        return answer

    stranger = {}

    def talkative(m):
        stranger.setdefault("reply", honest(0.4)(m)[0])
        forged = honest(5.0)(m)[0]
        forged.metadata.__dict__["_src_node_id"] = 999
        return [honest(0.4)(m)[0], forged]

    strategy = make_strategy(ALL)
    result = strategy.start(make_grid(nodes | {102: slow, 103: talkative}), initial, timeout=0.2)
    np.testing.assert_allclose(
        vector(result), expected(strategy.plan, 3, lambda user: [0.1, 0.2, 0.0, 0.4][user]), atol=1e-6
    )
    assert (2, 102, "late") in strategy.faults
    assert (1, 999, "uninvited") in strategy.faults


def test_where_cohorts_are_drawn_silence_is_noise_alone(make_strategy, make_grid, nodes, initial):
    strategy = make_strategy()
    result = strategy.start(make_grid(dict.fromkeys(nodes, lambda message: [])), initial, timeout=0.1)
    np.testing.assert_allclose(vector(result), expected(strategy.plan, 3, lambda user: 0.0), atol=1e-6)


def test_who_is_away_leaves_the_divisor_alone(make_strategy, make_grid, nodes, initial):
    del nodes[103]
    strategy = make_strategy(replace(MECHANISM, sampling=FixedSize(cohort=4, users=4)))
    result = strategy.start(make_grid(nodes), initial)
    want = expected(strategy.plan, 3, lambda user: [0.1, 0.2, 0.3, 0.0][user])
    np.testing.assert_allclose(vector(result), want, atol=1e-6)


def test_nodes_beyond_the_expected_users_are_drawn_too(make_strategy, make_grid, nodes, initial, honest):
    grid = make_grid(nodes | {200: honest(0.5)})
    strategy = make_strategy(ALL)
    strategy.start(grid, initial)
    assert len(grid.sent[0]) == 5


# --- budget, ledger, resume -------------------------------------------------------------------------------


def test_training_stops_before_the_budget_is_exceeded(make_strategy, make_grid, nodes, initial, tmp_path):
    two = account(replace(MECHANISM, rounds=2), 0.01, ["pld"])["pld"]
    strategy = make_strategy(max_epsilon=two, folder=tmp_path)
    result = strategy.start(make_grid(nodes), initial)
    assert list(result.train_metrics_clientapp) == [1, 2]
    assert strategy.executed.rounds == 2
    assert load_ledger(tmp_path / "ledger.json").epsilon["pld"] == two


def test_somebody_elses_loop_is_stopped_by_flowers_exception(make_strategy, make_grid, nodes, initial):
    from flwr.app import ConfigRecord
    from flwr.serverapp.exception import PrivacyBudgetExhausted

    strategy, grid = make_strategy(max_epsilon=0.01), make_grid(nodes)
    with pytest.raises(PrivacyBudgetExhausted, match=r"round 1 would exceed max_epsilon = 0.01"):
        strategy.configure_train(1, initial, ConfigRecord(), grid)


def test_rounds_are_played_once_and_in_order(make_strategy, make_grid, nodes, initial):
    from flwr.app import ConfigRecord

    strategy, grid = make_strategy(), make_grid(nodes)
    with pytest.raises(ValueError, match="server_round = 2 must be 1"):
        strategy.configure_train(2, initial, ConfigRecord(), grid)
    with pytest.raises(ValueError, match="server_round = 1 has not been configured"):
        strategy.aggregate_train(1, [])
    with pytest.raises(ValueError, match="num_rounds = 4 must be at most"):
        strategy.start(grid, initial, num_rounds=4)


class PowerCutError(Exception):
    pass


def test_a_stopped_training_goes_on_as_if_nothing_had_happened(
    make_strategy, make_grid, nodes, initial, tmp_path
):
    whole = make_strategy().start(make_grid(nodes), initial)
    grid = make_grid(nodes)
    push = grid.push_messages

    def fails_in_round_two(messages):
        if "-2." in messages[0].metadata.group_id:
            raise PowerCutError
        return push(messages)

    grid.push_messages = fails_in_round_two
    with pytest.raises(PowerCutError):
        make_strategy(folder=tmp_path).start(grid, initial)
    assert load_ledger(tmp_path / "ledger.json").queries[0].count == 1
    resumed = make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    assert resumed.arrays["fc.weight"].data == whole.arrays["fc.weight"].data
    assert resumed.train_metrics_clientapp == whole.train_metrics_clientapp
    again = make_grid(nodes)
    make_strategy(folder=tmp_path).start(again, initial)
    assert again.sent == []  # a finished training is not repeated


def test_without_a_seed_nothing_is_repeated_and_finished_rounds_are_kept(
    make_strategy, make_grid, nodes, initial, tmp_path
):
    first, second = (make_strategy(seed=None).start(make_grid(nodes), initial) for _ in range(2))
    assert not np.array_equal(vector(first), vector(second))
    begun = make_strategy(seed=None, folder=tmp_path).start(make_grid(nodes), initial, num_rounds=2)
    resumed = make_strategy(seed=None, folder=tmp_path)
    result = resumed.start(make_grid(nodes), initial)
    assert resumed.executed == MECHANISM
    for done in (1, 2):
        assert result.train_metrics_clientapp[done] == begun.train_metrics_clientapp[done]
    assert not np.array_equal(vector(result), vector(begun))


def test_without_a_seed_a_newcomer_is_drawn_once(make_strategy, make_grid, nodes, initial):
    from flwr.app import ConfigRecord

    strategy = make_strategy(replace(MECHANISM, rounds=1), seed=None, num_users=1, replicas=range(200))
    rows = []
    for _ in range(2):
        strategy.configure_train(1, initial, ConfigRecord(), make_grid(nodes))
        rows.append(strategy._invitation.rows)
    for node in nodes:
        np.testing.assert_array_equal(rows[0][node], rows[1][node])


def test_a_folder_of_another_training_is_refused(make_strategy, make_grid, nodes, initial, tmp_path):
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    with pytest.raises(ValueError, match="made of something else"):
        make_strategy(folder=tmp_path, seed=4).start(make_grid(nodes), initial)
    models = next(tmp_path.glob("models-*.npz"))
    models.write_bytes(models.read_bytes()[:-1])
    with pytest.raises(ValueError, match="is missing or was altered"):
        make_strategy(folder=tmp_path).start(make_grid(nodes), initial)


def cut_in_round_two(patch, moment):
    """Let the power fail in round 2: before a file is written, or before models are renamed or removed."""
    names = {"models": "models-00002.npz", "record": "state.json", "ledger": "ledger.json"}
    owner, name = (Path, "unlink") if moment == "remove" else (os, "replace")
    calls, original = itertools.count(1), getattr(owner, name)

    def cut(path, *to, **options):
        path = Path(path)
        if moment == "rename":
            now = path.name == "models-00002.npz"
        elif moment == "remove":
            now = path.name == "models-00001.npz"
        else:
            name = Path(to[0]).name == names[moment] and path.name != names[moment]
            now = name and (moment == "models" or next(calls) == 2)
        if now:
            raise PowerCutError
        return original(path, *to, **options)

    patch.setattr(owner, name, cut)


@pytest.mark.parametrize("moment", ["models", "record", "ledger", "rename", "remove"])
def test_a_killed_server_plays_a_round_again_only_if_nobody_can_have_seen_it(
    make_strategy, make_grid, nodes, honest, initial, tmp_path, monkeypatch, moment
):
    whole = make_strategy().start(make_grid(nodes), initial, num_rounds=2)
    with monkeypatch.context() as patch:
        cut_in_round_two(patch, moment)
        with pytest.raises(PowerCutError):
            make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    public = (tmp_path / "models-00002.npz").exists()
    assert public == (moment == "remove")
    assert load_ledger(tmp_path / "ledger.json").queries[0].count == 1 + (moment in ("rename", "remove"))
    # The nodes would send something else now: noise that was shown must not be used again.
    grid, made = make_grid({node: honest(np.float32(0.7)) for node in nodes}), moment not in NOT_RECORDED
    result = make_strategy(folder=tmp_path).start(grid, initial, num_rounds=2)
    assert made == (grid.sent == []) == np.array_equal(vector(result), vector(whole))
    assert load_ledger(tmp_path / "ledger.json").queries[0].count == 2
    assert not list((tmp_path / "private").glob("models-*"))
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    assert [path.name for path in tmp_path.glob("models-*")] == ["models-00003.npz"]


@pytest.mark.parametrize("found", ["state", "private", "backup", "no ledger"])
def test_the_last_released_round_is_not_played_again(
    make_strategy, make_grid, nodes, initial, tmp_path, found
):
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial, num_rounds=1)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "ledger.json"]
    backup = {path: path.read_bytes() for path in kept}
    if found == "private":
        shutil.rmtree(tmp_path / "private")
    elif found == "state":
        (tmp_path / "private" / "state.json").unlink()
    else:
        make_strategy(folder=tmp_path).start(make_grid(nodes), initial, num_rounds=2)
        for path, content in backup.items():
            path.write_bytes(content)
    if found == "no ledger":
        (tmp_path / "ledger.json").unlink()
    grid = make_grid(nodes)
    with pytest.raises(ValueError, match="its noise must not be used again") as refused:
        make_strategy(folder=tmp_path).start(grid, initial)
    assert "\n" not in str(refused.value)
    assert grid.sent == []


def test_of_two_loops_in_one_folder_one_releases(make_strategy, make_grid, nodes, honest, initial, tmp_path):
    from flwr.app import ConfigRecord

    grids = [make_grid(nodes), make_grid({node: honest(np.float32(0.7)) for node in nodes})]
    first, second = (make_strategy(ALL, folder=tmp_path) for _ in grids)
    sent = [
        strategy.configure_train(1, initial, ConfigRecord(), grid)
        for strategy, grid in zip((first, second), grids, strict=True)
    ]
    released, _ = first.aggregate_train(1, grids[0].send_and_receive(sent[0]))
    with pytest.raises(ValueError, match="was made meanwhile") as refused:
        second.aggregate_train(1, grids[1].send_and_receive(sent[1]))
    assert "\n" not in str(refused.value)
    # Whoever was refused goes on from what was released, not from what it made.
    message = next(iter(second.configure_train(2, initial, ConfigRecord(), grids[1])))
    shown = message.content["arrays"]["fc.weight"].numpy()
    np.testing.assert_array_equal(shown, released["fc.weight"].numpy())
    assert second.metrics == first.metrics


@pytest.mark.parametrize("folder", ["file", "file/inside"])
def test_a_file_in_the_place_of_the_folder_is_named(make_strategy, tmp_path, folder):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match=r"folder = .*file is a file; choose another"):
        make_strategy(folder=tmp_path / folder)
    assert (tmp_path / "file").read_text() == "mine"


def test_a_local_runs_folder_is_left_alone(flower, make_strategy, tmp_path):
    (tmp_path / "config.toml").write_text("")
    once = CohortOnce(rounds=1, sampling=Poisson(probability=0.9), noise_multiplier=1.0)
    upload = OneRound(upload=Rows(features=2, classes=2), noise_multiplier=1.0)
    for make in (
        lambda: make_strategy(once, seed=None, folder=tmp_path),
        lambda: make_strategy(folder=tmp_path),
        lambda: flower.OneRoundStrategy(upload, num_users=2, delta=0.01, folder=tmp_path),
    ):
        with pytest.raises(ValueError, match=r"holds a local run \(config.toml\)"):
            make()
    assert [path.name for path in tmp_path.iterdir()] == ["config.toml"]


@pytest.mark.parametrize(
    "other", [{"fc_weight": (2, 3)}, {"fc_other": (3, 2)}, {"fc_a": 3, "fc_b": 3}], ids=str
)
def test_numbers_that_would_mean_another_model_are_not_gone_on_with(
    flower, make_strategy, make_grid, record, honest, other, tmp_path
):
    def start(shapes):
        model = {name: np.zeros(shape, np.float32) for name, shape in shapes.items()}
        grid = make_grid({100: honest(np.float32(0.1))})
        return make_strategy(folder=tmp_path).start(grid, record(**model), num_rounds=1)

    start({"fc_weight": (3, 2)})
    start({"fc_weight": (3, 2)})
    with pytest.raises(ValueError, match="made of something else") as refused:
        start(other)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "text", ["[]", "{}", "3", '{"training": 1}', "drop round", "drop users", "list users"]
)
def test_a_record_that_is_none_is_refused_in_one_line(
    make_strategy, make_grid, nodes, initial, text, tmp_path
):
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial, num_rounds=1)
    path = tmp_path / "private" / "state.json"
    known, (how, _, key) = json.loads(path.read_text()), text.partition(" ")
    if how == "drop":
        del known["told"][key]
    elif how == "list":
        known["told"][key] = []
    path.write_text(json.dumps(known) if how in ("drop", "list") else text)
    with pytest.raises(ValueError, match=r"state\.json is not the record of a") as refused:
        make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("lost", ["all", "last"])
def test_released_rounds_are_never_played_again(make_strategy, make_grid, nodes, initial, tmp_path, lost):
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial, num_rounds=1)
    kept = [path for path in tmp_path.rglob("*") if path.is_file() and path.name != "ledger.json"]
    backup = {path: path.read_bytes() for path in kept}
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    (tmp_path / "private" / "state.json").unlink()
    if lost == "last":  # an old backup came back
        for path, content in backup.items():
            path.write_bytes(content)
    grid = make_grid(nodes)
    with pytest.raises(ValueError, match=r"round 3 was made, and is missing or was altered") as e:
        make_strategy(folder=tmp_path).start(grid, initial)
    assert "\n" not in str(e.value)
    assert grid.sent == []


def test_two_servers_do_not_work_in_one_folder(make_strategy, make_grid, nodes, initial, tmp_path):
    with Vault(tmp_path).alone(), pytest.raises(ValueError, match="another process is working in it"):
        make_strategy(folder=tmp_path).start(make_grid(nodes), initial)


def test_a_user_who_comes_back_as_another_node_keeps_its_number(
    make_strategy, make_grid, nodes, initial, tmp_path
):
    whole = make_strategy().start(make_grid(nodes), initial)
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial, num_rounds=1)
    renamed = {900 - node: app for node, app in nodes.items()}
    users = {900 - node: node - 100 for node in nodes}
    resumed = make_strategy(folder=tmp_path, users=users).start(make_grid(renamed), initial)
    assert resumed.arrays["fc.weight"].data == whole.arrays["fc.weight"].data


# --- what is secret ---------------------------------------------------------------------------------------


def everything(message):
    """All that a message carries, as one text."""
    return repr((message.metadata.__dict__, message.content)) + "".join(
        str(array.data) for arrays in message.content.array_records.values() for array in arrays.values()
    )


def test_a_seed_goes_neither_to_nodes_nor_to_files_nor_to_logs(
    flower, make_strategy, make_grid, nodes, initial, tmp_path, caplog
):
    def with_mod(node):
        return lambda m: [flower.replicas_mod(m, None, lambda message, context: node(message)[0])]

    seed = 0xFEDC_BA98_7654_3210_0123_4567_89AB_CDEF
    strategy = make_strategy(seed=seed, folder=tmp_path, replicas=range(4))
    grid = make_grid({node: with_mod(app) for node, app in nodes.items()})
    with caplog.at_level("DEBUG"):
        result = strategy.start(grid, initial)
    with pytest.raises(ValueError, match="made of something else") as refused:
        make_strategy(seed=seed + 1, folder=tmp_path, replicas=range(4)).start(grid, initial)
    files_of = [path.read_bytes().decode("latin-1") for path in tmp_path.rglob("*") if path.is_file()]
    shown = [caplog.text, str(refused.value), repr(strategy.plan), repr(result), *files_of]
    shown += [everything(message) for sent in grid.sent for message in sent]
    for text in shown:
        for word in (str(seed), f"{seed:x}", f"{seed:X}", f"{seed >> 64:x}", f"{seed & (2**64 - 1):x}"):
            assert word not in text


def test_what_epsilon_does_not_cover_is_kept_apart(make_strategy, make_grid, nodes, initial, tmp_path):
    make_strategy(folder=tmp_path).start(make_grid(nodes), initial)
    assert {path.name for path in tmp_path.iterdir()} == {
        "PUBLISH.txt",
        "ledger.json",
        "models-00003.npz",
        "private",
    }
    assert (tmp_path / "private").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "private" / "state.json").stat().st_mode & 0o777 == 0o600
    state = (tmp_path / "private" / "state.json").read_text()
    assert "clipped-share" in state
    assert "clipped-share" not in (tmp_path / "ledger.json").read_text()


def first_line(folder):
    return (folder / "PUBLISH.txt").read_text().splitlines()[0]


def test_nothing_is_publishable_before_a_ledger_counts_all_that_its_users_are_trained_in(
    make_strategy, make_grid, nodes, initial, tmp_path
):
    name, grid = str(tmp_path / "users.json"), make_grid(nodes)
    make_strategy(folder=tmp_path / "one", seed=None).start(grid, initial, num_rounds=2)
    assert first_line(tmp_path / "one").startswith("Publish nothing of this")
    sent = len(grid.sent)
    make_strategy(folder=tmp_path / "one", seed=None, ledger_name=name).start(grid, initial, num_rounds=2)
    assert len(grid.sent) == sent  # to be counted is never too late
    make_strategy(folder=tmp_path / "two", ledger_name=name).start(grid, initial)
    assert MAY in first_line(tmp_path / "one")
    assert "the seed" in (tmp_path / "two" / "PUBLISH.txt").read_text()
    together = replace(MECHANISM, rounds=2 + MECHANISM.rounds)
    epsilon = load_user_ledger(name).total(0.01).epsilon
    assert epsilon == account(together, 0.01, ["pld"])["pld"]
    assert f"ε = {math.ceil(epsilon * 1000) / 1000:.3f}" in (tmp_path / "two" / "PUBLISH.txt").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"folder": None}, "must be left out of a training that is kept in no folder"),
        ({"ledger_name": "a b"}, "ledger = 'a b' must be a name of letters"),
    ],
)
def test_a_ledger_that_could_not_count_is_refused(make_strategy, tmp_path, changes, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(**{"folder": tmp_path, "ledger_name": "users"} | changes)


def test_a_strategy_says_what_its_certificate_takes_for_granted(make_strategy):
    for seed, secret in ((0, "seed-known"), (None, "no-seed")):
        found = make_strategy(seed=seed).assumptions
        assert [one.code for one in found[:3]] == [secret, "apart", "begun"]
    scores = np.tile([[[0.9, 0.1]]], (100, 1, 1))
    stated = make_strategy().assumptions
    certificate = certify(scores, [0], mechanism=MECHANISM, assumptions=stated)
    assert certificate.settings.stated_assumptions == stated


def test_replicas_in_one_message_make_a_certificate_heuristic(make_strategy):
    assert make_strategy(replicas=range(7, 8)).unmet() == ()
    (together,) = make_strategy(replicas=range(3)).unmet()
    assert together.code == "attended-together"
    assert "one replica after the other" in together.fix
    scores = np.tile([[[0.9, 0.1]]], (100, 1, 1))
    certificate = certify(scores, [0], mechanism=MECHANISM, unmet=[together])
    assert not certificate.sound
    assert certificate.unmet == (together,)


def test_without_noise_a_bound_that_rises_with_every_score_needs_no_independence(make_strategy):
    bagging = Bagging(rounds=1, sampling=FixedSize(cohort=2, users=10))
    strategy = make_strategy(bagging, delta=None, num_users=10, replicas=range(100))
    assert strategy.unmet("levels") == strategy.unmet("hoeffding") == ()
    assert [one.code for one in strategy.unmet()] == ["attended-unnoised"]


# --- nodes that come back ---------------------------------------------------------------------------------


def failing(node, times):
    """A node whose app fails so many times, as one that is killed and started again."""
    from flwr.app import Error, Message

    left = iter(range(times))

    def answer(message):
        if next(left, None) is None:
            return node(message)
        return [Message(Error(code=0, reason="killed"), reply_to=message)]

    return answer


@pytest.mark.parametrize(("times", "fault"), [(2, 0), (9, 1)])
def test_a_node_that_fails_is_asked_again_and_not_for_ever(
    make_strategy, make_grid, nodes, initial, times, fault
):
    mechanism = replace(MECHANISM, sampling=Everyone())
    lost = nodes | {100: failing(nodes[100], times)}
    strategy, want = (make_strategy(mechanism, connect_timeout=wait) for wait in (60.0, 0.0))
    grid = make_grid(lost)
    found = strategy.start(grid, initial, num_rounds=1).arrays
    assert strategy.metrics[0]["faults"] == fault
    assert sum(len(sent) for sent in grid.sent) == 4 + min(times, 3)
    away = nodes if not fault else {node: answer for node, answer in nodes.items() if node != 100}
    alone = want.start(make_grid(away), initial, num_rounds=1).arrays
    np.testing.assert_array_equal(found["fc.weight"].numpy(), alone["fc.weight"].numpy())


def test_a_node_that_never_comes_back_is_given_up(make_strategy, make_grid, nodes, initial, monkeypatch):
    grid = make_grid(nodes | {100: failing(nodes[100], 1)})
    there = grid.get_node_ids()
    looks = iter([there, there])  # and then it is gone
    monkeypatch.setattr(grid, "get_node_ids", lambda: next(looks, [node for node in there if node != 100]))
    strategy = make_strategy(replace(MECHANISM, sampling=Everyone()), connect_timeout=0.3)
    strategy.start(grid, initial, num_rounds=1)
    assert strategy.metrics[0]["faults-error"] == 1


# --- models and nodes -------------------------------------------------------------------------------------


def test_counters_are_kept_and_never_taken_from_a_node(make_strategy, make_grid, record, reply_with):
    initial = record(fc_weight=np.zeros(2, dtype=np.float32), norm_count=np.array(7))
    node = lambda m: [reply_with(m, {"fc.weight": np.ones(2, np.float32), "norm.count": 99})]  # noqa: E731
    result = make_strategy(ALL, num_users=1).start(make_grid({1: node}), initial)
    assert result.arrays["norm.count"].numpy() == 7
    assert list(result.arrays) == ["fc.weight", "norm.count"]


def test_layers_are_clipped_by_themselves(make_strategy, make_grid, record, reply_with):
    sizes = {"a.weight": (2, 3), "a.bias": (2,), "b.weight": (4,)}
    initial = record(**{k.replace(".", "_"): np.zeros(s, np.float32) for k, s in sizes.items()})
    mechanism = replace(ALL, noise_multiplier=1e-6, clipping=PerLayer(num_layers=2), rounds=1)
    node = lambda m: [reply_with(m, {k: np.full(s, 9.0) for k, s in sizes.items()})]  # noqa: E731
    result = make_strategy(mechanism, num_users=1).start(make_grid({1: node}), initial)
    flat = {k: a.numpy().reshape(-1) for k, a in result.arrays.items()}
    first = np.concatenate([flat["a.weight"], flat["a.bias"]])
    assert np.linalg.norm(first) == pytest.approx(0.8, rel=1e-4)
    assert np.linalg.norm(flat["b.weight"]) == pytest.approx(0.8, rel=1e-4)
    with pytest.raises(ValueError, match="num_layers = 3 must be the model's number of layers = 2"):
        make_strategy(replace(mechanism, clipping=PerLayer(num_layers=3))).start(make_grid({}), initial)


def test_numbers_of_users_follow_their_partition(flower, make_strategy, make_grid, nodes, initial):
    from flwr.app import Context, MessageType, RecordDict

    partitions = {100: 3, 101: 2, 102: 1, 103: 0}

    def asked(node, app):
        def answer(m):
            if m.metadata.message_type != MessageType.QUERY:
                return app(m)
            context = Context(1, node, {"partition-id": partitions[node]}, RecordDict(), {})
            return [flower.answer_partition(m, context)]

        return answer

    grid = make_grid({node: asked(node, app) for node, app in nodes.items()})
    users = flower.ask_partitions(grid)
    assert users == partitions
    strategy = make_strategy(users=users)
    want = expected(strategy.plan, 3, lambda user: 0.1 * (4 - user))
    np.testing.assert_allclose(vector(strategy.start(grid, initial)), want, atol=1e-6)
    partitions[101] = 3  # claims what another has: neither is believed, and both get numbers of their own
    assert flower.ask_partitions(grid) == {102: 1, 103: 0}
    strategy = make_strategy(users={102: 1, 103: 0})
    strategy.start(grid, initial)
    assert sorted(strategy._users.values()) == [0, 1, 2, 3]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"delta": 0.0}, "delta = 0.0 must be in"),
        ({"max_epsilon": 0.0}, "max_epsilon = 0.0 must be a positive number"),
        ({"num_users": 0}, "num_users = 0 must be"),
        ({"connect_timeout": -1.0}, "connect_timeout = -1.0 must be"),
    ],
)
def test_bad_arguments(make_strategy, change, message):
    with pytest.raises(ValueError, match=message):
        make_strategy(**change)


def test_bad_initial_models(make_strategy, make_grid, record):
    with pytest.raises(ValueError, match="nothing to train"):
        make_strategy().start(make_grid({}), record(count=np.array(1)))
    with pytest.raises(ValueError, match="NaN or infinity"):
        make_strategy().start(make_grid({}), record(fc_weight=np.array([np.nan], dtype=np.float32)))
