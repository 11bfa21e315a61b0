"""Looking at the result and going on: who does that sixty times must not be wrong more often.

The numbers of replicas at the looks grow by a constant factor, which is when looking often pays most. For
votes the chance that some look is wrong is computed exactly: capital depends on the number of votes alone, so
the number of votes is followed from look to look and whoever reached 1/ψ is counted and left out.
"""

import numpy as np
import pytest
from scipy.stats import binom, norm

from fedproof.accounting.tradeoff import GaussianTradeoff, tradeoff
from fedproof.certificates import certify, inefficacy
from fedproof.certificates.confidence import Bound, betting_rejects, log_capital
from fedproof.certificates.margin import margin_sizes_by_betting
from fedproof.certificates.tight import class_bounds, mean_sizes
from fedproof.mechanisms import Bagging, Everyone, FixedSize, Partition, Poisson, UserFedAvg
from fedproof.statements import sentences
from fedproof.threat import ThreatModel

FAILURE_PROBABILITY = 0.05
LOOKS = np.unique(np.round(np.geomspace(4, 1000, 77)).astype(int))[-60:]
EXPERIMENTS = 500
# What is simulated: a bound that fails with exactly ψ, over all looks together, trips this with FALSE_ALARM.
FALSE_ALARM = 1e-4
MOST = int(binom.isf(FALSE_ALARM, EXPERIMENTS, FAILURE_PROBABILITY))


def mixture(num, rate):
    """Logarithms of the capital against `rate` after 0, 1, ..., num votes in favour out of num."""
    votes = np.arange(num)[:, None] < np.arange(num + 1)
    return log_capital(votes.astype(float), np.full(num + 1, rate))


def planned(num, rate):
    """The planted mistake: the best stake for exactly so many votes, hence another one at every look."""
    stake = min(np.sqrt(2 * np.log(1 / FAILURE_PROBABILITY) / (num * rate * (1 - rate))), 0.9 / rate)
    votes = np.arange(num + 1)
    return votes * np.log1p(stake * (1 - rate)) + (num - votes) * np.log1p(-stake * rate)


def chance_of_a_wrong_look(log_capital_of, rate):
    """Probability that some look rejects the true rate, without error."""
    alive, before, wrong = np.ones(1), 0, 0.0
    for seen in LOOKS:
        alive = np.convolve(alive, binom.pmf(np.arange(seen - before + 1), seen - before, rate))
        rejected = log_capital_of(seen, rate) >= np.log(1 / FAILURE_PROBABILITY)
        wrong += alive[rejected].sum()
        alive[rejected], before = 0.0, seen
    return wrong


def test_there_are_sixty_looks():
    assert len(LOOKS) == 60
    assert np.all(np.diff(LOOKS) > 0)


@pytest.mark.parametrize("rate", [0.1, 0.5, 0.84, 0.97])
def test_sixty_looks_do_not_fail_more_often_than_one(rate):
    assert chance_of_a_wrong_look(mixture, rate) <= FAILURE_PROBABILITY


def test_stakes_that_follow_the_number_of_replicas_are_caught():
    assert chance_of_a_wrong_look(planned, 0.5) > 1.3 * FAILURE_PROBABILITY
    [last] = LOOKS[-1:]
    once = binom.pmf(np.arange(last + 1), last, 0.5)[planned(last, 0.5) >= np.log(20)].sum()
    assert once <= FAILURE_PROBABILITY  # and each look by itself is right, so looking is what is wrong


def test_sixty_looks_at_confidences():
    values = np.random.default_rng(11).beta(1.2, 0.8, size=(LOOKS[-1], EXPERIMENTS))
    ever = np.zeros(EXPERIMENTS, dtype=bool)
    for seen in LOOKS:
        ever |= betting_rejects(values[:seen], 0.6, FAILURE_PROBABILITY)
    assert ever.sum() <= MOST


def test_sixty_looks_at_a_certificate():
    """Size 5 is just false: the certificate must not claim it more often than it may."""
    edge = float(norm.cdf(1.0))
    draws = (np.random.default_rng(12).random((LOOKS[50], EXPERIMENTS)) < edge).astype(float)
    scores, ever = np.stack([draws, 1 - draws], axis=2), np.zeros(EXPERIMENTS, dtype=bool)
    for seen in LOOKS[:51:5]:
        found = class_bounds(scores[:seen], Bound.BETTING, FAILURE_PROBABILITY / 2)
        sizes = mean_sizes(found.top_lower, found.rival_upper, lambda k: GaussianTradeoff(shift=k / 5), 5)
        ever |= sizes >= 5
    assert ever.sum() <= MOST


def test_bets_on_margins_must_not_be_looked_at_often():
    """Why certificates of margins say that the number of replicas was fixed: looks go wrong more often."""
    draws = (np.random.default_rng(13).random((LOOKS[-1], EXPERIMENTS)) < 0.5).astype(float)
    scores, ever = np.stack([draws, 1 - draws], axis=2), np.zeros(EXPERIMENTS, dtype=bool)
    for seen in LOOKS:
        found = margin_sizes_by_betting(
            scores[:seen], lambda k: GaussianTradeoff(shift=k), failure_probability=0.05, max_size=0
        )
        ever |= found.sizes >= 0
    assert ever.mean() > 1.5 * FAILURE_PROBABILITY


@pytest.mark.parametrize(
    ("method", "bound", "fixed"),
    [
        ("mean", "betting", False),
        ("vote", "betting", False),
        ("mean", "hoeffding", True),
        ("mean", "empirical-bernstein", True),
        ("vote", "clopper-pearson", True),
        ("margin", "betting", True),
        ("margin", "levels", True),
    ],
)
def test_a_certificate_says_whether_the_number_of_replicas_had_to_be_fixed(scores, method, bound, fixed):
    mechanism = UserFedAvg(rounds=1, noise_multiplier=20.0, sampling=Everyone())
    found = certify(scores, mechanism=mechanism, method=method, bound=bound, max_size=3)
    said = any("decided before any of their scores was seen" in line for line in sentences(found.assumptions))
    assert said is fixed
    assert found.settings.holds_at_all_times is not fixed


# --- inputs that somebody looked for ------------------------------------------------------------------------

SEEN = "chosen by anybody who had seen the replicas, or what they score"


def test_an_input_that_was_looked_for_is_not_covered():
    """Of many inputs one has far more votes than it is expected to have: that nobody chose it is assumed."""
    bagged = Bagging(rounds=1, sampling=FixedSize(cohort=5, users=1000))
    share, size, replicas = 0.6, 25, 100
    curve = tradeoff(bagged, ThreatModel(), size)
    assert curve.lower(share) < curve.upper(1 - share)  # so many units may change every one of these labels
    most = np.random.default_rng(0).binomial(replicas, share, size=200_000).max()
    votes = np.eye(2)[(np.arange(replicas) >= most).astype(int)][:, None]
    found = certify(votes, mechanism=bagged, method="vote")
    assert found.certified_size[0] >= size  # false, and no bound on one input could tell
    assert sum(SEEN in sentence for sentence in sentences(found.assumptions)) == 1


@pytest.mark.parametrize("method", ["mean", "margin", "vote", "renyi"])
def test_estimates_say_that_nobody_looked_for_the_input(method):
    scores = np.random.default_rng(1).dirichlet([8, 1], size=(200, 3))
    noised = UserFedAvg(rounds=1, noise_multiplier=4.0, sampling=Poisson(probability=0.1))
    for simultaneous in (False, True):
        found = certify(scores, mechanism=noised, method=method, simultaneous=simultaneous)
        assert sum(SEEN in sentence for sentence in sentences(found.assumptions)) == 1
        assert "method, bound and failure probability were decided before any score was seen" in (
            sentences(found.assumptions)
        )
    counted = certify(scores[:50], mechanism=Partition(groups=50), method="vote")
    assert not any(
        SEEN in sentence for sentence in sentences(counted.assumptions)
    )  # which holds for all inputs
    bounds = inefficacy(scores[:, 0, 0], cost_bound=1.0, mechanism=noised)
    assert "cost-settled" in {one.code for one in bounds.assumptions}
