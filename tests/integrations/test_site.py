"""A site's own ledger and noise, and a mod that no server talks out of them."""

import json
import math
import signal
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from fedproof.accounting.ledger import Ledger, alone_with, load_ledger, load_site_ledger, save_ledger
from fedproof.integrations import site as own
from fedproof.mechanisms import Everyone, Poisson, Query, UserFedAvg
from tests.commands import fedproof

FALSE_ALARM = 1e-6
SITE = {
    "ledger": "ledger.json",
    "clip_norm": 0.5,
    "noise_multiplier": 4.0,
    "delta": 1e-5,
    "max_epsilon": 8.0,
}


def write(folder, **changes):
    path = folder / "site.toml"
    lines = [f"{key} = {json.dumps(value)}" for key, value in (SITE | changes).items() if value is not None]
    path.write_text("\n".join(lines))
    return path


@pytest.fixture
def site(tmp_path):
    found = own.load_site(write(tmp_path))
    own.begin(found)
    return found


def sent(site):
    return sum(query.count for query in load_site_ledger(Path(site.ledger)).queries)


# --- what is counted ----------------------------------------------------------------------------------------


def gaussian_epsilon(updates):
    """ε of Gaussian queries that move by two clip norms (Balle and Wang 2018, Theorem 8), by bisection."""
    shift = 2 / SITE["noise_multiplier"] * math.sqrt(updates)
    low, high = 0.0, 100.0
    for _ in range(100):
        middle = (low + high) / 2
        spent = norm.cdf(shift / 2 - middle / shift) - math.exp(middle) * norm.cdf(
            -shift / 2 - middle / shift
        )
        low, high = (middle, high) if spent > SITE["delta"] else (low, middle)
    return high


def test_updates_are_counted_until_the_next_would_cost_too_much(site):
    left = own.affordable(site, own.spent(site))
    for done in range(1, left + 1):
        ledger = own.charge(site)
        assert ledger.epsilon["pld"] == pytest.approx(gaussian_epsilon(done), rel=2e-3)
        assert own.affordable(site, ledger) == left - done
    assert gaussian_epsilon(left) <= site.max_epsilon < gaussian_epsilon(left + 1)
    for _ in range(2):
        with pytest.raises(own.BudgetSpentError, match="max_epsilon = 8 does not pay for another update"):
            own.charge(site)
    assert sent(site) == left


def test_all_that_was_ever_sent_is_counted_whatever_the_noise_was(site, tmp_path):
    own.charge(site)
    quieter = own.load_site(write(tmp_path, noise_multiplier=2.5, delta=1e-6))
    own.charge(quieter)
    own.charge(quieter)
    ledger = own.spent(quieter)
    assert {query.noise_multiplier: query.count for query in ledger.queries} == {2.0: 1, 1.25: 2}
    together = Query(noise_multiplier=1 / math.sqrt(1 / 4 + 2 / 1.25**2), sampling=Everyone(), count=1)
    alone = Ledger(queries=(together,), delta=1e-6, replicas=1)
    assert ledger.epsilon["pld"] == pytest.approx(alone.epsilon["pld"], rel=2e-3)


def test_processes_of_one_site_wait_for_each_other(site):
    threads = [threading.Thread(target=own.charge, args=(site,)) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sent(site) == 6


def test_a_process_that_never_lets_go_is_named(site, monkeypatch):
    monkeypatch.setattr("fedproof.accounting.ledger._PATIENCE", 0.1)
    with (
        alone_with(Path(site.ledger)),
        pytest.raises(ValueError, match=r"ledger.json: another process is working in it"),
    ):
        own.charge(site)
    assert sent(site) == 0


def test_nothing_is_counted_as_sent_that_is_not_on_the_disk(site, monkeypatch):
    def full(handle):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("fedproof.files.os.fsync", full)
    with pytest.raises(OSError, match="cannot be written"):
        own.charge(site)
    monkeypatch.undo()
    assert sent(site) == 0


# --- ledgers that stop it -----------------------------------------------------------------------------------


def damaged(text, how):
    document = json.loads(text)
    match how:
        case "missing":
            return None
        case "cut":
            return text[:-20]
        case "empty":
            return ""
        case "list":
            return "[]"
        case "fewer updates":
            document["queries"][0]["count"] = 1
        case "more noise":
            document["queries"][0]["noise_multiplier"] = 50.0
        case "no updates":
            document["queries"] = []
        case "no checksum":
            del document["sha256"]
        case "another version":
            document["version"] = 2
    return json.dumps(document)


DAMAGE = {
    "missing": "is missing: what the site has spent is not known; a new site begins a ledger once",
    "cut": "is not a ledger of a site",
    "empty": "is not a ledger of a site",
    "list": "is not a ledger of a site",
    "fewer updates": "it was changed: its checksum is that of something else",
    "more noise": "it was changed",
    "no updates": "it was changed",
    "no checksum": "it was changed",
    "another version": "version 2 is not 1",
}


@pytest.mark.parametrize("how", DAMAGE)
def test_a_ledger_that_is_not_as_it_was_left_stops_the_site(site, how):
    own.charge(site)
    own.charge(site)
    path = Path(site.ledger)
    found = damaged(path.read_text(), how)
    path.unlink() if found is None else path.write_text(found)
    for asked in (own.charge, own.spent):
        with pytest.raises(ValueError, match=DAMAGE[how]) as error:
            asked(site)
        assert "\n" not in str(error.value)


def test_a_ledger_of_a_training_is_not_a_sites_nor_the_other_way(site):
    path = Path(site.ledger)
    with pytest.raises(ValueError, match="is not a ledger: it is the ledger of a site"):
        load_ledger(path)
    mechanism = UserFedAvg(rounds=1, noise_multiplier=6.0, sampling=Poisson(probability=0.2))
    save_ledger(Ledger.of(mechanism, delta=1e-5).spend(1), path)
    with pytest.raises(ValueError, match="is not a ledger of a site: it is the ledger of a training"):
        own.charge(site)


def test_a_ledger_that_is_reached_by_a_link_is_the_same_ledger(site, tmp_path):
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "ledger.json").symlink_to(site.ledger)
    (tmp_path / "etc" / "link.toml").symlink_to(tmp_path / "site.toml")
    by_ledger, by_file = own.load_site(write(tmp_path / "etc")), own.load_site(tmp_path / "etc" / "link.toml")
    for one in (site, by_ledger, by_file):
        own.charge(one)
    assert sent(site) == 3
    (tmp_path / "second.json").hardlink_to(site.ledger)
    with pytest.raises(ValueError, match=r"ledger.json has a second name \(a hard link\)"):
        own.charge(site)


def test_the_lock_of_a_ledger_stays(site):
    lock = Path(site.ledger).with_name(".ledger.json.lock")
    before = lock.stat().st_ino  # since the ledger was begun
    own.charge(site)
    with pytest.raises(own.BudgetSpentError):
        own.charge(site.model_copy(update={"max_epsilon": 1e-3}))
    assert lock.stat().st_ino == before


def test_a_ledger_is_begun_once(site):
    own.charge(site)
    with pytest.raises(ValueError, match=r"ledger.json exists: a ledger is begun once, and never again"):
        own.begin(site)
    assert sent(site) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"max_epsilon": 0.0}, "max_epsilon = 0.0"),
        ({"max_epsilon": None}, "max_epsilon is missing"),
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0"),
        ({"noise_multiplier": 1e6}, "noise_multiplier = 1000000.0"),
        ({"clip_norm": -1.0}, "clip_norm = -1.0"),
        ({"delta": 1.0}, "delta = 1.0"),
        ({"seed": 3}, "seed is not a known key"),
        ({"ledger": 3}, "ledger = 3"),
    ],
)
def test_a_mistake_in_the_sites_file_is_answered_by_one_line(tmp_path, changes, message):
    with pytest.raises(ValueError, match=message) as error:
        own.load_site(write(tmp_path, **changes))
    assert "\n" not in str(error.value)


def test_a_file_that_is_none(tmp_path):
    (tmp_path / "bad.toml").write_text("= nonsense")
    (tmp_path / "deep.toml").write_text("a = " + 5000 * "[")
    for name, message in (
        ("bad.toml", "is not a site's file"),
        ("deep.toml", "is not a site's file: maximum recursion depth exceeded"),
        ("absent.toml", "cannot be read: No such file"),
    ):
        with pytest.raises(ValueError, match=message):
            own.load_site(tmp_path / name)


def test_the_command_says_what_was_spent(tmp_path):
    path = write(tmp_path)
    assert "begins a ledger once" in fedproof("site", path, status=1).stderr
    fedproof("site", path, "--begin")
    own.charge(own.load_site(path))
    found = json.loads(fedproof("site", path, "--json").stdout)
    assert (found["updates"], found["relation"]) == (1, "replace")
    assert found["epsilon"] == pytest.approx(gaussian_epsilon(1), rel=2e-3)
    assert "1 updates were sent, over all runs: ε = " in fedproof("site", path).stdout
    assert "a ledger is begun once" in fedproof("site", path, "--begin", status=1).stderr


# --- noise --------------------------------------------------------------------------------------------------


def test_noise_has_the_stated_scale(site):
    std = site.noise_multiplier * site.clip_norm
    statistic = float(np.square(own.noised(site, np.zeros(20_000)) / std).sum())
    low, high = chi2.interval(1 - FALSE_ALARM, df=20_000)
    assert low < statistic < high
    assert statistic / 1.1**2 < low  # noise 10 % too small would be caught


class Silent:
    """Noise that is none, to see what is under it."""

    def words(self, count):
        return np.full(count, np.iinfo(np.int64).max)  # the median

    def further(self, word, place):
        raise AssertionError("a median is decided by its word")


@settings(max_examples=80, deadline=None, derandomize=True)
@given(seed=st.integers(0, 99), scale=st.integers(-300, 308), odd=st.sampled_from([1.0, np.nan, np.inf]))
def test_whatever_the_update_is_it_is_clipped_before_noise(seed, scale, odd):
    found = own.Site(**SITE)
    update = np.random.default_rng(seed).uniform(-1, 1, 7) * 10.0**scale
    update[seed % 7] *= odd
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(own, "SecureGenerator", Silent)
        clipped = own.noised(found, update)
    assert np.linalg.norm(clipped) <= found.clip_norm
    if not math.isfinite(odd):
        assert not clipped.any()
    elif np.abs(update).max() < 0.1:
        np.testing.assert_allclose(clipped, update, atol=2**-32)


# --- the mod ------------------------------------------------------------------------------------------------

SECRET = "diagnosis-of-patient-7"
BASE = {"weight": np.arange(6, dtype=np.float32).reshape(2, 3), "steps": np.array(5)}


@pytest.fixture
def ask(flower, monkeypatch, tmp_path, site):
    """`ask(app, ...)`: the reply of a node with the mod to a server's message."""
    from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
    from flwr.supercore.task_identity import TaskIdentity

    for name in ("_task_id", "_run_id", "_node_id"):
        monkeypatch.setattr(TaskIdentity, name, 1)

    def asked(
        app,
        kind="train",
        *,
        arrays=BASE,
        config=None,
        run_config=None,
        node=None,
        run=1,
        records=1,
        client=None,
        lifespan=None,
    ):
        held = ArrayRecord({name: Array(np.asarray(value)) for name, value in arrays.items()})
        content = RecordDict({f"arrays-{number}": held for number in range(records)})
        content["config"] = ConfigRecord(config or {})
        message = Message(content, dst_node_id=7, message_type=kind, group_id="3")
        context = Context(
            run_id=run,
            node_id=7,
            node_config={"site": str(tmp_path / "site.toml")} if node is None else node,
            state=RecordDict(),
            run_config=run_config or {},
        )
        client = client or flower.SiteApp()
        if lifespan is not None:
            client.lifespan()(lifespan)
        for register in (client.train, client.evaluate, client.query):
            register()(app)
            register("other")(app)
        return client(message=message, context=context)  # as Flower calls it

    return asked


def trained(by, **more):
    """An app that adds a constant, and returns more than it should."""

    def app(message, context):
        from flwr.app import Array, ArrayRecord, Message, RecordDict

        (record,) = message.content.array_records.values()
        weight = record["weight"].numpy()
        arrays = ArrayRecord({"weight": Array(weight + np.float32(by)), "steps": Array(np.array(99))})
        return Message(
            RecordDict({"arrays": arrays, **{key: make() for key, make in more.items()}}), reply_to=message
        )

    return app


def failing(error):
    def app(message, context):
        raise error

    return app


def forged(message, context):
    """A reply whose metadata, error and names tell what they should not, to whom they should not."""
    from flwr.app import Error, Message

    message.metadata.__dict__["_group_id"] = SECRET
    message.content.clear()
    context.node_config["site"] = "/dev/null"
    return Message(Error(2, SECRET), reply_to=message)


def named_after_data(message, context):
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    return Message(RecordDict({SECRET: ArrayRecord({SECRET: Array(np.ones(3))})}), reply_to=message)


def too_many(message, context):
    found = trained(1.0)(message, context)
    found.content["again"] = found.content["arrays"]
    return found


def wide(message, context):
    from flwr.app import Array, ArrayRecord, Message, RecordDict

    arrays = ArrayRecord({"weight": Array(np.ones(6, np.float32)), "steps": Array(np.array(0))})
    return Message(RecordDict({"arrays": arrays}), reply_to=message)


def metrics():
    from flwr.app import MetricRecord

    return MetricRecord({SECRET: 0.25, "num-examples": 31})


def config_record():
    from flwr.app import ConfigRecord

    return ConfigRecord({"told": SECRET})


NOTHING = {  # apps of which the server learns nothing at all
    "an exception": failing(ValueError(SECRET)),
    "the end of the process": failing(SystemExit(SECRET)),
    "no reply": lambda message, context: None,
    "text": lambda message, context: SECRET,
    "an error": forged,
    "names": named_after_data,
    "two models": too_many,
    "another shape": wide,
    "not a number": trained(math.nan),
    "infinity": trained(math.inf),
}


def bytes_of(reply):
    from flwr.supercore.inflatable.inflatable_object import get_all_nested_objects

    told = b"".join(found.deflate() for found in get_all_nested_objects(reply).values())
    return told + str(vars(reply.metadata)).encode()


def check_form(reply):
    """A reply has one form whatever the app did: that of the server's model, and a constant."""
    assert SECRET.encode() not in bytes_of(reply)
    assert set(reply.content) == {"arrays-0", "metrics"}
    assert dict(reply.content["metrics"]) == {"num-examples": 1}
    arrays = {name: array.numpy() for name, array in reply.content["arrays-0"].items()}
    assert list(arrays) == list(BASE)
    assert arrays["steps"] == 5
    assert arrays["weight"].dtype == np.float32
    assert (reply.metadata.group_id, reply.metadata.dst_node_id) == ("3", 1)
    return arrays["weight"] - BASE["weight"]


@pytest.mark.parametrize("name", NOTHING)
def test_what_an_app_does_beside_its_update_stays_at_the_site(ask, site, monkeypatch, name, caplog):
    monkeypatch.setattr(own, "SecureGenerator", Silent)
    assert not check_form(ask(NOTHING[name])).any()
    assert sent(site) == 1


def as_first_mod(flower):
    from flwr.clientapp import ClientApp

    return ClientApp(mods=[flower.site_mod])


def test_the_mod_alone_does_the_same_where_it_is_the_first(flower, ask, site, monkeypatch):
    monkeypatch.setattr(own, "SecureGenerator", Silent)
    for app in NOTHING.values():
        assert not check_form(ask(app, client=as_first_mod(flower))).any()
    assert sent(site) == len(NOTHING)


def fails_before(context):
    raise ValueError(SECRET)
    yield


def fails_after(context):
    yield
    raise ValueError(SECRET)


def never_yields(context):
    return SECRET


@pytest.mark.parametrize("lifespan", [fails_before, fails_after, never_yields])
def test_a_lifespan_is_inside_and_tells_nothing(flower, ask, site, monkeypatch, lifespan):
    monkeypatch.setattr(own, "SecureGenerator", Silent)
    check_form(ask(trained(0.1), lifespan=lifespan))
    refused(ask(trained(0.1), "evaluate", lifespan=lifespan), OTHERWISE)
    assert sent(site) == 1
    # Flower would send this on, text and all.
    with pytest.raises((ValueError, RuntimeError)):
        ask(trained(0.1), lifespan=lifespan, client=as_first_mod(flower))


def test_no_mod_is_outside(flower, ask, site, monkeypatch):
    monkeypatch.setattr(own, "SecureGenerator", Silent)

    def telling(message, context, call_next):
        reply = call_next(message, context)
        reply.content["told"] = config_record()
        return reply

    assert check_form(ask(trained(0.01), client=flower.SiteApp(mods=[telling]))).all()
    with pytest.raises(ValueError, match="mods: site_mod must be left out, as every update would be counted"):
        flower.SiteApp(mods=[flower.site_mod])


def test_an_app_that_asks_for_exceptions_of_numpy_gets_none_of_them_out(ask, site, monkeypatch):
    monkeypatch.setattr(own, "SecureGenerator", Silent)
    before = np.geterr()

    def underflowing(message, context):
        reply = trained(1e-22)(message, context)  # a number whose square is too small for float32
        np.seterr(all="raise")
        return reply

    try:
        check_form(ask(underflowing))
    finally:
        np.seterr(**before)


def test_the_update_is_clipped_noised_and_alone(ask, site, monkeypatch):
    app = trained(3.0, metrics=metrics, told=config_record)
    noisy = check_form(ask(app))
    again = check_form(ask(app))
    assert (noisy != again).all()  # of the same message: noise is fresh
    monkeypatch.setattr(own, "SecureGenerator", Silent)
    np.testing.assert_allclose(np.linalg.norm(check_form(ask(app))), site.clip_norm, rtol=1e-4)
    short = trained(0.01, metrics=metrics)
    np.testing.assert_allclose(check_form(ask(short)), 0.01, atol=1e-6)
    assert sent(site) == 4


def refused(reply, reason):
    assert SECRET.encode() not in bytes_of(reply)
    assert (reply.error.code, reply.error.reason) == (6, reason)
    assert not reply.has_content()


OTHERWISE = "the site does not answer this message"


@pytest.mark.parametrize(
    "asked",
    [
        {"kind": "evaluate"},
        {"kind": "query"},
        {"kind": "query.other"},
        {"kind": "evaluate.other"},
        {"records": 0},
        {"records": 2},
        {"arrays": {"steps": np.array(5)}},
        {"arrays": {"weight": np.zeros((0, 3))}},
        {"arrays": {"weight": np.array(["text"])}},
        {"node": {}},
        {"node": {"site": 3}},
        {"node": {"site": "/nowhere/site.toml"}},
        {"node": {}, "run_config": {"site": "site.toml"}, "config": {"site": "site.toml"}},
    ],
    ids=str,
)
def test_other_questions_are_refused_before_the_app_sees_them(ask, site, asked):
    called = []
    refused(ask(lambda message, context: called.append(1), **asked), OTHERWISE)
    assert not called
    assert sent(site) == 0


def test_a_spent_budget_is_said_and_nothing_is_trained(ask, site):
    called = []

    def app(message, context):
        called.append(1)
        return trained(0.1)(message, context)

    left = own.affordable(site, own.spent(site))
    for run in range(left):
        check_form(ask(app, run=run))
    for run in range(3):
        refused(ask(app, run=1000 + run), "the site has spent its privacy budget")
    assert len(called) == sent(site) == left


def test_a_changed_ledger_stops_the_node(ask, site):
    path = Path(site.ledger)
    path.write_text(path.read_text().replace('"delta": 1e-05', '"delta": 1e-04'))
    refused(ask(trained(0.1)), OTHERWISE)


WISHES = st.dictionaries(
    st.sampled_from(
        [
            "site",
            "clip_norm",
            "noise_multiplier",
            "max_epsilon",
            "delta",
            "ledger",
            "fedproof-replicas",
            "replica",
        ]
    ),
    st.one_of(st.integers(0, 5), st.floats(0, 1e9), st.just("/dev/null"), st.booleans()),
)


def test_no_server_is_answered_otherwise_whatever_it_sends(ask, site, monkeypatch, caplog):
    """Hostile messages at random: a reply has one form, is counted, and is clipped as the site says."""
    monkeypatch.setattr(own, "SecureGenerator", Silent)
    replies = []

    @settings(max_examples=60, deadline=None, derandomize=True, database=None)
    @given(
        kind=st.sampled_from(["train", "train.other", "evaluate", "query", "query.other"]),
        config=WISHES,
        run_config=WISHES,
        run=st.integers(0, 2**63 - 1),
        app=st.sampled_from([trained(3.0, metrics=metrics), trained(-0.01), *NOTHING.values()]),
    )
    def holds(kind, config, run_config, run, app):
        before = sent(site)
        reply = ask(app, kind, config=config, run_config=run_config, run=run)
        if reply.has_error():
            assert reply.error.reason in (OTHERWISE, "the site has spent its privacy budget")
            assert sent(site) == before
            return
        assert kind.startswith("train")
        assert np.linalg.norm(check_form(reply)) <= site.clip_norm * (1 + 1e-5)
        assert sent(site) == before + 1
        replies.append(reply)

    holds()
    assert len(replies) == sent(site) > 5


KILLED = """
import os, signal, sys
from pathlib import Path
from fedproof.integrations import site as own
site = own.load_site(Path(sys.argv[1]))
own.charge(site)
os.kill(os.getpid(), signal.SIGKILL)  # counted, and never sent
"""


def test_a_node_killed_before_it_sends_has_counted(site, tmp_path):
    done = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "site.toml"], check=False)
    assert done.returncode == -signal.SIGKILL
    assert sent(site) == 1
    own.charge(site)  # and the lock is free
    assert sent(site) == 2


def test_the_ledger_is_written_before_the_app_is_called(ask, site):
    counted = []

    def app(message, context):
        counted.append(sent(site))
        return trained(0.1)(message, context)

    check_form(ask(app))
    assert counted == [1]


def test_a_mod_that_counted_too_little_would_be_caught(ask, site, monkeypatch):
    """The tests above look at what they say they look at."""
    monkeypatch.setattr("fedproof.integrations.flower.site.charge", lambda site: None)
    check_form(ask(trained(0.1)))
    assert sent(site) == 0
