"""The records: lines become rows, rows become the page, and each peer is read as it printed its number."""

import json
from pathlib import Path

import numpy as np
import pytest

import fedproof as fp
from fedproof.experiment import SharedWork
from paper import Rows, load_studies, reproduce
from paper.records import headline, measured, page, write_page
from paper.results import Recorded
from paper.run import ROWS
from paper.study import RECORDS, chosen, points_of
from tests.commands import fedproof

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

VOTES = """
[data]
name = "digits"
users = 40
[model]
name = "logistic"
[mechanism]
kind = "partition"
pooled = true
solver = "ridge"
[ensemble]
seed = 0
[certificate]
max_size = 20
"""
STUDY = """
title = "Ten digits"
order = 1
shows = "What a test needs."
[[peer]]
work = "Somebody"
published = "60 % at 4 insertions"
unit = "an inserted user"
confidence = "with certainty"
source = "nowhere"
relation = "join"
size = 4
share = 0.6
unconfirmed = "all of it."
[[panel]]
name = "votes"
title = "one user, one vote"
measure = "record"
experiment = "votes"
sizes = [2, 4]
looked = "Once."
[[panel]]
name = "pairs"
title = "the same, pairwise"
measure = "record"
experiment = "votes"
set = ["certificate.rule=pairwise"]
sizes = [2]
"""


@pytest.fixture(scope="session")
def experiments(tmp_path_factory):
    folder = tmp_path_factory.mktemp("records")
    (folder / RECORDS).mkdir()
    (folder / "votes.toml").write_text(VOTES)
    (folder / RECORDS / "digits.toml").write_text(STUDY)
    (folder / "paper_values.json").write_bytes((EXPERIMENTS / "paper_values.json").read_bytes())
    return folder


@pytest.fixture(scope="session")
def rows(experiments, tmp_path_factory):
    studies = load_studies(experiments, RECORDS)
    return reproduce(studies, experiments, tmp_path_factory.mktemp("out"), folder=RECORDS)


def test_a_line_is_what_the_certificate_says_by_every_rule(experiments, rows):
    [study] = load_studies(experiments, RECORDS)
    point = points_of(study, experiments)[0]
    found = rows.find(point).result
    assert isinstance(found, Recorded)
    task = SharedWork().task(point.config, "cpu")
    trained = fp.train(task)
    for curve in found.curves:
        certificate = trained.certify(curve.relation, rule=curve.rule, max_size=20)
        assert curve.accuracy == pytest.approx(certificate.certified_accuracy([2, 4]), abs=1e-5)
        right = np.array(certificate.prediction) == task.federation.test_labels
        sizes = np.sort(np.where(right, certificate.certified_size, -1))[::-1]
        assert curve.half == max(
            0, sizes[-(-len(sizes) // 2) - 1]
        )  # that many are certified for at least half
    assert [(one.rule, one.relation) for one in found.curves] == [
        ("plurality", "replace"),
        ("pairwise", "replace"),
        ("run-off", "replace"),
        ("plurality", "join"),
    ]
    assert (found.announced, found.failure_probability, found.units) == ("plurality", None, 40)


def test_the_page_reads_a_peer_in_its_own_units_by_the_announced_rule(experiments, rows):
    text = page(load_studies(experiments, RECORDS), experiments, rows)
    found = rows.under("digits/votes")[0].result
    share = found.curve("plurality", "join").accuracy[1]
    assert (
        found.curve("plurality", "replace").accuracy[1] != share
    )  # a vote that joins is half of one replaced
    assert f"**{share:.1%}** at 4 (`votes`)" in text
    assert "*Not confirmed*, Somebody: all of it." in text
    assert "| `pairs` | **pairwise** |" in text
    assert "with certainty. Once. <sub>CPU" in text


def test_a_line_with_other_settings_counts_as_not_measured(experiments, rows, tmp_path):
    changed = json.loads(rows.path.read_text().splitlines()[0]) | {"settings_sha256": "0" * 64}
    (tmp_path / "records.jsonl").write_text(json.dumps(changed) + "\n")
    studies, old = load_studies(experiments, RECORDS), Rows(tmp_path / "records.jsonl")
    assert [row for _, row in measured(studies[0], experiments, old)] == [None, None]
    text = write_page(studies, experiments, old, tmp_path).read_text()
    assert "*one user, one vote* (`digits/votes`) was not measured yet." in text
    assert headline(studies[0], studies[0].panel[0], None)[2] == "not measured"


def test_sizes_beyond_what_is_looked_at_are_refused(experiments, tmp_path):
    [study] = load_studies(experiments, RECORDS)
    panel = study.panel[0].model_copy(update={"sizes": (2, 21)})
    with pytest.raises(ValueError, match="sizes of votes must be at most"):
        reproduce([study.model_copy(update={"panel": (panel,)})], experiments, tmp_path, folder=RECORDS)


def test_the_command_lists_the_lines_and_runs_one(experiments, tmp_path):
    listed = fedproof("records", "--experiments", experiments)
    assert listed.stdout.count("not measured") == 2
    done = fedproof("records", "digits/pairs", "--experiments", experiments, "--out", tmp_path, "--json")
    [line] = json.loads(done.stdout)["lines"]
    assert (line["line"], line["title"]) == ("digits/pairs", "the same, pairwise")
    assert (tmp_path / "records.md").exists()
    assert len((tmp_path / "records.jsonl").read_text().splitlines()) == 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nothing", "study = 'nothing' must be all or one of digits"),
        ("digits/nothing", "panel = 'nothing' of digits must be one of votes, pairs"),
    ],
)
def test_a_line_that_is_not_there_is_named(experiments, tmp_path, name, message):
    done = fedproof("records", name, "--experiments", experiments, "--out", tmp_path, status=1)
    assert done.stderr.strip() == f"error: {message}"


def test_a_folder_without_records_is_named(tmp_path):
    done = fedproof("records", "--experiments", tmp_path, status=1)
    assert "there are no studies; run this in a checkout of fedproof" in done.stderr


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('relation = "join"', 'relation = "leave"', "relation"),
        ("size = 4\nshare", "size = 0\nshare", "size"),
        ('work = "Somebody"\n', "", "work"),
        ("order = 1\n", 'order = 1\npublic = "everything"\n', "public"),
    ],
)
def test_a_mistake_in_a_study_is_one_line(experiments, tmp_path, old, new, message):
    (tmp_path / RECORDS).mkdir()
    (tmp_path / RECORDS / "digits.toml").write_text(STUDY.replace(old, new))
    with pytest.raises(ValueError, match=rf"digits\.toml.*{message}") as caught:
        load_studies(tmp_path, RECORDS)
    assert "\n" not in str(caught.value)


def test_every_committed_line_can_be_read_at_the_size_of_each_peer():
    studies = load_studies(EXPERIMENTS, RECORDS)
    for study in studies:
        sizes = [set(panel.sizes) for panel in study.panel]
        for peer in study.peer:
            assert peer.size is None or any(peer.size in one for one in sizes), (study.name, peer.work)
        assert all(point.config.ensemble.seed is not None for point in points_of(study, EXPERIMENTS))
        assert all(panel.looked for panel in study.panel)
    assert {study.public for study in studies} == {"nothing", "images", "encoder"}


def test_an_encoder_is_only_where_it_is_said_to_be():
    for study in load_studies(EXPERIMENTS, RECORDS):
        for point in points_of(study, EXPERIMENTS):
            data, weights = point.config.data, point.config.model.weights
            learned = weights is not None or data.encoder not in (None, "hog")
            assert learned == (study.public == "encoder"), point.key
            assert study.public != "nothing" or data.public is None, point.key
            assert study.public != "images" or data.public is not None, point.key


def test_committed_rows_were_measured_with_the_committed_settings():
    rows = Rows(EXPERIMENTS / "results" / ROWS[RECORDS])
    known = {
        point.key: rows.find(point)
        for study in load_studies(EXPERIMENTS, RECORDS)
        for point in points_of(study, EXPERIMENTS)
    }
    committed = [json.loads(line)["key"] for line in rows.path.read_text().splitlines()]
    assert sorted(committed) == sorted(key for key, row in known.items() if row is not None)
    for row in filter(None, known.values()):
        assert row.hardware
        assert row.seconds > 0
        assert row.version


def test_one_study_may_be_chosen_by_its_line():
    studies = load_studies(EXPERIMENTS, RECORDS)
    [study] = chosen(studies, "users-mnist/cnn-500")
    assert [panel.name for panel in study.panel] == ["cnn-500"]
    assert len(chosen(studies, "all")) == len(studies)
