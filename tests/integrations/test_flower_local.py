"""Noise of nodes' own over Flower: against the local engine, hostile nodes, and servers that are killed."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import chi2

import fedproof as fp
from fedproof import exact
from fedproof.accounting.epsilon import sum_epsilon
from fedproof.accounting.ledger import load_ledger
from fedproof.data import load
from fedproof.ensemble import Task, one_round
from fedproof.integrations import site as own
from fedproof.mechanisms import Local, LocalTraining, OneRound
from fedproof.mechanisms.uploads import Anchors, Ball, Rows
from fedproof.models.networks import linear
from fedproof.release import load_release
from fedproof.report.certificate_page import write_certificate_report
from fedproof.seeds import Purpose, SeededGenerator, private_numbers
from fedproof.vault import Vault

files = pytest.importorskip(
    "fedproof.integrations.flower.files",
    reason="flwr is not installed: pip install 'fedproof[flower]'",
    exc_type=ImportError,
)

FALSE_ALARM = 1e-6
USERS, SEED, ANCHORS, DELTA = 9, 5, 16, 0.01
HEAD = {"features": 64, "classes": 3}
UPLOADS = [Rows(**HEAD), Ball(**HEAD), Anchors(anchors=ANCHORS, classes=3)]
ROWS = UPLOADS[0]
by_kind = pytest.mark.parametrize("upload", UPLOADS, ids=lambda upload: upload.kind)


def local(upload=ROWS, noise=0.2, honest=5):
    return Local(upload=upload, noise_multiplier=noise, honest=honest)


@pytest.fixture(scope="module")
def federation():
    found = load("digits", classes=[0, 1, 2], users=USERS)
    public = np.random.default_rng(0).permutation(found.test_features)[:ANCHORS]
    return replace(found, public_features=public.astype(np.float32))


@pytest.fixture
def task_of(federation):
    training = LocalTraining(solver="ridge", penalty=1.0)
    return lambda mechanism: Task(
        federation=federation, model=linear((64,), 3), mechanism=mechanism, local=training, seed=SEED
    )


@pytest.fixture
def make(flower, federation):
    def strategy(mechanism=None, **changes):
        mechanism = mechanism or local()
        public = federation.public_features if mechanism.upload.bumps else None
        arguments = {"num_users": USERS, "delta": DELTA, "anchors": public, "connect_timeout": 0.0}
        return flower.OneRoundStrategy(mechanism, **arguments | changes)

    return strategy


@pytest.fixture
def nodes(flower, task_of):
    """Honest nodes; with a `seed` their noise is that of the local engine's users."""

    def make_nodes(mechanism=None, seed=SEED):
        mechanism = mechanism or local()
        plain = OneRound(upload=mechanism.upload, noise_multiplier=0.0)
        vectors = np.concatenate(list(one_round.uploads_of(task_of(plain))))

        def node(user, vector):
            def answer(message):
                numbers = private_numbers(SEED, Purpose.NOISE, 0, user, secure=seed is None)
                return [flower.upload_reply(message, vector, local=mechanism, numbers=numbers)]

            return answer

        return {100 + user: node(user, vector) for user, vector in enumerate(vectors)}

    return make_nodes


@pytest.fixture
def plain(flower):
    """`plain(array)`: a node that sends these numbers without noise, whatever it is told."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Message, RecordDict

    def node(sent):
        if sent.ndim == 1:
            return lambda message: [
                Message(RecordDict({"a": ConfigRecord({"labels": sent.tobytes()})}), reply_to=message)
            ]
        held = ArrayRecord({"upload": Array(sent)})
        return lambda message: [Message(RecordDict({"a": held}), reply_to=message)]

    return node


# --- what is released ---------------------------------------------------------------------------------------


@by_kind
def test_a_release_is_that_of_the_local_engine_bit_for_bit_with_the_same_noise(
    make, make_grid, nodes, task_of, federation, upload, tmp_path
):
    mechanism = local(upload)
    task = task_of(mechanism)
    want = one_round.release(task)
    strategy, grid = make(mechanism, folder=tmp_path), make_grid(nodes(mechanism))
    strategy.start(grid)
    np.testing.assert_array_equal(strategy.release.total, want.total)
    np.testing.assert_array_equal(load_release(tmp_path / "release.npz").total, want.total)
    assert [len(sent) for sent in grid.sent] == [USERS]
    certificate = strategy.certify(strategy.scores(federation.test_features), federation.test_labels)
    assert certificate.certified_size == fp.train(task).certify().certified_size
    assert certificate.sound
    assert certificate.mechanism == mechanism
    text = (tmp_path / "certificate.json").read_text()
    assert not fp.verify(text, tmp_path / "scores.npy", tmp_path / "labels.npy")
    said = "It is towards the server, which sees what each user sends, and has asked for it"
    assert f"{said} once." in write_certificate_report(tmp_path).read_text()
    ledger, metrics = load_ledger(tmp_path / "ledger.json"), strategy.metrics[0]
    assert ledger == fp.Ledger.of(mechanism, DELTA).spend(1)
    assert metrics["epsilon"] == ledger.epsilon["pld"] == fp.account(mechanism, DELTA)["pld"]
    assert metrics["epsilon-of-sum"] == sum_epsilon(mechanism, DELTA)["join"]
    assert metrics["upload-bytes"] == USERS * mechanism.upload_bytes(0, 0)


def test_noise_of_nodes_is_their_own_and_has_the_stated_scale(flower, make, make_grid, plain):
    mechanism, released = local(noise=0.7), []
    zeros = np.zeros(ROWS.shape)
    for _ in range(2):
        strategy = make(mechanism)
        node = lambda message: [flower.upload_reply(message, zeros, local=mechanism)]  # noqa: E731
        strategy.start(make_grid(dict.fromkeys(range(100, 100 + USERS), node)))
        released.append(strategy.release.total * mechanism.grid.step * mechanism.reach)
    assert (released[0] != released[1]).all()
    std = mechanism.noise_multiplier * ROWS.norm * np.sqrt(USERS)
    statistic, numbers = float(np.square(np.array(released) / std).sum()), 2 * zeros.size
    low, high = chi2.interval(1 - FALSE_ALARM, df=numbers)
    assert low < statistic < high
    assert statistic / 1.5**2 < low  # a third of it left out, or the server's added on top, would be caught


def test_nothing_is_sent_to_a_server_that_counts_on_other_noise(flower, make, make_grid):
    head, refusals = np.ones(ROWS.shape), []

    def node(**options):
        def answer(message):
            with pytest.raises(ValueError, match="is what the server counts on") as refused:
                flower.upload_reply(message, head, **options)
            refusals.append(str(refused.value))
            return []

        return answer

    for mechanism, nodes in (
        (local(noise=0.2), {100: node(), 101: node(local=local(noise=0.3))}),
        (OneRound(upload=ROWS, noise_multiplier=1.0), {102: node(local=local())}),
    ):
        with pytest.raises(flower.TooFewRepliesError, match="nothing was released"):
            make(mechanism, min_replies=1).start(make_grid(nodes))
    assert [text.split(" is what")[0] for text in refusals] == [
        "noise-multiplier = 0.2",
        "noise-multiplier = 0.2",
        "noise-multiplier = None",
    ]
    assert not any("\n" in text for text in refusals)


# --- hostile nodes ------------------------------------------------------------------------------------------


@by_kind
def test_one_node_moves_a_release_by_one_vector_of_the_servers_set(make, make_grid, nodes, plain, upload):
    mechanism = local(upload)
    before, after = make(mechanism), make(mechanism)
    before.start(make_grid(nodes(mechanism)))
    loudest = np.zeros(ANCHORS, np.uint8) if upload.labels else np.full(upload.shape, 1e300)
    after.start(make_grid(nodes(mechanism) | {104: lambda message: 3 * plain(loudest)(message)}))
    moved = (after.release.total - before.release.total) * after.release.mechanism.grid.step
    assert 0 < np.linalg.norm(moved) <= upload.distance
    assert {fault for _, _, fault in after.faults} == {"twice"}


@pytest.mark.parametrize("fault", ["not-finite", "malformed", "error", "silent"])
def test_a_node_without_an_upload_is_absent_and_not_asked_again(make, make_grid, nodes, plain, fault):
    from flwr.app import Error, Message

    bad = {
        "not-finite": plain(np.full(ROWS.shape, np.nan)),
        "malformed": plain(np.zeros((3, 64))),
        "error": lambda message: [Message(Error(code=1, reason="out of memory"), reply_to=message)],
        "silent": lambda message: [],
    }[fault]
    honest = nodes()
    without, strategy = make(), make(local(honest=9), connect_timeout=5.0)
    without.start(make_grid({node: app for node, app in honest.items() if node != 104}))
    grid = make_grid(honest | {104: bad})
    strategy.start(grid)
    np.testing.assert_array_equal(strategy.release.total, without.release.total)
    assert strategy.faults == [(1, 104, fault)]
    # It may have sent: another question would be answered with other noise, and cost its ε once more.
    assert len([message for sent in grid.sent for message in sent]) == USERS
    assert strategy.executed == local(honest=8)  # of who was not heard there is no noise in the sum
    assert strategy.metrics[0]["epsilon-of-sum"] == sum_epsilon(local(honest=8), DELTA)["join"]


def test_who_is_not_heard_may_have_been_honest(make, make_grid, nodes, plain):
    """Poisoned nodes all reply, without noise; of the five honest ones two are silent."""
    strategy, honest = make(local(honest=5)), nodes()
    poisoned = dict.fromkeys(range(105, 109), plain(np.zeros(ROWS.shape)))
    silent = dict.fromkeys((100, 101), lambda message: [])
    strategy.start(make_grid(honest | poisoned | silent))
    assert strategy.metrics[0]["replied"] == 7
    assert strategy.executed == local(honest=3)
    assert strategy.metrics[0]["epsilon-of-sum"] == sum_epsilon(local(honest=3), DELTA)["join"]
    alone = make(local(honest=5))
    alone.start(make_grid(poisoned | {100: honest[100]}))
    assert alone.executed == local(honest=1)  # its own noise is in what it sent


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"seed": 3}, "seed must be left out: each user draws its own noise"),
        ({"mechanism": local(honest=10)}, "honest = 10 must be at most num_users = 9"),
        ({"delta": None}, "delta = None must be a number"),
    ],
)
def test_bad_arguments(make, changes, message):
    with pytest.raises(ValueError, match=message):
        make(**changes)


# --- a server that is killed --------------------------------------------------------------------------------


class PowerCutError(Exception):
    pass


def cut(*arguments, **options):
    raise PowerCutError


def test_every_question_is_counted_before_it_is_asked(make, make_grid, nodes, tmp_path):
    from flwr.serverapp.exception import PrivacyBudgetExhausted

    grid, counted = make_grid(nodes()), []

    def push(messages):
        counted.append(load_ledger(tmp_path / "ledger.json").replicas)
        cut()

    grid.push_messages = push
    for _ in range(2):
        with pytest.raises(PowerCutError):
            make(folder=tmp_path).start(grid)
    assert counted == [1, 2]
    two = fp.Ledger.of(local(), DELTA).spend(2)
    with pytest.raises(PrivacyBudgetExhausted, match="would exceed max_epsilon"):
        make(folder=tmp_path, max_epsilon=two.epsilon["pld"]).start(grid)
    assert load_ledger(tmp_path / "ledger.json") == two
    with pytest.raises(ValueError, match="counts another mechanism or δ"):
        make(local(noise=0.3), folder=tmp_path).start(grid)
    strategy = make(folder=tmp_path)
    strategy.start(make_grid(nodes()))
    assert load_ledger(tmp_path / "ledger.json") == two.spend(1)
    assert strategy.metrics[0]["epsilon"] == two.spend(1).epsilon["pld"]
    strategy.certify(np.array([[[1.0, 0.0, 0.0]]]))
    assert "and has asked for it 3 times." in write_certificate_report(tmp_path).read_text()


def test_without_a_folder_every_question_costs_as_well(make, make_grid, nodes):
    from flwr.app import ArrayRecord, ConfigRecord
    from flwr.serverapp.exception import PrivacyBudgetExhausted

    one = fp.Ledger.of(local(), DELTA).spend(1)
    strategy, grid = make(max_epsilon=one.epsilon["pld"]), make_grid(nodes())
    strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    with pytest.raises(PrivacyBudgetExhausted, match="would exceed max_epsilon"):
        strategy.configure_train(1, ArrayRecord(), ConfigRecord(), grid)


@pytest.mark.parametrize("moment", ["save_release", "keep", "publish"])
def test_a_killed_server_releases_once_and_counts_whom_it_asked(
    make, make_grid, nodes, tmp_path, monkeypatch, moment
):
    make(folder=tmp_path)._begin()
    with monkeypatch.context() as patch:
        strategy = make(folder=tmp_path)
        strategy._begin()
        patch.setattr(Vault if moment == "keep" else files, moment, cut)
        with pytest.raises(PowerCutError):
            strategy.start(make_grid(nodes(seed=None)))
    made = moment == "publish"
    first = load_release(tmp_path / "private" / "release.npz").total if made else None
    assert not (tmp_path / "release.npz").exists()
    grid, again = make_grid(nodes(seed=None)), make(folder=tmp_path)
    again.start(grid)
    assert load_ledger(tmp_path / "ledger.json").replicas == (1 if made else 2)
    assert made == (grid.sent == [])
    if made:
        np.testing.assert_array_equal(again.release.total, first)
    make(folder=tmp_path).start(make_grid({}))  # and there it stays
    assert load_ledger(tmp_path / "ledger.json").replicas == (1 if made else 2)
    np.testing.assert_array_equal(load_release(tmp_path / "release.npz").total, again.release.total)
    (tmp_path / "private" / "state.json").unlink()
    with pytest.raises(ValueError, match="its noise must not be used again"):
        make(folder=tmp_path).start(grid)


def test_of_two_loops_in_one_folder_one_releases_and_both_are_counted(make, make_grid, nodes, tmp_path):
    from flwr.app import ArrayRecord, ConfigRecord

    grid, loops = make_grid(nodes(seed=None)), [make(folder=tmp_path) for _ in range(2)]
    sent = [loop.configure_train(1, ArrayRecord(), ConfigRecord(), grid) for loop in loops]
    loops[0].aggregate_train(1, grid.send_and_receive(sent[0]))
    with pytest.raises(ValueError, match="was made meanwhile"):
        loops[1].aggregate_train(1, grid.send_and_receive(sent[1]))
    assert load_ledger(tmp_path / "ledger.json").replicas == 2
    with pytest.raises(ValueError, match="was made meanwhile"):
        loops[1].configure_train(1, ArrayRecord(), ConfigRecord(), grid)
    assert load_ledger(tmp_path / "ledger.json").replicas == 2


# --- a site's own noise -------------------------------------------------------------------------------------


def test_sites_that_noise_and_count_by_themselves_take_part(
    flower, make, make_grid, record, task_of, tmp_path, monkeypatch
):
    from flwr.app import Array, ArrayRecord, Context, Message, RecordDict

    mechanism = local(Ball(**HEAD), noise=0.5)
    plain = OneRound(upload=mechanism.upload, noise_multiplier=0.0)
    heads = np.concatenate(list(one_round.uploads_of(task_of(plain))))
    unit = 1 / mechanism.reach  # what the server takes for one

    def site(user):
        folder = tmp_path / f"site-{user}"
        folder.mkdir()
        path = folder / "site.toml"
        path.write_text(
            f'ledger = "ledger.json"\nclip_norm = {unit}\nnoise_multiplier = {mechanism.noise_multiplier}\n'
            "delta = 0.01\nmax_epsilon = 60.0\n"
        )
        own.begin(own.load_site(path))
        return path

    def node(path, head):
        app = flower.SiteApp()

        @app.train()
        def answer(message, context):
            scaled = unit * mechanism.upload.inside(head[None])[0]
            return Message(RecordDict({"a": ArrayRecord({"upload": Array(scaled)})}), reply_to=message)

        context = Context(1, 7, {"site": str(path)}, RecordDict(), {})
        return lambda message: [app(message, context)]

    drawn = iter([SeededGenerator(np.random.SeedSequence(user)) for user in range(USERS)])
    monkeypatch.setattr(own, "SecureGenerator", lambda: next(drawn))
    again = [SeededGenerator(np.random.SeedSequence(user)) for user in range(USERS)]
    normal = np.array([exact.drawn(each, heads[0].size, 2.0**24) for each in again]) * 2.0**-24
    paths = [site(user) for user in range(USERS)]
    strategy = make(mechanism, folder=tmp_path / "run")
    grid = make_grid({100 + user: node(path, heads[user]) for user, path in enumerate(paths)})
    strategy.start(grid, record(upload=np.zeros(mechanism.upload.shape)))
    assert strategy.metrics[0]["replied"] == USERS
    assert not strategy.faults
    heard = mechanism.upload.inside(heads).sum(axis=0)
    heard += mechanism.noise_multiplier * normal.sum(axis=0).reshape(heard.shape)
    found = strategy.release.total * mechanism.grid.step * mechanism.reach
    np.testing.assert_allclose(found, heard, atol=1e-4)
    for path in paths:
        assert sum(query.count for query in own.spent(own.load_site(path)).queries) == 1
