"""Who is silent, and who was drawn: too few release nothing, and a secret draw is shown to nobody."""

import json
from dataclasses import replace

import numpy as np
import pytest

import fedproof as fp
from fedproof.accounting.ledger import load_ledger
from fedproof.integrations import server
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FixedSize,
    Local,
    NoisyPartition,
    OneRound,
    Partition,
    Poisson,
    UserFedAvg,
)
from fedproof.mechanisms.uploads import Rows
from fedproof.report.certificate_page import write_certificate_report
from fedproof.statements import sentences

pytest.importorskip("flwr", reason="flwr is not installed: pip install 'fedproof[flower]'")

USERS, DELTA = 100, 0.01
ROWS = Rows(features=2, classes=2)
ONCE = {
    "one-round": OneRound(upload=ROWS, noise_multiplier=1.0),
    "without noise": OneRound(upload=ROWS, noise_multiplier=0.0),
    "local": Local(upload=ROWS, noise_multiplier=1.0, honest=50),
}
POISSON = Poisson(probability=0.3)
ASKED = {
    "everyone": UserFedAvg(rounds=3, noise_multiplier=1.0, sampling=Everyone()),
    "one vote each": Partition(pooled=True),
    "groups": Partition(groups=5, rounds=2),
    "noisy groups": NoisyPartition(groups=5, rounds=2, noise_multiplier=1.0, population=USERS),
}
DRAWN = {
    "poisson": UserFedAvg(rounds=3, noise_multiplier=1.0, sampling=POISSON),
    "fixed": UserFedAvg(rounds=3, noise_multiplier=1.0, sampling=FixedSize(cohort=30, users=USERS)),
    "cohort-once": CohortOnce(rounds=2, noise_multiplier=1.0, sampling=POISSON, population=USERS),
}
BAGGING = Bagging(rounds=2, sampling=POISSON)


@pytest.fixture
def make(flower):
    def strategy(mechanism, **changes):
        told = {"num_users": USERS, "connect_timeout": 0.0}
        if mechanism.noise_multiplier:
            told["delta"] = DELTA
        if isinstance(mechanism, OneRound | Local):
            return flower.OneRoundStrategy(mechanism, **told | changes)
        if not mechanism.once or mechanism.apart:
            return flower.RoundsStrategy(mechanism, **told | changes)
        users = {100 + user: user for user in range(USERS)}
        return flower.RoundsStrategy(mechanism, users=users, **told | changes)

    return strategy


@pytest.fixture
def start(record):
    """`start(strategy, grid)`: the model is zero, and nobody is waited for."""
    return lambda strategy, grid: strategy.start(grid, record(weight=np.zeros(3)), timeout=0.2)


@pytest.fixture
def honest(flower, reply_with):
    """A node of any strategy, with a number of its own."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    def node(message):
        number = message.metadata.dst_node_id - 99
        if "upload" in message.content["config"]:
            sent = ArrayRecord({"upload": Array(np.full((2, 2), 0.1) * [number, 1 - number])})
            return [Message(RecordDict({"upload": sent}), reply_to=message)]
        return [reply_with(message, {"weight": message.content["arrays"]["weight"].numpy() + 0.1 * number})]

    return node


def silent(message):
    return []


@pytest.fixture
def failing(flower):
    from flwr.app import Error, Message

    reason = "Traceback:\n  File\x1b[31m app.py\u202e\nValueError: " + "no data " * 100
    return lambda message: [Message(Error(code=2, reason=reason), reply_to=message)]


def nodes_of(**numbers):
    """Nodes that do this and that, so many of each."""
    acts = [act for act, number in numbers.values() for _ in range(number)]
    return {100 + place: act for place, act in enumerate(acts)}


# --- too few ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [*ONCE, *ASKED])
def test_a_federation_of_which_nobody_replies_releases_and_counts_nothing(
    make, start, make_grid, flower, tmp_path, name
):
    mechanism = (ONCE | ASKED)[name]
    strategy = make(mechanism, folder=tmp_path)
    with pytest.raises(flower.TooFewRepliesError, match=r"0 of 100 users have replied, min_replies = 50"):
        start(strategy, make_grid(dict.fromkeys(range(100, 100 + USERS), silent)))
    assert not list(tmp_path.glob("*.npz"))
    assert not (tmp_path / "private" / "state.json").exists()
    ledger = tmp_path / "ledger.json"
    if name == "local":  # who was asked may have sent its noised upload: the server has seen it
        assert load_ledger(ledger).replicas == 1
    else:
        assert not ledger.exists()
    with pytest.raises(ValueError, match=r"nothing has been released|no round has been played"):
        _ = strategy.executed


@pytest.mark.parametrize("name", [*ONCE, *ASKED, *DRAWN, "bagging"])
def test_nobody_is_asked_where_too_few_are_connected(make, start, make_grid, flower, honest, tmp_path, name):
    strategy = make((ONCE | ASKED | DRAWN | {"bagging": BAGGING})[name], folder=tmp_path)
    grid = make_grid(nodes_of(honest=(honest, 49)))
    with pytest.raises(flower.TooFewRepliesError, match="49 of 100 users are connected") as refused:
        start(strategy, grid)
    assert "\n" not in str(refused.value)
    assert not any(grid.sent)
    assert not (tmp_path / "ledger.json").exists()
    assert not list(tmp_path.glob("*.npz"))


@pytest.mark.parametrize("seed", [7, None])
@pytest.mark.parametrize("kept", ["the strategy", "the folder"])
def test_a_release_that_too_few_replied_to_is_tried_again(
    make, start, make_grid, flower, honest, tmp_path, kept, seed
):
    mechanism = ONCE["one-round"]
    whole = make(mechanism, seed=7)
    start(whole, make_grid(nodes_of(honest=(honest, USERS))))
    strategy = make(mechanism, seed=seed, folder=tmp_path)
    with pytest.raises(flower.TooFewRepliesError, match="30 of 100 users have replied"):
        start(strategy, make_grid(nodes_of(honest=(honest, 30), silent=(silent, 70))))
    again = strategy if kept == "the strategy" else make(mechanism, seed=seed, folder=tmp_path)
    grid = make_grid(nodes_of(honest=(honest, USERS)))
    start(again, grid)
    asked = {message.metadata.dst_node_id for message in grid.sent[0]}
    assert asked == set(range(130 if kept == "the strategy" else 100, 100 + USERS))
    if seed is not None:  # everybody is counted once, with the noise that one attempt would have had
        np.testing.assert_array_equal(again.release.total, whole.release.total)
    assert load_ledger(tmp_path / "ledger.json").replicas == 1
    assert (again.metrics[0]["messages"], again.metrics[0]["replied"]) == (USERS, USERS)


def test_who_adds_noise_of_its_own_is_not_asked_again_by_the_same_server(
    make, start, make_grid, flower, honest, tmp_path
):
    strategy = make(ONCE["local"], folder=tmp_path)
    with pytest.raises(flower.TooFewRepliesError):
        start(strategy, make_grid(nodes_of(honest=(honest, 30), silent=(silent, 70))))
    grid = make_grid(nodes_of(honest=(honest, USERS)))
    start(strategy, grid)
    assert len(grid.sent[0]) == 70
    assert load_ledger(tmp_path / "ledger.json").replicas == 2  # for each of the seventy


@pytest.mark.parametrize("name", ASKED)
@pytest.mark.parametrize("kept", ["the strategy", "the folder"])
def test_a_round_that_too_few_replied_to_is_played_again_with_the_same_noise(
    make, start, make_grid, flower, honest, tmp_path, name, kept
):
    mechanism = ASKED[name]
    last = mechanism.rounds
    folder = {"folder": tmp_path} if kept == "the folder" else {}
    whole, strategy = make(mechanism, seed=7), make(mechanism, seed=7, **folder)
    full = nodes_of(honest=(honest, USERS))
    want = start(whole, make_grid(full)).arrays["weight"].numpy()

    def tires(message):
        return honest(message) if int(message.content["config"]["server-round"]) < last else []

    with pytest.raises(flower.TooFewRepliesError, match="40 of 100 users have replied"):
        start(strategy, make_grid(nodes_of(honest=(honest, 40), tires=(tires, 60))))
    assert strategy.rounds_done == last - 1
    if folder and mechanism.noise_multiplier and last > 1:  # what nodes were sent had been counted
        assert {query.count for query in load_ledger(tmp_path / "ledger.json").queries} == {last - 1}
    again, grid = make(mechanism, seed=7, **folder) if folder else strategy, make_grid(full)
    np.testing.assert_array_equal(start(again, grid).arrays["weight"].numpy(), want)
    assert len(grid.sent) == 1


def test_a_strategy_without_a_folder_goes_on_and_does_not_begin_again(make, start, make_grid, record):
    """Noise of a seed would be used twice: for the rounds that nodes have seen, and for others."""
    strategy = make(replace(DRAWN["poisson"], rounds=1), seed=7)
    full = dict.fromkeys(range(100, 160), silent)
    first = start(strategy, make_grid(full)).arrays["weight"].numpy()
    grid = make_grid(full)
    np.testing.assert_array_equal(start(strategy, grid).arrays["weight"].numpy(), first)
    assert not grid.sent
    with pytest.raises(ValueError, match="what the training of this strategy was begun with"):
        strategy.start(grid, record(weight=np.ones(3)))


@pytest.mark.parametrize("name", [*ONCE, *ASKED, "bagging"])
@pytest.mark.parametrize("patience", [0.0, 60.0])
def test_if_all_fail_it_ends_at_once_and_says_why(
    make, start, make_grid, flower, failing, caplog, name, patience
):
    mechanism = (ONCE | ASKED | {"bagging": BAGGING})[name]
    strategy = make(mechanism, min_replies=1, connect_timeout=patience)
    grid = make_grid(dict.fromkeys(range(100, 100 + USERS), failing))
    with pytest.raises(flower.TooFewRepliesError, match=r"node 1\d\d: code 2: Traceback: File") as refused:
        start(strategy, grid)
    asked = len(grid.sent[0])
    assert f"{asked} of {asked} nodes that were asked failed" in str(refused.value)
    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 500
    assert len(grid.sent) == 1  # nobody is asked again
    reasons = [line for line in caplog.messages if "code 2" in line]
    assert len(reasons) == asked  # each once
    assert all(line.isprintable() and len(line) < 250 for line in reasons)


def test_a_reason_is_told_once(make, start, make_grid, honest, failing, caplog):
    strategy = make(ASKED["everyone"])
    start(strategy, make_grid(nodes_of(honest=(honest, 99), failing=(failing, 1))))
    assert [round_ for round_, _, _ in strategy.faults] == [1, 2, 3]
    assert sum("node 199: code 2: Traceback" in line for line in caplog.messages) == 1


def test_what_flower_says_of_a_node_that_is_gone_is_told_as_of_that_node(
    make, start, make_grid, flower, honest, caplog
):
    """Flower's SuperLink answers for a node that is gone, in its own name and without that of the message."""
    from flwr.app import Error, Message

    def gone(message):
        reply = Message(Error(code=5, reason="Node Unavailable"), reply_to=message)
        reply.metadata.__dict__ |= {"_src_node_id": 1, "_group_id": ""}
        return [reply]

    strategy = make(ONCE["one-round"])
    start(strategy, make_grid(nodes_of(honest=(honest, 99), gone=(gone, 1))))
    assert strategy.faults == [(1, 199, "error")]
    assert "node 199: code 5: Node Unavailable" in caplog.messages


@pytest.mark.parametrize(
    ("least", "message"),
    [(0, "min_replies = 0 must be"), (101, "must be at most num_users = 100"), (1.5, "min_replies = 1.5")],
)
def test_bad_numbers_of_replies(make, least, message):
    with pytest.raises(ValueError, match=message):
        make(ONCE["one-round"], min_replies=least)


# --- what is stated -----------------------------------------------------------------------------------------


def test_the_certificate_and_its_page_say_who_took_part_and_what_epsilon_covers(
    make, start, make_grid, honest, tmp_path
):
    strategy = make(ONCE["one-round"], folder=tmp_path)
    start(strategy, make_grid(nodes_of(honest=(honest, 70), silent=(silent, 20))))
    resumed = make(ONCE["one-round"], folder=tmp_path)
    start(resumed, make_grid({}))
    for made in (strategy, resumed):
        certificate = made.certify(np.array([[[9.5, 2.0]]]))
        document = json.loads((tmp_path / "certificate.json").read_text())
        told = {name: document[name] for name in ("declared", "asked", "replied")}
        assert told == {"declared": 100, "asked": 90, "replied": 70}
        assert certificate.sound
        for words in ("not whether it has joined", "does not depend on what it holds", "fewer than 50 users"):
            assert any(words in sentence for sentence in sentences(certificate.assumptions))
        assert not fp.verify((tmp_path / "certificate.json").read_text(), tmp_path / "scores.npy")
    page = write_certificate_report(tmp_path).read_text()
    assert "replied, of 90 asked and 100 declared" in page
    assert "not whether it has joined" in (tmp_path / "PUBLISH.txt").read_text()


def test_votes_of_users_who_are_asked_once_say_who_took_part(make, start, make_grid, honest):
    strategy = make(Partition(pooled=True))
    start(strategy, make_grid(nodes_of(honest=(honest, 70), silent=(silent, 20))))
    certificate = strategy.certify(np.tile([[[0.9, 0.1]]], (70, 1, 1)))
    settings = certificate.settings
    assert (settings.declared, settings.asked, settings.replied) == (100, 90, 70)
    assert any("fewer than 50 users" in sentence for sentence in sentences(certificate.assumptions))


def test_silent_users_change_no_certified_label(make, start, make_grid, flower, reply_with):
    """Any so many of those who replied fall silent: there is no release, or it gives the same label."""
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    def vote(label):
        head = np.zeros((2, 2), np.float32)
        head[:, label] = 1.0

        def node(message):
            return [Message(RecordDict({"u": ArrayRecord({"upload": Array(head)})}), reply_to=message)]

        return node

    inputs = np.ones((1, 2), np.float32)
    votes = [vote(0)] * 9 + [vote(1)] * 3

    def answered(acts):
        strategy = make(ONCE["one-round"], num_users=12, seed=11)
        start(strategy, make_grid(dict(enumerate(acts, 100))))
        certificate = strategy.certify(strategy.scores(inputs), relation="join")
        return certificate.prediction[0], certificate.certified_size[0]

    label, size = answered(votes)
    assert size >= 1
    released = 0
    for count in range(1, size + 1):
        for begin in range(12):
            gone = {(begin + step) % 12 for step in range(count)}
            acts = [silent if place in gone else act for place, act in enumerate(votes)]
            try:
                assert answered(acts)[0] == label
                released += 1
            except flower.TooFewRepliesError:
                assert 12 - count < 6
    assert released


# --- who was drawn ------------------------------------------------------------------------------------------


@pytest.fixture
def observed(make, start, make_grid, honest, failing, record, tmp_path, caplog):
    """`observed(name, acts, seed)`: the strategy, and all that others than the server get to see.

    Public files, the log, and what `start` returns; without what noise alone decides, and the seed's mark.
    """

    def run(mechanism, acts, seed):
        folder = tmp_path / f"run-{seed}-{len(acts)}"
        caplog.clear()
        with caplog.at_level("INFO"):
            strategy = make(mechanism, seed=seed, folder=folder)
            grid = make_grid(dict(acts))
            result = start(strategy, grid)
        strategy.certify(np.tile([[[0.9, 0.1]]], (100, 1, 1)), max_size=5)
        texts = {
            path.name: path.read_text()
            for path in sorted(folder.iterdir())
            if path.is_file() and path.suffix not in (".npz", ".npy")
        }
        metrics = {number: dict(row) for number, row in result.train_metrics_clientapp.items()}
        with np.load(next(folder.glob("models-*.npz"))) as models:
            shapes = {name: models[name].shape for name in models}
            heard = models["heard"].tolist()
        log = "\n".join(caplog.messages).replace(str(folder), "FOLDER")
        return strategy, grid, {"log": log, "metrics": metrics, "files": texts, "models": (shapes, heard)}

    return run


@pytest.mark.parametrize("name", DRAWN)
def test_nothing_that_others_see_depends_on_who_was_drawn(observed, honest, failing, name):
    """Two seeds draw other cohorts, and others see the same, but for noise."""
    acts = nodes_of(honest=(honest, 60), silent=(silent, 20), failing=(failing, 20))
    found, cohorts = [], []
    for seed in (1, 2):
        strategy, grid, seen = observed(DRAWN[name], acts, seed)
        found.append(seen)
        cohorts.append([{m.metadata.dst_node_id for m in sent} for sent in grid.sent])
        assert strategy.faults  # there was something to be told
        server_log = strategy._folder / "private" / "server.log"
        assert "code 2: Traceback" in server_log.read_text()
        assert server_log.stat().st_mode & 0o777 == 0o600
        assert set().union(*cohorts[-1]) < set(acts)  # whoever was not drawn is sent nothing
    assert cohorts[0] != cohorts[1]
    assert found[0] == found[1]


@pytest.mark.parametrize("name", DRAWN)
def test_neither_log_nor_public_files_name_a_node_or_count_a_cohort(observed, honest, failing, name):
    acts = nodes_of(honest=(honest, 60), silent=(silent, 20), failing=(failing, 20))
    strategy, _, seen = observed(DRAWN[name], acts, None)
    text = seen["log"] + json.dumps(seen["metrics"]) + "".join(seen["files"].values())
    for words in (*(f"node {node}" for node in acts), "Traceback", "counts as zero"):
        assert words not in text
    own = {"cohort", "replied", "clipped-share", "messages", "upload-bytes", "faults", "faults-silent"}
    assert own <= set(strategy.metrics[0])
    assert not own & set().union(*seen["metrics"].values())
    for key in own - {"cohort"}:  # what is drawn is declared, and its size with it
        assert f'"{key}":' not in "".join(
            text for file, text in seen["files"].items() if file != "certificate.json"
        )
    assert set(seen["files"]) == {"PUBLISH.txt", "ledger.json", "certificate.json"}


@pytest.mark.parametrize("name", DRAWN)
def test_a_cohort_that_all_fails_does_not_stop_a_training(make, start, make_grid, failing, caplog, name):
    """That it went on would tell that a node which works was drawn."""
    strategy = make(DRAWN[name], connect_timeout=0.0)
    start(strategy, make_grid(nodes_of(failing=(failing, USERS))))
    assert strategy.rounds_done == DRAWN[name].rounds
    assert not [record_ for record_ in caplog.records if record_.levelname != "INFO"]


def test_the_cohorts_of_the_test_differ():
    plans = [server.Plan(mechanism=DRAWN["poisson"], num_users=USERS, seed=seed) for seed in (1, 2)]
    assert not np.array_equal(*map(server.draw_cohorts, plans))
