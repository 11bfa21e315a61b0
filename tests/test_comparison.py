"""Mechanisms on the same data: rows, what is refused, finished runs kept, what is sent up."""

import json
from pathlib import Path

import pytest

from fedproof.config import load_config, parse_config
from fedproof.ensemble.task import update_bytes, uploads
from fedproof.experiment import make_task
from fedproof.sweep import check_same_data, compare
from tests import tiny as shared
from tests.commands import fedproof

SAMPLED = ("mechanism.pooled=true", "certificate.method=vote")
ONCE = ("mechanism.kind=bagging", "mechanism.sampling=fixed", "mechanism.cohort=2", *SAMPLED)
GROUPS = ("mechanism.kind=partition", "mechanism.groups=8", *SAMPLED)


def tiny(*overrides):
    alike = ("mechanism.rounds=1", "mechanism.local_epochs=2", "ensemble.replicas=20")
    return parse_config(shared.TINY, "tiny", overrides, beneath=alike)


def test_every_mechanism_has_a_row_and_privacy_has_the_papers_too(tmp_path):
    configs = {"dp": tiny(), "once": tiny(*ONCE), "groups": tiny(*GROUPS)}
    rows = compare(configs, tmp_path)
    assert [(row.name, row.certificate) for row in rows] == [
        ("dp", "mean"),
        ("dp", "paper"),
        ("once", "vote"),
        ("groups", "vote"),
    ]
    ours, paper, once, groups = rows
    assert ours.one.epsilon < paper.one.epsilon
    assert once.one is once.published is once.replaced is None
    assert [row.sound for row in rows] == [True, False, True, True]
    assert all(
        ours.certified_accuracy.get(size, 0) >= share for size, share in paper.certified_accuracy.items()
    )
    assert groups.replicas == 8
    assert json.loads((tmp_path / "compare.json").read_text()) == {"rows": [row.document() for row in rows]}
    # In this order they stand in compare.json.
    keys = "name kind unit relation replicas accuracy seconds uploads bytes certificate certified_accuracy"
    later = "sound unmet predictor one published replaced uploads_per_user bytes_per_user tests_of_users"
    assert list(ours.document()) == [*keys.split(), *later.split()]
    assert [row.predictor for row in rows] == [
        *["the mean of 20 models"] * 2,
        "the vote of 20 models",
        "the vote of 8 models",
    ]
    assert ours.published.epsilon > ours.one.epsilon


def test_one_round_says_what_is_served_and_for_whom_its_epsilon_is(tmp_path):
    bare = "classes = [0, 1]\nusers = 24\n[mechanism]\n"
    for name, lines in {
        "one": 'kind = "one-round"\nupload = "pairs"\nsolver = "ridge"\nnoise_multiplier = 2.0\n',
        "votes": 'kind = "partition"\npooled = true\nsolver = "ridge"\n',
        "draws": 'kind = "smoothed"\nnoise_multiplier = 2.0\nsmoothing = 3.0\n[ensemble]\nreplicas = 20\n',
    }.items():
        (tmp_path / f"{name}.toml").write_text(f"[data]\n{bare}{lines}")
    paths = [tmp_path / f"{name}.toml" for name in ("one", "votes", "draws")]
    done = fedproof("compare", *paths, "--out", tmp_path / "out", columns=100)
    one, votes, draws = json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]
    assert (one["predictor"], votes["predictor"]) == ("the released model", "the vote of 24 models")
    assert draws["predictor"] == "the mean of 20 draws around one release"
    assert draws["published"] == draws["one"] == one["one"] == one["published"]
    assert (draws["replaced"], draws["uploads_per_user"]) == (one["replaced"], 1)
    assert one["published"]["epsilon"] < one["replaced"]["epsilon"]
    assert (one["published"]["relation"], one["relation"], votes["published"]) == ("join", "replace", None)
    assert (one["uploads_per_user"], one["bytes_per_user"]) == (1, 4 * 64 * 2)
    assert "Sizes are for replaced units" in (tmp_path / "out" / "compare.html").read_text()
    text = " ".join(done.stdout.split())
    for word in (
        "the released model",
        "added or removed",
        "sizes are for replaced units, and ε is for one added",
    ):
        assert word in text


def test_finished_runs_are_read_and_keep_their_seconds(tmp_path):
    first = compare({"once": tiny(*ONCE), "groups": tiny(*GROUPS)}, tmp_path)
    times = {path: path.stat().st_mtime_ns for path in tmp_path.glob("*/*.json")}
    again = compare({"once": tiny(*ONCE), "groups": tiny(*GROUPS), "dp": tiny()}, tmp_path)
    assert again[:2] == first
    assert all(path.stat().st_mtime_ns == moment for path, moment in times.items())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("data.users=12", r"b: data\.users = 12 must be 24 as in a"),
        ("data.classes=[0,2]", r"b: data\.classes = \(0, 2\) must be \(0, 1\) as in a"),
        ("data.seed=1", r"b: data\.seed = 1 must be 0 as in a"),
    ],
)
def test_other_data_are_refused_before_anything_is_trained(change, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        compare({"a": tiny(), "b": tiny(change)}, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_one_configuration_is_no_comparison(tmp_path):
    with pytest.raises(ValueError, match="at least two configurations"):
        compare({"a": tiny()}, tmp_path)


def test_what_is_sent_up_is_counted():
    # Of 288 images of 24 users, 12 each: one round of 8 members sends 8 updates.
    assert uploads(make_task(tiny(), "cpu")) == 8
    assert uploads(make_task(tiny("mechanism.rounds=3"), "cpu")) == 24
    # Pooled, 2 members with 12 images each, batches of 4: 6 steps with 2 senders in each of 2 epochs.
    task = make_task(tiny(*ONCE), "cpu")
    each = len(task.federation.labels) / 24
    assert uploads(task) == pytest.approx(2 * 2 * (2 * each) / 4, rel=0.1)
    # Instances: every one in a batch may be another user's.
    bagged = make_task(tiny(*ONCE, "threat.unit=instance", "mechanism.cohort=10"), "cpu")
    assert uploads(bagged) == 2 * 10
    # With noise a round is one step on all that were drawn.
    noisy = (
        "mechanism.kind=cohort-once",
        "threat.unit=instance",
        "mechanism.cohort=10",
        "mechanism.noise_multiplier=1",
    )
    assert uploads(make_task(tiny(*ONCE, *noisy, "mechanism.rounds=3"), "cpu")) == 3 * 10
    assert update_bytes(bagged) == 4 * (64 * 2 + 2)


EXAMPLES = Path(__file__).parents[1] / "experiments" / "compare"


@pytest.mark.parametrize("folder", ["digits", "mnist-10"])
def test_the_examples_are_on_the_same_data_and_cover_every_kind(folder):
    configs = {path.stem: load_config(path) for path in sorted((EXAMPLES / folder).glob("*.toml"))}
    check_same_data(configs)
    kinds = {(config.mechanism.kind, config.threat.unit.value) for config in configs.values()}
    assert kinds == {
        ("user-fedavg", "user"),
        ("one-round", "user"),
        ("bagging", "user"),
        ("cohort-once", "user"),
        ("cohort-once", "instance"),
        ("partition", "user"),
        ("partition", "instance"),
    }


def test_compare_as_typed(tmp_path):
    names = [EXAMPLES / "digits" / f"{name}.toml" for name in ("flcert-d", "deep-partition", "dp")]
    options = ("--out", tmp_path / "out", "--sizes", "1,3", "--set", "ensemble.replicas=60")
    done = fedproof("compare", *names, *options, columns=80)
    assert "k=3" in done.stdout
    assert "dp, paper *" in done.stdout
    assert "* not a proof" in done.stdout
    assert (tmp_path / "out" / "compare.html").exists()
    assert len(json.loads((tmp_path / "out" / "compare.json").read_text())["rows"]) == 4
    assert (tmp_path / "out" / "flcert-d" / "report.html").exists()


def test_sizes_that_no_run_tries_are_refused_before_training(tmp_path):
    names = [EXAMPLES / "digits" / f"{name}.toml" for name in ("flcert-d", "deep-partition")]
    done = fedproof("compare", *names, "--out", tmp_path / "out", "--sizes", "5,100001", status=1)
    assert "--sizes 100001 must be at most" in done.stderr
    assert "the largest certificate.max_size" in done.stderr
    assert not (tmp_path / "out").exists()


def test_what_no_compared_mechanism_uses_is_refused(tmp_path):
    names = [EXAMPLES / "digits" / f"{name}.toml" for name in ("flcert-d", "deep-partition")]
    done = fedproof("compare", *names, "--out", tmp_path / "out", "--set", "ensemble.replicas=60", status=1)
    assert done.stderr == "error: --set ensemble.replicas: none of the configurations uses it\n"
