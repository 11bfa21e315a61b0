"""What a row says it was decided by: words change nothing, code, settings and defaults do."""

import json
import math
from dataclasses import replace
from pathlib import Path

import pytest

from fedproof.experiment import SharedWork
from paper import Rows, load_studies, reproduce, run, same
from paper import provenance as origin
from paper.page import page
from paper.provenance import CHANGES, Provenance, decided_by, stale, without_marks, without_words
from paper.rows import line_of
from paper.study import chosen, points_of

EXPERIMENTS = Path(__file__).parents[2] / "experiments"

CODE = '''"""Words."""

def double(x):  # why
    """Twice x.

    # not a comment
    """
    text = "# not one either"
    return 2 * x
'''


def test_words_are_left_out_and_nothing_else():
    code = without_words(CODE)
    assert code == 'def double(x):\n    text = "# not one either"\n    return 2 * x'
    assert without_words(CODE.replace("why", "because").replace("Twice", "Two times")) == code
    assert without_words(CODE.replace("2 * x", "3 * x")) != code
    assert without_words(CODE.replace("not one either", "other")) != code


def test_code_that_shares_its_line_with_words_is_code():
    hidden = 'def f(x):\n    "Words."; x = 2 * x\n    return x\n'
    assert "2 * x" in without_words(hidden)
    assert without_words(hidden.replace("2 * x", "3 * x")) != without_words(hidden)
    behind = 'def f(x):\n    """Words.\n    More."""; x = 2 * x\n    return x\n'
    assert "2 * x" in without_words(behind)


@pytest.fixture(scope="module")
def points(committed):
    return {point.key: point for point in committed.points}


@pytest.fixture
def touched(monkeypatch):
    """Pretend that a file of the package has other code."""

    def touch(name):
        before = origin.code_of
        monkeypatch.setattr(
            origin, "code_of", lambda path: "other" if path.as_posix().endswith(name) else before(path)
        )

    return touch


@pytest.mark.parametrize(
    ("file", "part", "key"),
    [
        ("rounds/user_fedavg.py", "training", "certified-user-epsilon/mnist/noise_multiplier=1.8"),
        ("accounting/epsilon.py", "certificates", "certified-user-epsilon/mnist/noise_multiplier=1.8"),
        ("robustness/outcome.py", "scoring", "certified-user-epsilon/mnist/noise_multiplier=1.8"),
        ("mechanisms/user_fedavg.py", "published values", "privacy-budgets/all"),
        ("paper/published.py", "published values", "privacy-budgets/all"),
        ("attacks/perturbed.py", "attack min-max", "robust-accuracy/defences-updates/rule=krum"),
        ("attacks/attack.py", "attacking", "robust-accuracy/defences-updates/rule=krum"),
        ("aggregation/krum.py", "rule krum", "robust-accuracy/defences-updates/rule=krum"),
        ("paper/computed.py", "measuring", "privacy-budgets/all"),
        ("paper/measures.py", "measuring", "robust-accuracy/defences-updates/rule=krum"),
    ],
)
def test_code_that_decides_a_row_is_part_of_it(points, touched, file, part, key):
    before = decided_by(points[key])
    touched(file)
    assert part in {name for name, value in decided_by(points[key]).items() if value != before[name]}


@pytest.mark.parametrize(
    ("file", "key"),
    [
        ("attacks/perturbed.py", "robust-accuracy/defences-data/rule=krum"),
        ("attacks/perturbed.py", "certified-user-epsilon/mnist/noise_multiplier=1.8"),
        ("aggregation/krum.py", "robust-accuracy/defences-updates/rule=mean"),
        ("report/page.py", "certified-user-epsilon/mnist/noise_multiplier=1.8"),
        ("certificates/api.py", "certified-user-epsilon/cifar-heads-no-noise/seed=0"),
    ],
)
def test_code_that_does_not_decide_a_row_is_no_part_of_it(points, touched, file, key):
    before = decided_by(points[key])
    touched(file)
    assert decided_by(points[key]) == before


def test_defaults_are_part_of_a_row(points):
    point = points["certified-user-epsilon/mnist/noise_multiplier=1.8"]
    assert "certificate" not in point.config.model_fields_set
    other = replace(
        point,
        config=point.config.model_copy(
            update={"certificate": point.config.certificate.model_copy(update={"max_size": 7})}
        ),
    )
    other.config.model_fields_set.discard("certificate")  # as if the default were another
    assert other.settings_sha256 == point.settings_sha256
    assert decided_by(other)["settings and defaults"] != decided_by(point)["settings and defaults"]


def test_a_row_holds_its_commit_its_code_and_torch(measured, experiments):
    [study] = load_studies(experiments)
    for point in points_of(study, experiments):
        row = measured.find(point)
        assert row.decided == decided_by(point)
        assert row.torch
        assert stale(row, point) == []
        assert stale(replace(row, decided=row.decided | {"measuring": "other"}), point) == [
            "measuring changed"
        ]
        assert stale(replace(row, settings_sha256="other"), point) == ["its settings have changed"]
        assert stale(row, None) == ["no study asks for it any more"]


def test_published_values_decide_what_is_computed_from_them(points, tmp_path, monkeypatch):
    point = points["privacy-budgets/all"]
    before = decided_by(point)
    (tmp_path / "experiments").mkdir()
    values = json.loads((EXPERIMENTS / "paper_values.json").read_text()) | {"other": 1}
    (tmp_path / "experiments" / "paper_values.json").write_text(json.dumps(values))
    (tmp_path / "paper").symlink_to(origin.ROOT / "paper")
    monkeypatch.setattr(origin, "ROOT", tmp_path)
    after = decided_by(point)
    assert {name for name in before if before[name] != after[name]} == {"published values"}


def test_a_row_holds_a_hash_of_its_data(measured, experiments):
    found = {row.key: row.data for row in measured}
    assert found["small/attacked"] == found["small/certified/noise_multiplier=1.0"]
    assert found["small/rounds"] is None
    [study] = load_studies(experiments)
    point = next(point for point in points_of(study, experiments) if point.key == "small/attacked")
    task = SharedWork().task(point.config, "cpu")
    assert origin.data_of(task) == found["small/attacked"]
    labels = task.federation.labels.copy()
    labels[0] = 1 - labels[0]
    other = replace(task, federation=replace(task.federation, labels=labels))
    assert origin.data_of(other) != origin.data_of(task) != origin.data_of(replace(task, seed=9))


def test_code_that_changes_while_it_is_measured_is_refused(experiments, tmp_path, monkeypatch):
    monkeypatch.setattr(run, "sources", lambda: "other")
    with pytest.raises(ValueError, match="small/sizes: code was changed while it was measured"):
        reproduce(chosen(load_studies(experiments), "small/sizes"), experiments, tmp_path)
    assert not Rows(tmp_path / "rows.jsonl").under("small")


def test_rows_of_before_do_not_hold_what_came_later_and_are_not_marked_for_it(measured, experiments):
    [study] = load_studies(experiments)
    for point in points_of(study, experiments):
        row = measured.find(point)
        held = {name: sha for name, sha in row.decided.items() if name not in ("scoring", "published values")}
        assert held != row.decided
        assert stale(replace(row, decided=held), point) == []


def test_rows_that_no_study_asks_for_decide_nothing_and_are_counted(measured, experiments):
    studies = load_studies(experiments)
    stray = replace(next(iter(measured)), key="small/certified/noise_multiplier=7")
    text = page(studies, experiments, fake_rows([*measured, stray]))
    assert "Rows of no study: 1; they are not looked at." in text
    assert without_marks(text) == without_marks(page(studies, experiments, measured))


def test_a_row_of_other_replicas_or_values_is_no_row_of_the_point(measured, experiments):
    [study] = load_studies(experiments)
    point = points_of(study, experiments)[0]
    row = measured.find(point)
    for other in (replace(row, replicas=7), replace(row, values={"a": "b"})):
        assert fake_rows([other]).find(point) is None
    with pytest.raises(ValueError, match=r"seconds, wall and jobs of .* must not be negative"):
        replace(row, wall=-3000.0)


def test_a_rehearsal_says_so_and_is_judged_at_its_own_scale(experiments, tmp_path):
    studies = load_studies(experiments)
    rows = reproduce(chosen(studies, "small/certified"), experiments, tmp_path, scale=0.05)
    text = page(studies, experiments, rows, 0.05)
    assert "**Measured at scale 0.05, cut down to what takes minutes: its numbers mean nothing.**" in text
    assert "Settings or code of 0 rows have changed since" in text
    assert "Measured at scale" not in page(studies, experiments, rows)


@pytest.mark.parametrize("text", ["nonsense", '[["a", "b"]]', '[["training", ["x"], "y"]]', "{}"])
def test_a_file_of_steps_that_is_none_is_named(text, tmp_path):
    (tmp_path / "same.json").write_text(text)
    with pytest.raises(ValueError, match=r"same\.json is no list of \[part, hash before, hash after\]"):
        same.known_steps.__wrapped__(tmp_path / "same.json")


def test_two_files_of_rows_are_needed(tmp_path):
    for names in ((), ("nowhere",), ("nowhere", str(tmp_path / "nothing"))):
        with pytest.raises(SystemExit, match="two files of rows are needed: python -m paper BEFORE AFTER"):
            same.main(*names)


def test_what_rows_of_before_do_not_hold_and_what_is_no_number_is_no_change(measured):
    row = next(one for one in measured if one.key == "small/attacked")
    [first, *rest] = row.result.attacks
    ended = replace(row, result=replace(row.result, attacks=(replace(first, cost=math.nan), *rest)))
    old = replace(ended, data=None, decided=row.decided | {"training": "old"})
    assert same.steps_between([old], [ended]) == {("training", "old", row.decided["training"]): True}


def test_only_shares_may_move_by_an_input():
    assert same._alike({"accuracy": 0.5}, {"accuracy": 0.502})
    for name in ("delta", "epsilon", "lower", "paper_largest"):
        assert same._alike({name: 0.5}, {name: 0.50004})
        assert not same._alike({name: 0.5}, {name: 0.502})


def test_rows_whose_code_has_changed_are_marked_and_measured_again_on_demand(measured, experiments, tmp_path):
    studies = load_studies(experiments)
    rows = [replace(row, decided=row.decided | {"measuring": "old"}) for row in measured]
    rows[1] = replace(rows[1], decided={})
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, rows)))
    kept = reproduce(studies, experiments, tmp_path)
    assert [row.decided for row in kept] == [row.decided for row in rows]
    text = page(studies, experiments, kept)
    assert "Settings or code of 8 rows have changed since" in text
    assert "**changed since, 2 of 3:** measuring changed; older than the record of its code" in text
    again = reproduce(studies, experiments, tmp_path, again=True)
    assert [row.decided.get("measuring") == "old" for row in again] == [False] * 9
    assert all(row.decided for row in again)  # also where nothing is known against a row
    assert "Settings or code of 0 rows have changed" in page(studies, experiments, again)


def test_a_change_that_a_rehearsal_shows_to_change_no_number_is_no_mark(
    measured, experiments, tmp_path, monkeypatch
):
    now = next(iter(measured)).decided["measuring"]
    rows = [row for row in measured if row.decided["measuring"] == now]
    old = [replace(row, decided=row.decided | {"measuring": "old"}, wall=9.0, commit="x") for row in rows]
    step = ("measuring", "old", now)
    assert same.steps_between(old, rows) == {step: True}
    slower = replace(old[0], result=replace(old[0].result, certify_seconds=9.0), seconds=9.0)
    assert same.steps_between([slower, *old[1:]], rows) == {step: True}
    other = replace(old[0], result=replace(old[0].result, accuracy=0.123))
    assert same.steps_between([other, *old[1:]], rows) == {step: False}  # one number is enough
    for moved, good in ((1 / 500, True), (2 / 500, False)):  # an input on the border may change sides
        near = replace(old[0], result=replace(old[0].result, accuracy=old[0].result.accuracy - moved))
        assert same.steps_between([near, *old[1:]], rows) == {step: good}
    assert same.steps_between(old, rows[1:]) == {step: False}  # and so is a row that is not there any more
    monkeypatch.setattr(same, "FILE", tmp_path / "same.json")
    read = same.known_steps.__wrapped__
    monkeypatch.setattr(same, "known_steps", lambda: read(same.FILE))
    for written, known in ((old, [list(step)]), ([other, *old[1:]], []), (old, [list(step)])):
        for name, lines in (("before", written), ("after", rows)):
            (tmp_path / name).write_text("".join(map(line_of, lines)))
        same.main(str(tmp_path / "before"), str(tmp_path / "after"))
        assert json.loads(same.FILE.read_text()) == known  # what is contradicted later is struck
    steps = read(same.FILE)
    monkeypatch.setattr(same, "known_steps", lambda: {**steps, ("measuring", "older"): frozenset({"old"})})
    points = {
        point.key: point for study in load_studies(experiments) for point in points_of(study, experiments)
    }
    for was, expected in (("old", []), ("older", []), ("oldest", ["measuring changed"])):
        row = replace(rows[0], decided=rows[0].decided | {"measuring": was})
        assert stale(row, points[row.key]) == expected


def test_older_rows_are_judged_by_what_is_known_to_have_changed(measured_row, attacked, points):
    point = points["robust-accuracy/defences-updates/rule=krum"]
    [change] = CHANGES
    for name, expected in (("min-max", [change.what]), ("label-flip", [])):
        row = measured_row(attacked({"attack": name, "adversaries": 2}), key=point.key)
        assert stale(replace(row, settings_sha256=point.settings_sha256), point) == expected


def test_the_commit_is_that_of_the_checkout_or_what_a_copy_was_told(monkeypatch):
    monkeypatch.delenv("FEDPROOF_COMMIT", raising=False)
    monkeypatch.setattr(origin, "_git", lambda *arguments: {"rev-parse": "abc"}.get(arguments[0], ""))
    assert origin.commit() == "abc"
    monkeypatch.setattr(origin, "_git", lambda *arguments: "abc")
    assert origin.commit() == "abc+"
    monkeypatch.setenv("FEDPROOF_COMMIT", "0123456789" * 4)
    assert origin.commit() == "0123456789" * 4
    monkeypatch.setenv("FEDPROOF_COMMIT", "anything")
    with pytest.raises(ValueError, match="FEDPROOF_COMMIT = 'anything' must be 40 hexadecimal digits"):
        origin.commit()
    monkeypatch.delenv("FEDPROOF_COMMIT")
    monkeypatch.setattr(origin, "_git", lambda *arguments: None)
    assert origin.commit() is None


def test_every_row_on_the_page_is_judged(committed, points):
    judged = Provenance(points=points)
    changed = sum(bool(judged.reasons(row)) for row in committed.rows if row.key in points)
    assert f"Settings or code of {changed} rows have changed since" in committed.text


def test_a_changed_engine_changes_nothing_but_the_marks(measured, experiments):
    studies, old = load_studies(experiments), [replace(row, decided={"training": "old"}) for row in measured]
    before, after = (page(studies, experiments, fake_rows(rows)) for rows in (list(measured), old))
    assert before != after
    assert without_marks(before) == without_marks(after)
    assert without_marks(before).count("<sub>") == before.count("<sub>")
    other = [replace(old[0], result=replace(old[0].result, accuracy=0.123)), *old[1:]]
    assert without_marks(page(studies, experiments, fake_rows(other))) != without_marks(after)


def fake_rows(rows):
    found = Rows(Path("nowhere"))
    found._rows = {row.key: row for row in rows}
    return found
