"""Noise of users' own: how much there is, what the server keeps of it, and what the sum hides."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2, norm

from fedproof.accounting.epsilon import pld_epsilon, replaced_epsilon, sum_epsilon
from fedproof.config import parse_config
from fedproof.mechanisms import Local
from fedproof.mechanisms.local import RARE
from fedproof.mechanisms.uploads import Anchors, Ball, NonNegative, Rows, shortened
from fedproof.seeds import SeededGenerator
from fedproof.threat import Relation

FALSE_ALARM = 1e-6
HEADS = [Ball(features=40, classes=5), Rows(features=40, classes=5)]
USERS = 400


def local(upload, noise=0.7, honest=100):
    return Local(upload=upload, noise_multiplier=noise, honest=honest)


def noised(mechanism, heads, seed=0):
    return mechanism.noised(heads, SeededGenerator(np.random.SeedSequence(seed)))


# --- what is sent, and what is kept of it -------------------------------------------------------------------


@pytest.mark.parametrize("upload", HEADS, ids=lambda upload: upload.kind)
def test_noise_has_the_stated_scale(upload):
    mechanism = local(upload)
    sent = noised(mechanism, np.zeros((USERS, *upload.shape))) * mechanism.reach
    statistic = float(np.square(sent / (mechanism.noise_multiplier * upload.norm)).sum())
    low, high = chi2.interval(1 - FALSE_ALARM, df=sent.size)
    assert low < statistic < high
    assert statistic / 1.05**2 < low  # noise 5 % too small would be caught


@pytest.mark.parametrize("upload", HEADS, ids=lambda upload: upload.kind)
def test_honest_noise_survives_the_server_bit_for_bit(upload):
    """So the sum is that of Gaussians, as the ε of the sum alone says."""
    mechanism = local(upload)
    sent = noised(mechanism, np.random.default_rng(1).normal(size=(USERS, *upload.shape)))
    step = mechanism.grid.step
    np.testing.assert_array_equal(mechanism.received(sent) * step, sent)
    assert (np.rint(sent / step) * step == sent).all()


@pytest.mark.parametrize("upload", HEADS, ids=lambda upload: upload.kind)
def test_the_servers_room_is_what_rare_noise_needs_and_not_much_more(upload):
    """The chance to be shortened is `RARE` where a user says nothing in the direction of its noise."""
    mechanism = local(upload)
    count, parts = (40, 5) if upload.kind == "rows" else (200, 1)
    longest = (mechanism.reach - 1) / (mechanism.noise_multiplier * upload.norm)
    chance = parts * chi2.sf(longest**2, count)
    assert RARE * 0.9 < chance < RARE * 1.01


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seed=st.integers(0, 99), scale=st.floats(-300, 300), odd=st.sampled_from([0.0, np.nan, np.inf, -np.inf])
)
@pytest.mark.parametrize("upload", HEADS, ids=lambda upload: upload.kind)
def test_whatever_is_sent_lies_in_the_set(upload, seed, scale, odd):
    rng = np.random.default_rng(seed)
    sent = rng.standard_cauchy((3, *upload.shape)) * 10.0**scale
    sent[1, 0, 0] += odd
    with np.errstate(over="ignore", invalid="ignore"):
        kept = shortened(upload, sent, 2.0**-32) * 2.0**-32
    lengths = np.sqrt(np.square(kept).sum(axis=upload.axes))
    assert (lengths <= 1).all()
    assert not np.isfinite(odd) or kept.any() or scale < -9
    if not np.isfinite(odd):
        assert not kept[1].any()
    weights = upload.weights(rng.normal(size=(5, 40)), None)
    leads = np.einsum("iw,uwc->uic", weights, kept)
    assert (leads.max(axis=2) - leads.min(axis=2) <= 1).all()


def test_labels_are_flipped_as_often_as_gaussian_noise_flips_them():
    """Of two classes the vote is right with probability Φ(1 / (√2 σ S)), also where a user abstains: 1/2."""
    mechanism = local(Anchors(anchors=50, classes=2), noise=0.2)
    labels = np.tile([[0], [1], [-1]], (USERS, 50))
    sent = noised(mechanism, labels)
    assert set(np.unique(sent)) == {0, 1}  # nobody is seen to abstain
    right = norm.cdf(1 / (math.sqrt(2) * 0.2 * mechanism.upload.norm))
    for rows, expected in ((sent[::3] == 0, right), (sent[1::3] == 1, right), (sent[2::3] == 0, 0.5)):
        band = norm.isf(FALSE_ALARM / 2) * math.sqrt(expected * (1 - expected) / rows.size)
        assert abs(rows.mean() - expected) < band
        assert abs(rows.mean() - norm.cdf(1 / (math.sqrt(2) * 0.15 * mechanism.upload.norm))) > band


# --- what the sum hides -------------------------------------------------------------------------------------


def gaussian_delta(epsilon, shift):
    """δ of a Gaussian query with noise one and this shift (Balle and Wang 2018, Theorem 8)."""
    return norm.cdf(shift / 2 - epsilon / shift) - math.exp(epsilon) * norm.cdf(-shift / 2 - epsilon / shift)


@pytest.mark.parametrize(("noise", "honest"), [(0.5, 500), (1.0, 10), (5.0, 1000), (0.3, 1)])
def test_epsilon_of_the_sum_covers_noise_that_adds_up_and_the_chance_that_it_does_not(noise, honest):
    mechanism, delta = local(HEADS[0], noise, honest), 5e-4
    found = sum_epsilon(mechanism, delta)
    for relation, far in ((Relation.JOIN, 1.0), (Relation.REPLACE, 2.0)):
        epsilon = found[relation]
        exact = gaussian_delta(epsilon, far / (noise * math.sqrt(honest)))
        assert exact + (1 + math.exp(epsilon)) * honest * RARE <= delta * (1 + 1e-6) or honest == 1
        less = gaussian_delta(0.97 * epsilon - 1e-4, far / (noise * math.sqrt(honest)))
        assert less > delta * 0.9  # no more than a little is given away
    server = pld_epsilon(mechanism, delta), replaced_epsilon(mechanism, delta)
    assert found["join"] <= server[0] + 1e-9
    assert found["replace"] <= server[1] + 1e-9


def test_where_room_for_noise_is_not_rare_enough_the_servers_epsilon_is_said():
    mechanism = local(HEADS[0], 0.5, 500)
    assert sum_epsilon(mechanism, 1e-7)["join"] == pytest.approx(pld_epsilon(mechanism, 1e-7))
    votes = local(Anchors(anchors=9, classes=3), 0.5, 500)
    assert sum_epsilon(votes, 1e-3)["join"] == pytest.approx(pld_epsilon(votes, 1e-3))


# --- mistakes -----------------------------------------------------------------------------------------------

LOCAL = """
[data]
name = "digits"
users = 30
public = 60
[mechanism]
kind = "local"
upload = "rows"
solver = "ridge"
"""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["mechanism.upload=pairs"], "upload = 'pairs' must be anchors or rows or ball for kind = 'local'"),
        (["mechanism.noise_multiplier=0"], "noise_multiplier = 0 must be positive for kind = 'local'"),
        (["mechanism.kind=one-round", "mechanism.honest=3"], "honest = 3 belongs to kind = 'local'"),
        (["threat.unit=instance"], "threat.unit = 'instance' must be 'user' for mechanism.kind = 'local'"),
        (["mechanism.rounds=2"], "rounds = 2 is not used by kind = 'local'"),
        (["certificate.method=vote"], "certificate.method = 'vote' must be exact for kind = 'local'"),
    ],
)
def test_a_mistake_is_answered_by_one_line(changes, message):
    with pytest.raises(ValueError, match=message):
        parse_config(LOCAL, "test", changes)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"noise_multiplier": 0.0}, "noise_multiplier = 0.0 must be"),
        ({"noise_multiplier": 1e-4}, "noise_multiplier = 0.0001 must be at least 0.001"),
        ({"honest": 0}, "honest = 0 must be"),
        (
            {"upload": NonNegative(anchors=4, classes=2)},
            "upload = 'non-negative' must be one of anchors, row",
        ),
    ],
)
def test_a_description_that_is_none(fields, message):
    with pytest.raises(ValueError, match=message):
        Local(**({"upload": HEADS[0], "noise_multiplier": 1.0, "honest": 3} | fields))
