"""The table of defences: who is judged by what, and what the published numbers say of themselves."""

from functools import partial
from pathlib import Path

import pytest

from fedproof.attacks.backdoor import default_size, triangle
from paper import Rows, load_studies
from paper.clean import CLOSE
from paper.defences import certified_share, defended, lines_of
from paper.deviations import (
    DEVIATIONS,
    Deviation,
    on_accuracy,
    on_certified,
    on_costs,
    on_largest,
    on_rules,
)
from paper.published import Published
from paper.results import WIDE, CertifiedCurve, Clean, CostCell
from paper.rows import line_of, of_kind

EXPERIMENTS = Path(__file__).parents[2] / "experiments"
PUBLISHED = Published.read(EXPERIMENTS)
CERTIFIED = "robust-accuracy/user-dp-certified"

ATTACK = {"attack": "backdoor", "adversaries": 2, "accuracy": 0.9, "replica_accuracy": 0.7}


def test_a_defence_is_judged_by_one_model(measured_row, attacked):
    row = measured_row(attacked(ATTACK), values={"aggregation.rule": "geometric-median"})
    [one] = defended([row], PUBLISHED)
    assert (one.ours, one.theirs) == (70.0, 87.94)


def test_user_dp_is_judged_by_its_ensemble(measured_row, attacked):
    result = attacked(ATTACK, epsilon={"paper": 0.648})
    [one] = defended([measured_row(result, values={"mechanism.noise_multiplier": "2.6"})], PUBLISHED)
    assert (one.ours, one.theirs) == (90.0, 87.9)


@pytest.fixture(scope="module")
def lines():
    rows = Rows(EXPERIMENTS / "results" / "rows.jsonl").under("robust-accuracy/defences-updates")
    found = lines_of(rows, PUBLISHED)
    assert {(one.attack, one.size) for one in found} == {
        (attack, size) for attack in ("min-max", "min-sum") for size in (2, 3, 5, 10)
    }
    return found


def test_published_optimised_attacks_leave_rules_a_difference_only_in_honest_cohorts(lines):
    """The reason the page gives: one line for all rules, its slope the chance of an honest cohort."""
    for one in lines:
        assert one.theirs == pytest.approx(one.honest, abs=0.075)
        assert one.away < 0.05


def test_the_page_says_that_the_attack_does_little_here_only_if_the_rows_say_so(lines):
    """More of the differences is left than the explanation would leave, and nobody loses much."""
    reason = next(one.reason for one in load_studies(EXPERIMENTS) if one.name == "robust-accuracy")
    little = all(one.fall < CLOSE and one.ours > (1 + one.honest) / 2 for one in lines if one.size < 10)
    assert little == ("moves no rule far" in reason)


def test_the_page_says_that_random_heads_explain_no_certified_accuracy_only_if_the_rows_say_so():
    rows = Rows(EXPERIMENTS / "results" / "rows.jsonl")
    [study] = [one for one in load_studies(EXPERIMENTS) if one.name == "robust-accuracy"]
    nearer = [
        abs(drawn[size] - printed) < abs(zero[size] - printed) - CLOSE
        for row, result in of_kind(rows.under("deviations/user-dp-heads"), Clean)
        for size in (2, 3)
        for zero, drawn, printed in (_certified_beside(rows, row, result, size),)
    ]
    assert nearer
    assert ("Nor do heads drawn at random" in study.reason) == (not any(nearer))


def test_the_page_says_that_crops_give_a_part_of_what_is_missing_only_if_the_rows_say_so():
    rows = Rows(EXPERIMENTS / "results" / "rows.jsonl")
    [study] = [one for one in load_studies(EXPERIMENTS) if one.name == "robust-accuracy"]
    server = "user-dp eps 0.3205", 2
    found = (certified_share(rows, f"deviations/user-dp-crops-again{name}") for name in ("", "-ours"))
    crops, plain = (shares[server] for shares in found)
    missing = PUBLISHED.values["robust_accuracy_cifar"]["k=2"][server[0]][5] - plain
    told = "at ε = 0.3205 crops add two of the six points that are missing, in one ensemble trained both ways"
    assert (told in study.reason) == ((round(crops - plain), round(missing)) == (2, 6))


def _certified_beside(rows, row, result, size):
    """By k in percent, with a head of zeros and with random ones, and the published number."""
    [(_, zeros)] = of_kind(rows.under(row.key.replace("deviations/user-dp-heads", CERTIFIED)), Clean)
    curves = (one.curve("paper", None, False) for one in (zeros, result))
    zero, drawn = ({size: 100 * curve[size]} for curve in curves)
    table = PUBLISHED.values["robust_accuracy_cifar"][f"k={size}"]
    return zero, drawn, table[f"user-dp eps {row.paper_epsilon:.4g}"][5]


def test_lines_are_those_of_the_cells(measured_row, attacked):
    rows = [
        measured_row(
            attacked(
                {
                    "attack": "min-max",
                    "adversaries": 2,
                    "clean_replica_accuracy": clean,
                    "replica_accuracy": 0.5 + 0.3 * (clean - 0.5),
                }
            ),
            values={"aggregation.rule": rule},
        )
        for rule, clean in (("mean", 0.9), ("krum", 0.8), ("median", 0.7))
    ]
    [one] = lines_of(rows, PUBLISHED)
    assert one.ours == pytest.approx(0.3)
    assert one.fall == pytest.approx(28)
    assert one.honest == pytest.approx(0.8**2, abs=0.002)
    assert lines_of(rows[:2], PUBLISHED) == []


# --- deviations from the authors' code ------------------------------------------------------------------


def test_the_effect_of_a_deviation_is_that_of_the_rows(measured_row, tmp_path):
    def clean(accuracy):
        return Clean(accuracy=accuracy, accuracy_std=0.0, ensemble_accuracy=accuracy)

    made = {
        "a/there/seed=0": ("1", 0.8),
        "a/there/seed=1": ("1", 0.9),
        "a/there/other": ("2", 0.7),
        "a/here/one": ("1", 0.8),
        "a/here/three": ("3", 0.1),
    }
    rows = [
        measured_row(clean(accuracy), key=key, values={"mechanism.noise_multiplier": noise})
        for key, (noise, accuracy) in made.items()
    ]
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, rows)))
    found = Rows(tmp_path / "rows.jsonl")
    panels = (("a/there", "a/here"),)
    one = Deviation(what="it", theirs="so", ours="else", effects=(partial(on_accuracy, panels=panels),))
    assert one.measured(found) == (
        "accuracy as there +5.00 points against ours in the median, +5.00 to +5.00 in 1 comparisons"
    )
    assert Deviation(what="it", theirs="so", ours="else").measured(found) == "not measured"


def test_the_effect_on_certificates_is_that_of_the_rows(measured_row, tmp_path):
    def row(key, noise, share, largest):
        curve = CertifiedCurve(
            method="paper", relation=None, failure_probability=None, accuracy=(0.9, 0.8, *share)
        )
        result = Clean(
            accuracy=0.9, accuracy_std=0.0, ensemble_accuracy=0.9, curves=(curve,), paper_largest=largest,
            epsilon={"paper": 0.5},
        )  # fmt: skip
        return measured_row(result, key=key, values={"mechanism.noise_multiplier": noise})

    rows = [
        row("a/there/1", "1", (0.5,), 3.0),
        row("a/here/1", "1", (0.4,), 4.0),
        row("a/there/2", "2", (), 1.0),  # a curve ends where it is zero
        row("a/here/2", "2", (0.1,), 1.5),
        row("a/there/3", "3", (0.1,), 9.0),
    ]
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, rows)))
    found, panels = Rows(tmp_path / "rows.jsonl"), (("a/there", "a/here"),)
    assert on_certified(found, panels) == (
        "certified for k = 2 by the paper's formula as there 0.00 points against ours in the median, "
        "-10.00 to +10.00 in 2 comparisons"
    )
    assert on_largest(found, panels) == (
        "the paper's K as there -0.75 against ours in the median, -1.00 to -0.50 in 2 comparisons"
    )


def test_attacks_and_rules_as_there_are_compared_with_ours_of_the_same_name(measured_row, attacked, tmp_path):
    def cell(attack, adversaries, cost, accuracy):
        costs = (CostCell(kind="loss", bound=WIDE, clean=4.0, attacked=cost),)
        return {
            "attack": attack, "adversaries": adversaries, "costs": costs, "replica_accuracy": accuracy,
            "clean_replica_accuracy": accuracy + 0.1,
        }  # fmt: skip

    made = {
        "a/there/x": ("m:multi_krum", [cell("m:DistributedBackdoor", 2, 2.0, 0.7)]),
        "a/here/x": (
            "multi-krum",
            [cell("distributed-backdoor", 2, 3.0, 0.6), cell("backdoor", 2, 9.0, 0.1)],
        ),
        "a/here/y": ("krum", [cell("distributed-backdoor", 2, 9.0, 0.1)]),
    }
    rows = [
        measured_row(attacked(*cells), key=key, values={"aggregation.rule": rule})
        for key, (rule, cells) in made.items()
    ]
    (tmp_path / "rows.jsonl").write_text("".join(map(line_of, rows)))
    found, panels = Rows(tmp_path / "rows.jsonl"), (("a/there", "a/here"),)
    told = on_costs(found, panels, "distributed-backdoor")
    assert told.startswith("what the attack takes from J, as there 2.00 to 2.00 times ours in 1 cases")
    assert on_costs(found, panels, "backdoor") == ""
    assert on_rules(found, panels).startswith("of multi-krum: accuracy as there +10.00 points against ours")
    assert on_costs(found, (), "distributed-backdoor") == on_rules(found, (("b/there", "a/here"),)) == ""


def test_deviations_that_rows_can_tell_have_them():
    rows = Rows(EXPERIMENTS / "results" / "rows.jsonl")
    for one in DEVIATIONS:
        assert all(" as there " in effect(rows) for effect in one.effects)
        assert one.effects or one.measured(rows) == one.otherwise


def test_the_trigger_has_the_stated_number_of_pixels():
    text = next(one.ours for one in DEVIATIONS if one.what == "trigger")
    pixels = [int(triangle(side, side, default_size(side, side)).sum()) for side in (28, 32)]
    assert f"{pixels[0]} pixels on MNIST and {pixels[1]} on CIFAR" in text
