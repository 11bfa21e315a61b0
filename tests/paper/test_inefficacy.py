"""Conclusions about the attacker's cost: by every cost that was measured, and not by one that is clipped."""

from dataclasses import replace

import pytest

from fedproof.certificates.paper_theorems import inefficacy_bounds
from paper import Rows, load_studies, reproduce
from paper.inefficacy import conclusions, saturated
from paper.results import WIDE, CostCell
from paper.rows import line_of
from paper.study import chosen
from paper.tables import attacked_table

RISES = (
    "the stronger the privacy, the higher the attacker's cost J(D') (what its theorem bounds: the clipped "
    "loss, and the attack's success)"
)


def by_loss(wide, k, noise):
    loss = {"clean": 2.0, "attacked": wide / k, "lower": 0.1, "paper_lower": noise * 0.1 / k}
    return (CostCell(kind="loss", bound=WIDE, **loss),)


@pytest.fixture
def verdicts(measured_row, attacked, tmp_path):
    """Verdicts by the beginning of the claim, from costs of k = 1, 2 at rising noise."""

    def build(costs, bound=1.0, wide=None, foreign=()):
        lines = []
        for noise, (one, two) in costs.items():
            cells = [
                {
                    "attack": "backdoor",
                    "adversaries": k,
                    "cost": cost,
                    "clean_cost": bound,
                    "certified_lower": noise * 0.1 / k,
                    "paper_lower_exact": noise * 0.1 / k,
                    "holds_on_cost": True,
                    "costs": by_loss(wide, k, noise) if wide else (),
                }
                for k, cost in ((1, one), (2, two))
            ]
            result = attacked(*cells, epsilon={"paper": 1 / noise})
            key, values = f"inefficacy-epsilon/mnist/{noise}", {"mechanism.noise_multiplier": str(noise)}
            row = measured_row(result, key, values)
            lines.append(line_of(replace(row, settings_sha256=f"{noise:064}")))
        (tmp_path / "rows.jsonl").write_text("".join(lines))
        found = conclusions(Rows(tmp_path / "rows.jsonl"), foreign)
        return {one.claim.removeprefix("users: "): one for one in found}

    return build


def test_costs_that_fall_with_k_and_rise_with_privacy(verdicts):
    found = verdicts({1.0: (0.8, 0.6), 2.0: (0.9, 0.7)})
    assert found["J(D') falls as k grows"].holds
    assert found[RISES].holds
    assert found["the stronger the privacy, the higher the paper's lower bound"].holds


def test_costs_that_do_not(verdicts):
    found = verdicts({1.0: (0.8, 0.85), 2.0: (0.7, 0.75)})
    assert found["J(D') falls as k grows"].holds is False
    assert found[RISES].holds is False
    assert "0 of 2" in found["J(D') falls as k grows"].evidence


def test_a_cost_at_its_bound_is_told_and_does_not_decide(verdicts):
    found = verdicts({1.0: (1.0, 1.0), 2.0: (1.0, 1.0)}, wide=3.0)
    kept = found["no attack brings its cost below our certified lower bound (beyond Monte-Carlo error)"]
    assert "4 of them trivially" in kept.evidence
    assert found["J(D') falls as k grows"].holds  # by the loss that is not clipped
    assert "the panel's C̄: 0 of 2" in found["J(D') falls as k grows"].evidence


def test_what_nobody_measured_is_open_and_other_data_are_left_out(verdicts):
    costs = {1.0: (0.8, 0.6), 2.0: (0.9, 0.7)}
    drawn = RISES.partition(" (what")[0] + " (the loss, as the paper draws it)"
    assert verdicts(costs)[drawn].verdict == "open"
    [found] = verdicts(costs, foreign={"inefficacy-epsilon/mnist"}).values()
    assert (found.verdict, found.claim) == ("not tested", "users: all of the above on Sent140")


def test_one_training_gives_every_cost(experiments, tmp_path):
    studies = chosen(load_studies(experiments), "small/costs")
    [row] = reproduce(studies, experiments, tmp_path).under("small/costs")
    for one in row.attacks:
        wide, success, unclipped = (
            one.cost_by(*way) for way in (("loss", WIDE), ("success", 1.0), ("loss", None))
        )
        # Clipping only lowers a cost, and the paper's C̄ of this panel saturates while the others do not.
        assert one.clean_cost <= wide.clean <= unclipped.clean
        assert one.clean_cost == row.result.cost_bound < wide.clean
        assert 0 < success.clean < 1
        assert wide.clipped == success.clipped == 0 < one.clipped_share
        for cost in (wide, success):
            lower, _ = inefficacy_bounds(
                cost.clean,
                one.adversaries,
                cost_bound=cost.bound,
                epsilon=row.paper_epsilon,
                delta=row.result.delta,
            )
            assert cost.paper_lower == pytest.approx(float(lower), rel=1e-5)
            assert cost.lower <= cost.clean
        assert unclipped.lower is None  # nothing is certified about it
        assert saturated(row, one) == (min(one.clean_cost, one.cost) >= 0.999 * row.result.cost_bound)


@pytest.mark.parametrize(("cost", "missing"), [(1.0, True), (0.9, False)])
def test_costs_are_missed_only_beside_those_that_saturate(measured_row, attacked, cost, missing):
    row = measured_row(attacked({"attack": "backdoor", "adversaries": 1, "cost": cost, "clean_cost": cost}))
    text = "\n".join(attacked_table([row]))
    assert ("*Saturated:* in 1 of 1" in text) is missing
    assert ("Costs that do not saturate are not trained yet" in text) is missing
