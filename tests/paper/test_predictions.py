"""Verdicts about certified predictions, from rows made for each of them."""

from pathlib import Path

import pytest

from paper import Rows, load_studies, predictions
from paper import confidence as confidence_of
from paper.published import Published
from paper.results import CertifiedCurve, Clean
from paper.rows import line_of
from paper.sizes import INSTANCES, PANELS, sizes_of

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PUBLISHED = Published.read(EXPERIMENTS)


@pytest.fixture
def verdicts(sized_row, tmp_path):
    """`verdicts(make, rows)`: statements by claim, from `(panel, values, epsilon, parts, sure, curve)`."""

    def build(make, *points):
        lines = []
        for panel, values, epsilon, parts, sure, curve in points:
            sizes = [
                (chance, factor * sum(parts) / len(parts), [factor * one for one in parts])
                for chance, factor in ((None, 1.0), (0.01, sure))
            ]
            shown = CertifiedCurve(method="paper", relation=None, failure_probability=None, accuracy=curve)
            key = f"{panel}/{epsilon}/{'-'.join(values.values())}"
            lines.append(line_of(sized_row(key, values, epsilon, sizes, (shown,))))
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        return {one.claim: one for one in make(Rows(tmp_path / "rows.jsonl"))}

    return build


def point(name, epsilon, parts, sure=0.5, curve=(1.0, 0.9, 0.0)):
    return PANELS[name][1], {"mechanism.noise_multiplier": str(1 / epsilon)}, epsilon, parts, sure, curve


LOW, HIGH, MIXED = (2.0, 2.1, 1.9, 2.0), (3.0, 3.1, 2.9, 3.0), (2.5, 3.6, 2.4, 3.5)


def heterogeneity(verdicts, *tops):
    """The statement about the best ε, from which of three ε is the best of each panel."""
    names = ("user-mnist", "user-mnist-dir1", "user-mnist-dir0.5")
    points = [
        point(name, epsilon, top.get(epsilon, LOW))
        for name, top in zip(names, tops, strict=True)
        for epsilon in (0.2, 0.4, 0.8)
    ]
    found = verdicts(predictions._heterogeneity, *points)
    return found["iid data, Dir(1) and Dir(0.5) do not all have the same best ε on MNIST"]


def test_one_best_epsilon_for_all_must_be_sure_and_so_must_be_different_ones(verdicts):
    same, other, unsure = {0.4: HIGH}, {0.8: HIGH}, {0.4: HIGH, 0.8: MIXED}
    assert heterogeneity(verdicts, same, same, same).verdict == "no"
    assert heterogeneity(verdicts, same, same, other).verdict == "yes"
    found = heterogeneity(verdicts, same, same, unsure)
    assert found.verdict == "open"
    assert found.evidence == "0.4; 0.4; 0.4, perhaps 0.8"


def confidence(verdicts, *points):
    found = verdicts(confidence_of.conclusions, *points)
    return [found[claim] for claim in sorted(found, reverse=True)]


def test_with_confidence_the_trend_is_similar_or_not_and_the_best_epsilon_stays_or_not(verdicts):
    rising = [point("user-mnist", epsilon, parts) for epsilon, parts in ((0.2, LOW), (0.4, HIGH), (0.8, LOW))]
    trend, best, fewer = confidence(verdicts, *rising)
    assert (fewer.verdict, fewer.follows) == ("yes", True)
    assert (trend.verdict, best.verdict, best.own) == ("yes", "yes", True)
    moved = [*rising[:2], point("user-mnist", 0.8, LOW, sure=0.9)]
    trend, best, _ = confidence(verdicts, *moved)
    assert (trend.verdict, best.verdict) == ("yes", "no")
    assert best.evidence == "MNIST: K = 3.00 at ε = 0.4, 1.80 at ε = 0.8"
    bent = [rising[0], point("user-mnist", 0.4, HIGH, sure=0.2), moved[2]]
    trend, _, _ = confidence(verdicts, *bent)
    assert trend.verdict == "no"  # K falls and rises again, with confidence alone


def test_shares_of_one_ensemble_are_told_and_open(verdicts):
    points = [
        point(name, epsilon, LOW, curve=(1.0, 0.9, share))
        for name in ("user-mnist", "user-sent140")
        for epsilon, share in ((0.6298, 0.8), (0.4, 0.7), (0.2, 0.1))
    ]
    found = verdicts(lambda rows: predictions._fixed_k(rows, PUBLISHED), *points)
    mnist = found["on MNIST most inputs are certified for k = 2 around ε = 0.6298"]
    assert (mnist.verdict, mnist.evidence) == (
        "open",
        "80.0% at ε = 0.6298, 70.0% at ε = 0.4, of one ensemble each",
    )
    assert found["on Sent140 most inputs are certified for k = 2 around ε = 0.2234"].verdict == "not tested"


@pytest.mark.parametrize(("times", "verdict"), [(1, "no"), (1 / INSTANCES, "yes")])
def test_users_are_counted_by_the_instances_that_they_hold(verdicts, times, verdict):
    size = tuple(2 * INSTANCES * times * one for one in HIGH)
    points = [point("user-mnist", 0.4, HIGH), point("instance-mnist", 0.45, size)]
    [found] = verdicts(predictions._levels, *points).values()
    assert found.verdict == verdict
    assert "users of 63 instances at ε = 0.4," in found.evidence
    assert found.evidence.endswith("at ε = 0.45")


def clippings(verdicts, **parts):
    points = [
        ("certified-clipping/mnist", {"mechanism.clip": clip.replace("_", "-")}, 0.5, size, 0.5, (1.0,))
        for clip, size in parts.items()
    ]
    found = verdicts(predictions._clippings, *points)
    return [one.verdict for one in found.values()]


def test_clippings_that_train_the_same_models_do_not_differ(verdicts):
    rest = {"median": LOW, "per_layer_median": LOW}
    assert clippings(verdicts, flat=HIGH, per_layer=LOW, **rest) == ["yes", "yes", "yes"]
    assert clippings(verdicts, flat=HIGH, per_layer=HIGH, **rest) == ["open", "no", "yes"]
    assert clippings(verdicts, flat=HIGH, per_layer=MIXED, **rest) == ["open", "open", "yes"]
    assert clippings(verdicts, flat=LOW, per_layer=HIGH, **rest) == ["no", "yes", "yes"]


def none_is_best(verdicts, *data):
    """Of parts by clipping, on MNIST and then on CIFAR."""
    points = [
        (f"certified-clipping/{name}", {"mechanism.clip": clip}, 0.5, size, 0.5, (1.0,))
        for name, parts in zip(("mnist", "cifar"), data, strict=True)
        for clip, size in zip(("flat", "per-layer", "median", "per-layer-median"), parts, strict=True)
    ]
    found = verdicts(predictions._clippings, *points)
    return found["no clipping certifies most on all data sets (at the printed ε)"]


def test_no_clipping_is_best_only_if_each_is_beaten_somewhere(verdicts):
    found = none_is_best(verdicts, (HIGH, LOW, LOW, LOW), (LOW, LOW, HIGH, HIGH))
    assert found.verdict == "yes"
    assert "; median: less than flat;" in found.evidence
    found = none_is_best(verdicts, (HIGH, LOW, LOW, LOW), (HIGH, LOW, LOW, LOW))
    assert found.verdict == "open"
    assert "flat: less than none;" in found.evidence


@pytest.mark.parametrize(
    ("accuracies", "verdict"), [((0.9, 0.8, 0.7), "yes"), ((0.9, 0.8, 0.85), "no"), ((0.7, 0.8, 0.9), "no")]
)
def test_users_who_differ_cost_accuracy_only_if_the_rows_say_so(measured_row, tmp_path, accuracies, verdict):
    def row(name, accuracy):
        result = Clean(accuracy=accuracy, accuracy_std=0.0, ensemble_accuracy=1.0, epsilon={"paper": 0.5})
        return measured_row(result, f"{PANELS[name][1]}/0", {"mechanism.noise_multiplier": "2"})

    names = ("user-mnist", "user-mnist-dir1", "user-mnist-dir0.5")
    lines = [line_of(row(name, accuracy)) for name, accuracy in zip(names, accuracies, strict=True)]
    (tmp_path / "rows.jsonl").write_text("".join(lines))
    [found] = predictions._less_accurate(Rows(tmp_path / "rows.jsonl"))
    assert found.verdict == verdict
    assert found.evidence.endswith("of 2 steps on MNIST and CIFAR")


AROUND = "on MNIST, instances the largest K is reached around ε = 0.3593"


@pytest.mark.parametrize(
    ("theirs", "rival", "verdict"),
    [(HIGH, LOW, "yes"), (LOW, HIGH, "no"), ((2.7, 2.9, 3.1, 3.3), MIXED, "open")],
)
def test_the_best_epsilon_of_models_trained_as_there_is_asked_of_them_alone(verdicts, theirs, rival, verdict):
    def make(rows):
        return predictions.trained_as_there(rows, PUBLISHED)

    panel = "deviations/instances-mnist"
    points = [
        (panel, {"mechanism.noise_multiplier": str(epsilon)}, epsilon, parts, 0.5, (1.0, 0.9, 0.0))
        for epsilon, parts in ((0.2484, rival), (0.3593, theirs))
    ]
    found = verdicts(make, point("instance-mnist", 0.1, (9.0,) * 4), *points)
    assert list(found) == [AROUND]
    assert found[AROUND].verdict == verdict


def test_models_trained_as_there_decide_about_the_best_epsilon(verdicts):
    ours = [
        point("instance-mnist", epsilon, parts)
        for epsilon, parts in ((0.1, LOW), (0.2484, HIGH), (0.3593, LOW))
    ]
    there = [
        (
            "deviations/instances-mnist",
            {"mechanism.noise_multiplier": str(epsilon)},
            epsilon,
            parts,
            0.5,
            (1.0,),
        )
        for epsilon, parts in ((0.2484, MIXED), (0.3593, (2.7, 2.9, 3.1, 3.3)))
    ]

    def make(rows):
        return predictions.conclusions(rows, PUBLISHED)

    assert verdicts(make, *ours)[AROUND].verdict == "no"
    found = verdicts(make, *ours, *there)[AROUND]
    assert found.verdict == "open"
    assert found.evidence.startswith("trained as the authors' code does, K = ")
    assert "; from Poisson batches K = 2.00" in found.evidence


def test_the_page_says_that_batches_move_the_best_epsilon_only_if_the_rows_say_so():
    rows = Rows(EXPERIMENTS / "results" / "rows.jsonl")
    found = (sizes_of(rows, panel) for panel in (PANELS["instance-mnist"][1], "deviations/instances-mnist"))
    apart = tuple(predictions._around("", one, 0.3593).verdict for one in found)
    [study] = [one for one in load_studies(EXPERIMENTS) if one.name == "instances-mnist"]
    assert ("That moves the best ε" in study.reason) == (apart == ("no", "open"))
