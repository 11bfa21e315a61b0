"""Pages of attacks from made rows, and of bounds on what they cost the attacker."""

import re
from dataclasses import replace

import numpy as np
import pytest

from fedproof.certificates import ApproximateDP, inefficacy
from fedproof.mechanisms import FedAvg, Poisson, UserFedAvg
from fedproof.report.attack_page import (
    attack_charts,
    inefficacy_chart,
    verdict,
    write_attack_page,
    write_inefficacy_page,
)
from fedproof.report.chart import Band, Line, Points
from fedproof.statements import Statement
from fedproof.threat import Relation


def test_attacks_are_points_over_certified_bands(tmp_path, attack_rows, hostile):
    accuracy, cost = attack_charts(attack_rows())
    assert [type(series) for series in accuracy.series] == [Line, Points, Points]
    assert [type(series) for series in cost.series] == [Band, Points, Points]
    assert cost.series[0].highs == pytest.approx((0.4, 0.42, 0.44))
    page = write_attack_page(attack_rows(), tmp_path / "attack.html").read_text()
    assert hostile not in page
    assert "All 6 attacks stayed within what is certified" in page


def test_attacks_with_goals_of_their_own_have_bands_of_their_own(attack_rows):
    rows = attack_rows()
    rows[0] = replace(rows[0], certified_upper=0.45)
    _, cost = attack_charts(rows)
    assert sum(isinstance(series, Band) for series in cost.series) == 2


def test_an_attack_beyond_its_bounds_is_said(attack_rows):
    rows = attack_rows()
    rows[2] = replace(rows[2], cost=0.1)  # beyond its bound, but within Monte-Carlo error
    assert verdict(rows) == "All 6 attacks stayed within what is certified."
    rows[2] = replace(rows[2], holds_on_cost=False)
    assert verdict(rows) == "1 of 6 attacks went beyond what is certified."
    assert not rows[2].holds


def test_attacks_without_certificate(tmp_path, attack_rows):
    rows = attack_rows(certified_accuracy=None, certified_lower=None, certified_upper=None)
    page = write_attack_page(rows, tmp_path / "attack.html").read_text()
    assert "nothing is certified" in page


def test_heuristic_attacks_say_why(tmp_path, attack_rows):
    sampling = Poisson(probability=0.5)
    no_noise = FedAvg(rounds=1, sampling=sampling).unmet(Relation.REPLACE)
    rows = attack_rows(unmet=(*no_noise, Statement.of("unmet-as-stated", text="something else")))
    page = write_attack_page(rows, tmp_path / "attack.html").read_text()
    assert page.count("No noise is added: there is no guarantee.") == 1
    assert page.count("Fix: ") == 1
    assert "Something else." in page


@pytest.mark.parametrize(
    ("most", "words"), [(20, "an attack needs 5 users at least"), (4, "more than searched")]
)
def test_inefficacy_from_the_library(tmp_path, hostile, most, words):
    result = inefficacy(
        [0.4] * 9,
        cost_bound=0.5,
        privacy=ApproximateDP(epsilon=0.5, delta=0.0, relation="replace"),
        bound="none",
        sizes=[4, 0, 2],
        tau=10,
        max_size=most,
        unmet=[hostile],
    )
    band, clean = inefficacy_chart(result).series
    assert (band.xs, clean.ys) == ((0, 2, 4), (result.cost,) * 3)
    assert dict(zip(band.xs, band.ys, strict=True)) == dict(zip(result.sizes, result.lower, strict=True))
    assert dict(zip(band.xs, band.highs, strict=True)) == dict(zip(result.sizes, result.upper, strict=True))
    page = write_inefficacy_page(result, tmp_path / "inefficacy.html").read_text()
    assert hostile not in page
    assert words in page


def test_bounds_on_a_page_are_rounded_outwards(tmp_path, attack_rows):
    rows = attack_rows(certified_lower=0.18879, certified_upper=0.34521, certified_accuracy=2 / 3)
    page = write_attack_page(rows, tmp_path / "attack.html").read_text()
    assert page.count("<td>0.1887</td><td>0.3453</td>") == len(rows) + 3  # and three places of the figure
    assert "≥ 66.6\u00a0%" in page
    assert "0.1887 to 0.3453" in page  # under the pointer
    assert "0.189" not in page


def test_bounds_on_a_cost_say_what_they_take_for_granted(tmp_path):
    costs = np.random.default_rng(0).uniform(0.2, 0.3, 200)
    mechanism = UserFedAvg(rounds=3, noise_multiplier=1.8, sampling=Poisson(probability=0.1))
    result = inefficacy(costs, cost_bound=1.0, mechanism=mechanism, sizes=[0, 1, 2], tau=2.0)
    text = write_inefficacy_page(result, tmp_path / "page.html").read_text()
    shown = re.findall(r"<t[hd][^>]*>[012]</t[hd]><td>([\d.]+)</td><td>([\d.]+)</td>", text)
    for (low, high), lower, upper in zip(shown, result.lower, result.upper, strict=True):
        assert float(low) <= lower
        assert upper <= float(high)
    assert "All bounds together hold with 99\u00a0% confidence." in text
    assert "Sound if the training did exactly this: </strong>200 independent trainings" in text
    assert "Every condition of the theorem is met" not in text
    for assumption in result.assumptions:
        assert assumption.sentence in text
    assert "divide" in text
    mirrored = inefficacy(-costs, cost_bound=1.0, mechanism=mechanism, negative=True, tau=2.0)
    text = write_inefficacy_page(mirrored, tmp_path / "page.html").read_text()
    assert "To multiply it by 2" in text


def test_a_negative_cost_is_multiplied(tmp_path):
    privacy = ApproximateDP(epsilon=0.5, delta=0.0, relation="replace")
    result = inefficacy(
        [-0.1] * 9, cost_bound=2, privacy=privacy, bound="none", sizes=[0, 1], tau=3, negative=True
    )
    page = write_inefficacy_page(result, tmp_path / "inefficacy.html").read_text()
    assert "Without attack the expected cost is -0.1 of at least -2. To multiply it by 3, an attack" in page
    assert "needed to multiply the cost by 3" in page
    assert "divide" not in page


def test_there_must_be_attacks(tmp_path):
    with pytest.raises(ValueError, match="empty"):
        write_attack_page([], tmp_path / "page.html")
