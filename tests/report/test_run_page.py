"""The page of a run: its numbers are those of its files, whatever is missing."""

import csv
import json
import re
import shutil
import time
from dataclasses import replace

import numpy as np
import pytest

from fedproof.certificates import dumps, loads
from fedproof.folder import read_config
from fedproof.report.planner import improvements
from fedproof.report.run_data import accuracy_chart, class_rows, read_run, sizes_chart
from fedproof.report.run_page import body, write_report
from fedproof.report.sections import as_images, choices, gallery, to_bytes
from fedproof.report.words import chosen_size, percent
from fedproof.summary import check_agrees, read_summary


def test_a_sound_run(make_run):
    page = write_report(make_run()).read_text()
    summary = read_summary(make_run())
    assert f"{100 * summary.accuracy:.1f}\u00a0%" in page
    assert "Every condition of the theorem is met" in page
    assert page.count("<img") >= 16
    assert "fedproof verify certificate.json" in page
    assert "one user added or removed, δ = " in page
    assert not re.search(r"https?://", page.replace("http://www.w3.org/2000/svg", ""))


def test_a_heuristic_run_names_condition_and_fix(make_run):
    page = write_report(make_run("mechanism.clip=median")).read_text()
    assert "Heuristic, not a proof" in page
    assert "median of the cohort" in page
    assert "mechanism.clip = &quot;quantile&quot;" in page


def test_a_run_without_certificate(make_run):
    page = write_report(make_run("mechanism.kind=fedavg")).read_text()
    assert "No certificate" in page
    assert "nothing is certified" in page


@pytest.mark.parametrize(
    "changes",
    [
        ("threat.relation=join",),
        ("certificate.method=margin",),
        ("mechanism.sampling=fixed", "certificate.method=paper", "certificate.bound=hoeffding"),
        ("data.classes=[0,1,2]", "certificate.method=vote", "certificate.bound=clopper-pearson"),
    ],
    ids=str,
)
def test_every_kind_of_run_has_a_page(make_run, changes):
    page = write_report(make_run(*changes)).read_text()
    assert 'data-figure="certified-accuracy"' in page


@pytest.mark.parametrize("method", ["margin", "mean"])
def test_sizes_by_means_are_told_from_those_by_margins(make_run, method):
    page = write_report(make_run(f"certificate.method={method}")).read_text()
    assert ("mean confidences alone" in page) == (method == "margin")
    assert ("a certificate by margins may be larger" in page) == (method == "margin")


def test_curves_equal_the_certificate_and_the_metrics(make_run):
    run = read_run(make_run(), pictures=False)
    chart = accuracy_chart(run.certificate, run.curves)
    own = chart.series[0]
    assert own.ys[:-1] == run.certificate.curve
    assert own.ys[-1] == 0.0
    with (make_run() / "metrics.csv").open(newline="") as file:
        values = {(float(row["size"]), float(row["certified_accuracy"])) for row in csv.DictReader(file)}
    for series in chart.series[1:]:
        assert set(zip(series.xs, series.ys, strict=True)) <= values
    assert len(chart.series) == 6  # six curves are compared, one of them drawn as the certificate's own


def test_no_zero_is_claimed_beyond_what_was_examined(make_run):
    run = read_run(make_run("certificate.max_size=3"), pictures=False)
    own = accuracy_chart(run.certificate, run.curves).series[0]
    assert own.xs[-1] == 3
    assert own.ys[-1] > 0


def test_improvements_are_those_of_the_metrics(make_run):
    run = read_run(make_run(), pictures=False)
    size = chosen_size(run.summary.certified_accuracy)
    exact = next(
        curve.at(size)
        for curve in run.curves
        if (curve.relation, curve.failure_probability) == ("replace", None)
    )
    assert any(f"More replicas: at most {percent(exact)}" in text for text in improvements(run, None))
    margin = read_run(make_run("certificate.method=margin"), pictures=False)
    assert not any("at most" in text for text in improvements(margin, None))


def test_bars_count_every_decided_input(make_run):
    run = read_run(make_run(), pictures=False)
    bars = sizes_chart(run.certificate).series
    decided = sum(size is not None for size in run.certificate.certified_size)
    assert sum(sum(series.ys) for series in bars) == decided


def test_class_rows_add_up(make_run):
    certificate = loads((make_run() / "certificate.json").read_bytes())
    rows = class_rows(certificate, ("zero", "one"), size=3)
    assert sum(row.inputs for row in rows) == certificate.num_inputs
    whole = sum(row.certified * row.inputs for row in rows) / certificate.num_inputs
    assert whole == pytest.approx(certificate.certified_accuracy([3])[0])


def test_the_gallery_shows_the_extremes(make_run):
    certificate = loads((make_run() / "certificate.json").read_bytes())
    shown = choices(certificate, each=3)
    sizes = [size for size in certificate.certified_size if size is not None]
    assert [certificate.certified_size[i] for i in shown["Hardest to change"]] == sorted(sizes)[::-1][:3]
    assert [certificate.certified_size[i] for i in shown["Easiest to change"]] == sorted(sizes)[:3]


def test_nothing_is_hardest_where_all_sizes_are_equal(make_run):
    certificate = loads((make_run() / "certificate.json").read_bytes())
    count = certificate.num_inputs
    equal = replace(certificate, certified_size=(2,) * count, prediction=(0,) * count)
    assert choices(equal) == {}
    some = replace(
        equal, certified_size=(None,) + (2,) * (count - 1), prediction=(None,) + (0,) * (count - 1)
    )
    assert list(choices(some)) == ["Abstained on"]
    assert gallery(replace(read_run(make_run()), certificate=equal)) is None


def test_a_report_without_its_data_has_no_gallery(make_run):
    run = replace(read_run(make_run()), federation=None)
    assert gallery(run) is None
    assert "Inputs to look at" not in body(run)


def test_other_data_are_not_shown(make_run):
    federation = read_run(make_run()).federation
    other = replace(federation, test_labels=1 - federation.test_labels)
    assert read_run(make_run(), other).federation is None


def test_a_users_function_is_not_called(make_run, tmp_path):
    folder = shutil.copytree(make_run(), tmp_path / "run")
    config = (folder / "config.toml").read_text().replace('name = "digits"', 'name = "os:getcwd"')
    (folder / "config.toml").write_text(config)
    with pytest.raises(
        ValueError, match=r"config\.toml has the digest \w+…, .*certificate\.json was made by"
    ):
        read_run(folder)
    named = replace(
        loads((folder / "certificate.json").read_bytes()), config_sha256=read_config(folder).fingerprint()
    )
    (folder / "certificate.json").write_text(dumps(named))
    assert read_run(folder).federation is None


def test_what_is_no_finished_run_is_named(make_run, tmp_path):
    with pytest.raises(ValueError, match=r"config\.toml"):
        write_report(tmp_path)
    (tmp_path / "config.toml").write_bytes((make_run() / "config.toml").read_bytes())
    with pytest.raises(ValueError, match=r"there is no scores\.npy; finish the run with --resume"):
        write_report(tmp_path)


FORGED = {
    "sound": {"sound": True},
    "unmet": {"unmet": []},
    "certified_accuracy": {"certified_accuracy": {"0": 0.99, "30": 0.99}},
    "certified_size": {"certified_size": {"median": 29, "max": 29, "abstained": 0}},
    "failure_probability": {"failure_probability": 1e-9},
    "method": {"method": "exact"},
    "bound": {"bound": None},
    "simultaneous": {"simultaneous": True},
    "threat": {"threat": {"unit": "instance", "relation": "replace"}},
    "inputs": {"inputs": 10_000},
    "replicas": {"replicas": 100_000},
    "privacy": {"privacy": []},
}
FORGED_PRIVACY = {"epsilon": 0.001, "delta": 0.5, "unmet": [], "relation": "replace", "covers": "sum"}


@pytest.mark.parametrize("name", FORGED)
def test_a_summary_that_claims_more_than_its_certificate_is_compared_with_nothing(make_run, tmp_path, name):
    folder = shutil.copytree(make_run("mechanism.clip=median"), tmp_path / "run")
    document = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(json.dumps(document | FORGED[name]))
    certificate = loads((folder / "certificate.json").read_bytes())
    with pytest.raises(ValueError, match=rf"summary\.json: {name}: certificate\.json says otherwise"):
        check_agrees(read_summary(folder), certificate, folder)


def test_a_page_reads_nothing_that_does_not_follow_from_the_scores(make_run, tmp_path):
    folder = shutil.copytree(make_run(), tmp_path / "run")
    before = write_report(folder).read_bytes()
    summary = json.loads((folder / "summary.json").read_text()) | {"users": 6_000_000, "accuracy": 1.0}
    (folder / "summary.json").write_text(json.dumps(summary))
    rows = (folder / "metrics.csv").read_text().splitlines()
    (folder / "metrics.csv").write_text(
        "\n".join([rows[0], *(f"{row.rpartition(',')[0]},1.0" for row in rows[1:])])
    )
    assert write_report(folder).read_bytes() == before
    for name in ("summary.json", "metrics.csv"):
        (folder / name).unlink()
    assert write_report(folder).read_bytes() == before


def test_what_the_run_took_stands_on_the_private_page_alone(make_run):
    assert "What it took" not in write_report(make_run()).read_text()
    private = write_report(make_run(), private=True).read_text()
    assert "What it took" in private
    assert "must not be published" in private.replace("\n", " ")


def test_nothing_is_certified_without_a_certificate(make_run, tmp_path):
    folder = shutil.copytree(make_run(), tmp_path / "run")
    (folder / "certificate.json").unlink()
    page = write_report(folder).read_text()
    assert "No certificate" in page
    assert "nothing is certified" in page


DAMAGED = [
    ("private/rounds.csv", "round,norm\n1,x\n", "row 1: norm = 'x' must be a number"),
    ("private/rounds.csv", "round,norm\n1\n", "row 1 must have as many columns as the first line names"),
]


@pytest.mark.parametrize(("name", "content", "message"), DAMAGED)
def test_a_damaged_table_is_named_in_one_line(make_run, tmp_path, name, content, message):
    folder = shutil.copytree(make_run(), tmp_path / "run")
    (folder / name).write_text(content)
    with pytest.raises(ValueError, match=rf"{name}: {message}"):
        write_report(folder, private=True)


@pytest.mark.parametrize(
    "change", [np.ravel, lambda a: a[None], lambda a: a[..., :-1], lambda a: a.astype("S4")]
)
def test_scores_of_another_shape_are_refused(make_run, tmp_path, change):
    folder = shutil.copytree(make_run("certificate.method=margin"), tmp_path / "run")
    np.save(folder / "scores.npy", change(np.load(folder / "scores.npy")))
    with pytest.raises(ValueError, match=r"certificate\.json: scores"):
        write_report(folder)


@pytest.mark.parametrize("name", FORGED_PRIVACY)
@pytest.mark.parametrize("place", range(5))
def test_no_epsilon_can_be_made_smaller_or_be_without_its_conditions(make_run, tmp_path, name, place):
    folder = shutil.copytree(make_run("mechanism.clip=median"), tmp_path / "run")
    document = json.loads((folder / "summary.json").read_text())
    assert len(document["privacy"]) == 5  # of one model by three accountants, of all by two
    document["privacy"][place][name] = FORGED_PRIVACY[name]
    (folder / "summary.json").write_text(json.dumps(document))
    certificate = loads((folder / "certificate.json").read_bytes())
    with pytest.raises(ValueError, match=r"summary\.json: privacy: certificate\.json says otherwise"):
        check_agrees(read_summary(folder), certificate, folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"epsilon": -1.0}, "epsilon = -1.0 must be"),
        ({"delta": None}, "privacy.0.delta: "),
        ({"unmet": [{"code": "nothing to see", "arguments": {}}]}, "is not in the catalogue"),
    ],
)
def test_an_epsilon_is_whole_or_not_at_all(make_run, tmp_path, change, message):
    document = json.loads((make_run() / "summary.json").read_text())
    document["privacy"][0] |= change
    (tmp_path / "summary.json").write_text(json.dumps(document))
    with pytest.raises(ValueError, match=rf"summary\.json: .*{message}"):
        read_summary(tmp_path)


@pytest.mark.parametrize(
    ("shape", "name", "expected"),
    [
        ((2, 64), "digits", (2, 8, 8)),
        ((2, 64), "mine:data", None),
        ((2, 784), "x", (2, 28, 28)),
        ((2, 1, 28, 28), "mnist", (2, 28, 28)),
        ((2, 3, 32, 32), "cifar10", (2, 32, 32, 3)),
        ((2, 32, 32, 3), "x", (2, 32, 32, 3)),
        ((2, 5), "x", None),
    ],
)
def test_what_counts_as_an_image(shape, name, expected):
    images = as_images(np.zeros(shape, dtype=np.float32), name)
    assert (None if images is None else images.shape) == expected


def test_pixels_fill_the_range():
    pixels = to_bytes(np.array([[-1.0, 0.0], [0.5, 1.0]]))
    assert pixels.min() == 0
    assert pixels.max() == 255


def test_user_supplied_text_is_never_markup(make_run, hostile_run, hostile):
    page = body(hostile_run(make_run()))
    assert page.count(hostile.replace("<", "&lt;").replace(">", "&gt;").replace("'", "&#x27;")) > 10
    assert "<script>" not in page
    assert "<img" not in page
    scripts = re.findall(r"<script[^>]*>", page)
    assert set(scripts) == {'<script type="application/json">'}


def test_ten_thousand_inputs_are_quick_and_small(large_run):
    folder, ended = large_run
    start = time.process_time()  # of this process alone: tests share their machine
    path = write_report(folder, **ended)
    seconds = time.process_time() - start
    assert path.stat().st_size <= 3_000_000
    assert seconds <= 3.0


def test_an_ensemble_that_abstains_everywhere_still_has_a_page(make_run):
    folder = make_run("ensemble.replicas=2")
    page = write_report(folder).read_text()
    assert "no test input is certified" in page
