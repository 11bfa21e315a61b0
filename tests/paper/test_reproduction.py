"""Studies become rows, rows become the page: nothing is measured twice, no number of ours is typed in."""

import json
from dataclasses import replace
from itertools import count, groupby
from pathlib import Path
from types import SimpleNamespace

import pytest

from fedproof.accounting import account
from fedproof.accounting.epsilon import dopamine_epsilon, paper_epsilon
from fedproof.mechanisms import FixedSize, InstanceFedSGD, Poisson, UserFedAvg
from paper import Rows, load_studies, reproduce, run, write_page
from paper.again import check_rows
from paper.clean import compare_clean
from paper.computed import delta_of_two
from paper.conclusions import statements, wrong_budgets
from paper.page import page
from paper.published import Published
from paper.results import BudgetCell, Budgets, Trained
from paper.rows import device_seconds, line_of
from paper.study import chosen, points_of

EXPERIMENTS = Path(__file__).parents[2] / "experiments"


def test_every_point_has_a_row_with_hash_hardware_and_seconds(measured, experiments):
    [study] = load_studies(experiments)
    points = points_of(study, experiments)
    assert len(points) == 9
    for point in points:
        row = measured.find(point)
        assert row.settings_sha256 == point.settings_sha256
        assert row.seconds >= 0
        assert row.hardware.startswith("CPU")


def test_a_second_reproduction_measures_nothing(measured, experiments):
    before = measured.path.read_text()
    told = []
    reproduce(
        load_studies(experiments),
        experiments,
        measured.path.parent,
        progress=lambda stage, done, total: told.append((stage, done)),
    )
    assert measured.path.read_text() == before
    assert told == [("reproduced", 9)]


def test_a_half_written_last_line_is_measured_again(measured, experiments, tmp_path):
    lines = measured.path.read_text().split("\n")
    (tmp_path / "rows.jsonl").write_text("\n".join(lines[:-2]) + "\n" + lines[-2][:40])
    found = reproduce(load_studies(experiments), experiments, tmp_path)
    assert {row.key for row in found.under("small")} == {row.key for row in measured.under("small")}
    assert len(Rows(tmp_path / "rows.jsonl").under("small")) == 9


def test_jobs_measure_the_same_in_the_same_order(measured, experiments, tmp_path, monkeypatch):
    clock = count()
    monkeypatch.setattr("paper.run.time", SimpleNamespace(perf_counter=lambda: float(next(clock))))
    found = reproduce(load_studies(experiments), experiments, tmp_path, jobs=2)
    # Side by side or not, no second is counted twice and none is left out.
    assert device_seconds(found.under("small")) == next(clock) - 1 >= 9
    alone, beside = measured.under("small"), found.under("small")
    assert [row.key for row in beside] == [row.key for row in alone]
    for one, other in zip(alone, beside, strict=True):
        assert type(one.result) is type(other.result)
        if isinstance(one.result, Trained):
            assert one.result.accuracy == pytest.approx(other.result.accuracy, abs=1e-6)
        assert other.jobs == (1 if other.key == "small/seconds" else 2)


def test_points_that_share_first_updates_are_neighbours_and_long_ones_begin():
    studies = load_studies(EXPERIMENTS)
    points = [point for study in studies for point in points_of(study, EXPERIMENTS, 0.02)]
    found = [point for point in run._arranged(points) if point.config is not None]
    assert {point.key for point in found} == {point.key for point in points if point.config is not None}
    shared = [
        (config.data, config.model, config.mechanism.local_training, config.ensemble.seed)
        for config in (point.config for point in found)
    ]
    groups = [repr(each) for each, _ in groupby(shared)]
    assert len(groups) == len(set(groups)) < len(found) / 4
    assert found[0].key.startswith("ten-classes/cifar-certified")
    assert found[-1].config.data.name == "mnist"


def test_jobs_below_one_are_refused(experiments, tmp_path):
    with pytest.raises(ValueError, match="jobs = 0 must be"):
        reproduce(load_studies(experiments), experiments, tmp_path, jobs=0)


@pytest.mark.parametrize(
    "again",
    [reproduce, lambda *names, device: check_rows(*names, count=1, device=device)],
    ids=["new", "check"],
)
def test_a_device_that_is_not_there_is_refused_before_a_row_is_looked_at(experiments, tmp_path, again):
    with pytest.raises(ValueError, match="device = 'gpu' must be cpu, cuda or cuda:N"):
        again(load_studies(experiments), experiments, tmp_path / "new", device="gpu")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("wrong", ["not json", '{"key": "a"}'])
def test_a_wrong_line_in_the_middle_is_named(measured_row, tmp_path, wrong):
    first, last = (line_of(measured_row(Budgets(rows=()), key=key)) for key in "ab")
    (tmp_path / "rows.jsonl").write_text(f"{first}{wrong}\n{last}")
    with pytest.raises(ValueError, match=r"rows\.jsonl:2: not a row"):
        Rows(tmp_path / "rows.jsonl")


def test_changed_settings_are_measured_again(measured, experiments):
    [study] = load_studies(experiments)
    point = points_of(study, experiments, scale=0.5)[0]
    assert point.config.ensemble.replicas == 20
    assert measured.find(point) is None


def test_the_scale_multiplies_replicas_and_thins_lists():
    studies = {study.name: study for study in load_studies(EXPERIMENTS)}
    study = studies["certified-user-epsilon"]
    full, small = (points_of(study, EXPERIMENTS, scale) for scale in (1.0, 0.02))
    assert len(small) < len(full)
    assert {point.config.ensemble.replicas for point in small} == {2, 8}
    assert {point.key for point in small} <= {point.key for point in full}
    assert {point.panel.name for point in full} - {point.panel.name for point in small} == {
        "mnist-seeds",
        "cifar-seeds",
    }


def test_certified_rows_certify_the_same_scores_several_ways(measured):
    row = next(row for row in measured.under("small/certified") if "baseline" not in row.values)
    ways = {(one.method, one.relation, one.failure_probability) for one in row.result.curves}
    assert ways == {
        (method, relation, chance)
        for method, relation in (("paper", None), ("mean", "join"), ("mean", "replace"))
        for chance in (None, 0.01)
    } | {("margin", "join", 0.01), ("margin", "replace", 0.01)}
    for one in row.result.curves:
        assert list(one.accuracy) == sorted(one.accuracy, reverse=True)


def test_the_page_shows_every_panel_and_its_figures(measured, experiments, tmp_path):
    studies = load_studies(experiments)
    text = write_page(studies, experiments, measured, tmp_path).read_text()
    for panel in studies[0].panel:
        if panel.measure in ("certified", "attacked", "costs", "needed", "dopamine"):
            drawing = f"images/reproduction/small-{panel.name}.svg"
            assert f"]({drawing})" in text
            assert (tmp_path / drawing).stat().st_size > 1000
    assert "0.87" in text  # the published ε of InsDP-FedSGD


def test_numbers_of_the_page_come_from_the_rows(measured, experiments, tmp_path):
    changed = json.loads(measured.path.read_text().split("\n")[0])
    changed["result"]["accuracy"] = 0.12345
    (tmp_path / "rows.jsonl").write_text(json.dumps(changed) + "\n")
    text = page(load_studies(experiments), experiments, Rows(tmp_path / "rows.jsonl"))
    assert "12.35%" in text or "12.34%" in text


def test_the_page_tells_how_much_was_trained_and_how_long_it_took(measured, experiments, tmp_path):
    rows = [replace(row, hardware="card", seconds=120.0, wall=36.0) for row in measured.under("small")]
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, rows[:7])))
    text = page(load_studies(experiments), experiments, Rows(tmp_path / "rows.jsonl"))
    assert "* **4.2 minutes** of one card for 7 of 8 points, by the clock: each row has" in text
    assert "add up to 14.0 minutes; commands that ran at once are counted twice there." in text
    own = [study.model_copy(update={"own": True}) for study in load_studies(experiments)]
    text = page(own, experiments, Rows(tmp_path / "rows.jsonl"))
    assert (
        "of one card for 7 of 8 points, 0.0 for the paper and 4.2 for studies of our own, by the clock"
        in text
    )


def test_a_panel_measured_on_two_devices_says_what_each_took(measured, experiments, tmp_path):
    rows = list(measured.under("small"))
    panel = [row for row in rows if row.key.startswith("small/certified/")]
    parts = [replace(row, hardware="card", seconds=2.0, jobs=2) for row in panel[:-1]]
    parts.append(replace(panel[-1], hardware="slow card", seconds=600.0))
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, parts)))
    text = page(load_studies(experiments), experiments, Rows(tmp_path / "rows.jsonl"))
    count = len(panel)
    assert (
        f"card, {count - 1} s ({count - 1} of {count} points); slow card, 600 s (1 of {count} points);"
        in text
    )


def test_statements_can_be_false(measured_row, tmp_path):
    cell = BudgetCell(experiment="user-mnist", sigma=1.0, rounds=1, published=2.0, paper=1.0, pld=1.0)
    row = measured_row(Budgets(rows=(cell,)), key="privacy-budgets/all")
    (tmp_path / "rows.jsonl").write_text(line_of(row))
    [found] = statements([], Rows(tmp_path / "rows.jsonl"), [], Published.read(EXPERIMENTS))
    assert not found.holds
    assert found.evidence == "0 of 1"


def test_an_unknown_study_is_refused_with_the_known_ones():
    with pytest.raises(ValueError, match="study = 'figure-1' must be all or one of certified-user-epsilon"):
        chosen(load_studies(EXPERIMENTS), "figure-1")


def test_all_data_that_are_not_there_are_named_before_anything_is_measured(tmp_path, monkeypatch):
    monkeypatch.setenv("FEDPROOF_DATA", str(tmp_path))
    studies = chosen(load_studies(EXPERIMENTS), "certified-user-epsilon")
    with pytest.raises(ValueError, match="is not there") as error:
        reproduce(studies, EXPERIMENTS, tmp_path / "out", scale=0.02)
    said = str(error.value)
    assert all(name in said for name in ("fetch mnist", "fetch cifar10", "leaf/sent140-pseudo"))
    assert not Rows(tmp_path / "out" / "rows.jsonl").under("certified-user-epsilon")


def test_a_folder_without_studies_says_what_to_do(tmp_path):
    with pytest.raises(ValueError, match="there are no studies; run this in a checkout"):
        load_studies(tmp_path)


@pytest.mark.parametrize("scale", [0, -1, 1.5])
def test_scales_that_make_no_sense_are_refused(scale, tmp_path):
    with pytest.raises(ValueError, match="must be above 0 and at most 1"):
        reproduce([], EXPERIMENTS, tmp_path, scale=scale)


# --- what is committed ----------------------------------------------------------------------------------


def test_every_point_of_every_study_is_a_valid_experiment():
    studies = load_studies(EXPERIMENTS)
    keys = [point.key for study in studies for point in points_of(study, EXPERIMENTS)]
    assert len(keys) == len(set(keys)) > 200
    names = {f"{study.name}/{panel.name}" for study in studies for panel in study.panel}
    assert {panel.rows_of for study in studies for panel in study.panel} - {None} <= names


def test_published_accuracies_are_found_by_noise_and_rounds():
    published = Published.read(EXPERIMENTS)
    assert published.find("user-mnist", 1.8, 3).accuracy == 97.42
    assert published.find("user-cifar", 0.0, 1).accuracy == 81.9
    assert published.find("user-cifar", 1.8, 1) is None
    assert published.robust_accuracy("krum", "min-max", 3) == 85.12
    assert published.robust_accuracy("user-dp eps 0.648", "label-flip", 10) == 85.85
    assert published.robust_accuracy("krum", "min-max", 4) is None
    assert len(published.budgets()) == 81


def test_both_published_budgets_of_dopamine_come_out_for_these_delta_alone():
    published = Published.read(EXPERIMENTS)
    setting = published.dopamine

    def printed(delta):
        mechanism = InstanceFedSGD(
            rounds=setting.rounds,
            noise_multiplier=setting.sigma,
            clip_norm=setting.clip_norm,
            sampling=FixedSize(cohort=10, users=setting.users),
            batch_probability=setting.batch_probability,
        )
        own, other = paper_epsilon(mechanism, delta), dopamine_epsilon(mechanism, delta)
        return {"InsDP-FedSGD": round(own, 2), "Dopamine": round(other, 2)}

    assert all(printed(delta) == setting.printed for delta in (1.551e-4, setting.delta, 1.589e-4))
    assert printed(1.549e-4) == printed(1.5e-4) == {"InsDP-FedSGD": 0.87, "Dopamine": 2.71}
    assert printed(1.592e-4) == {"InsDP-FedSGD": 0.86, "Dopamine": 2.7}


def test_committed_rows_are_compared_with_the_paper(committed):
    clean = compare_clean(committed.studies, committed.rows, Published.read(EXPERIMENTS))
    assert len(clean) > 30
    assert all(0 < one.measured <= 100 for one in clean)


def test_committed_rows_are_written_as_they_were_read():
    path = EXPERIMENTS / "results" / "rows.jsonl"
    studies = load_studies(EXPERIMENTS)
    rows = Rows(path)
    assert "".join(line_of(row) for study in studies for row in rows.under(study.name)) == path.read_text()


def test_committed_rows_are_of_todays_points_and_the_page_tells_what_is_not_trained(committed):
    rows, text = committed.rows, committed.text
    for study in committed.studies:
        points = [point for point in committed.points if point.key.startswith(f"{study.name}/")]
        assert {row.key for row in rows.under(study.name)} <= {point.key for point in points}
        missing = sum(rows.find(point) is None for point in points)
        assert (f"`{study.name}` {missing} of {len(points)}" in text) == (missing > 0)


@pytest.mark.parametrize("scale", [0.02, 0.5])
def test_a_page_can_be_made_of_every_scale(committed, scale):
    text = page(committed.studies, EXPERIMENTS, committed.rows, scale)
    assert f"**Measured at scale {scale:g}" in text
    assert "not trained yet" in text


def test_every_conclusion_is_on_the_page_with_its_verdict(committed):
    rows, published = committed.rows, Published.read(EXPERIMENTS)
    clean = compare_clean(committed.studies, rows, published)
    found = statements(committed.studies, rows, clean, published)
    assert len({one.claim for one in found}) == len(found) > 60
    for one in found:
        verdict = "yes" if one.verdict == "yes" else f"**{one.verdict}**"
        verdict += ", by the formula" * one.follows
        evidence = "; ".join(filter(None, (one.untested, one.evidence, one.note)))
        assert f"| {one.claim} | {one.whose} | {verdict} | {evidence} |" in committed.text
    # What the paper's theorems say must hold whatever was trained; what they do not say need not.
    theorems = ("below our certified lower bound", "is below what every attack achieves", "bound falls as k")
    assert all(one.holds for one in found for said in theorems if said in one.claim)
    assert not all(one.holds for one in found)


def test_points_with_the_same_settings_are_trained_once(experiments, tmp_path):
    folder = tmp_path / "experiments"
    (folder / "paper").mkdir(parents=True)
    for name in ("tiny.toml", "paper_values.json"):
        (folder / name).write_text((experiments / name).read_text())
    panel = '[[panel]]\nname = "{}"\ntitle = "T"\nmeasure = "accuracy"\nexperiment = "tiny"\n'
    head = 'title = "Twins"\norder = 1\nshows = "one training"\n'
    (folder / "paper" / "twins.toml").write_text(head + panel.format("one") + panel.format("other"))
    rows = reproduce(load_studies(folder), folder, tmp_path / "out")
    one, other = (rows.under(f"twins/{name}")[0] for name in ("one", "other"))
    assert other == replace(one, key="twins/other", wall=0.0)
    later = reproduce(chosen(load_studies(folder), "twins/one"), folder, tmp_path / "later").under("twins")
    [one, other] = reproduce(load_studies(folder), folder, tmp_path / "later").under("twins")
    assert later == [one]
    assert other == replace(one, key="twins/other", wall=0.0)


def test_one_panel_of_a_study_can_be_chosen():
    studies = load_studies(EXPERIMENTS)
    [study] = chosen(studies, "ten-classes/mnist-bkd")
    assert [panel.name for panel in study.panel] == ["mnist-bkd"]
    with pytest.raises(ValueError, match="panel = 'none' of ten-classes must be one of mnist-certified"):
        chosen(studies, "ten-classes/none")


@pytest.mark.parametrize(("chance", "noise", "rounds"), [(0.1, 1.8, 3), (0.2, 3.0, 1), (0.1, 0.7, 5)])
def test_two_federations_show_nearly_all_that_fixed_cohorts_spend(chance, noise, rounds):
    users = 200
    mechanism = UserFedAvg(
        rounds=rounds, noise_multiplier=noise, sampling=FixedSize(cohort=round(chance * users), users=users)
    )
    delta = 0.0029
    spent = account(mechanism, delta, ["pld"])["pld"]  # for one user replaced: an upper bound
    assert 0.85 * delta < delta_of_two(chance, noise, rounds, spent) <= delta  # the best pair may be another
    assert delta_of_two(chance, noise, rounds, 0.9 * spent) > delta
    assert delta_of_two(chance, noise, rounds, 60.0) == 0.0  # below what sums by Fourier may be off
    # Of Poisson cohorts and a user added or removed, which is what is printed, less is spent.
    assert paper_epsilon(replace(mechanism, sampling=Poisson(probability=chance)), delta) < spent


def test_published_budgets_that_are_not_met_are_told_and_marked(committed):
    published = Published.read(EXPERIMENTS)
    [row] = committed.rows.under("privacy-budgets")
    false = wrong_budgets(row.result, published)
    assert {(one.experiment, one.sigma) for one in false} > {("user-mnist", 1.8), ("user-cifar", 3.0)}
    assert not any(one.experiment.startswith("instance") for one in false)
    for one in row.result.rows:
        if one.replaced is not None:  # both bounds say the same of each
            assert (one in false) == (one.replaced > one.published)
            assert f"| {one.replaced:g} | {'**' * (one in false)}{one.shown:.3g}" in committed.text
