"""Mistakes planted into the real code: the audit must catch each, with probability at least 0.999.

The law of the statistic under each mistake is known in closed form. `power` and `shared_power` compute from
it the chance that the audit, at FALSE_ALARM, speaks up; what is asserted is the power, the catch itself, and
how many of FEDPROOF_AUDIT_SEEDS trainings were caught (`make audit` tries a thousand of each).
"""

import os
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial

import numpy as np
import pytest
import torch
from scipy.special import betainc
from scipy.stats import binom, norm
from scipy.stats import f as f_distribution

from fedproof import seeds
from fedproof.accounting import tradeoff
from fedproof.audit import audit, dependence, noise_rows
from fedproof.certificates.confidence import binomial_lower
from fedproof.ensemble import train
from fedproof.mechanisms import (
    CohortOnce,
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Median,
    PerLayer,
    Poisson,
    UserFedAvg,
)
from fedproof.rounds import clipping, members, randomness, user_fedavg
from fedproof.rounds.randomness import Stream
from fedproof.seeds import Purpose
from fedproof.threat import Relation, ThreatModel

FALSE_ALARM = 1e-6
CLIP_NORM = 1e-4
REPLICAS, THRESHOLDS = 8000, 32
POWER = 0.999
SEEDS = int(os.environ.get("FEDPROOF_AUDIT_SEEDS", "1"))
JOIN, REPLACE = Relation.JOIN, Relation.REPLACE


def accounted(mechanism, relation):
    return tradeoff(mechanism, ThreatModel(unit=mechanism.unit, relation=relation), 1)


def gaussian(mean, std):
    return lambda t: norm.sf(t, mean, std)


def power(curve, clean, poisoned, replicas=REPLICAS):
    """Whether an audit contradicts `curve` with probability at least 0.999.

    `clean` and `poisoned` give the true chance of being above t. Thresholds are quantiles, 1/32 apart, of a
    pilot of 2 x 2000: an interval that holds 2/32 of the pooled law holds one of them (an empty one is 8
    standard errors away). So it is enough that every t of such an interval catches: both counts stay on
    their side of a quantile with probability 1 - 2 * 4.5e-4, and at these quantiles the bounds contradict.
    """
    counted = replicas - replicas // 4
    t = np.linspace(-40, 15, 5501)
    p, q = np.clip(clean(t), 0, 1), np.clip(poisoned(t), 0, 1)
    table = binomial_lower(counted, FALSE_ALARM / (4 * THRESHOLDS))
    least, most = (
        [binom.ppf(tail, counted, chance).astype(int) for chance in (p, q)] for tail in (4.5e-4, 1 - 4.5e-4)
    )
    higher = table[least[1]] > curve.upper(1 - table[counted - most[0]])
    lower = 1 - table[counted - most[1]] < curve.lower(table[least[0]])
    caught = higher | lower
    pooled = 1 - (p + q) / 2
    edges = np.flatnonzero(np.diff(np.concatenate([[False], caught, [False]]).astype(int)))
    runs = zip(edges[::2], edges[1::2], strict=True)
    return any(pooled[stop - 1] - pooled[start] > 2 / THRESHOLDS for start, stop in runs)


def user_mechanism(**changes):
    return UserFedAvg(
        **{"rounds": 1, "noise_multiplier": 1.0, "sampling": Everyone(), "clip_norm": CLIP_NORM, **changes}
    )


# --- the mistakes -------------------------------------------------------------------------------------------


def small_noise(monkeypatch):
    real = randomness.noise
    monkeypatch.setattr(
        clipping,
        "noise",
        lambda streams, rows, numbers, scale, *cores: real(streams, rows, numbers, 0.8 * scale, *cores),
    )


small_noise_of_users = small_noise_of_drawn_instances = small_noise_of_instances = small_noise


def drawn_instances_clipped_to_twice_the_norm(monkeypatch):
    real = members.clipped_sums

    def longer(*given, clip_norm, **public):
        return real(*given, clip_norm=2 * clip_norm, **public)

    monkeypatch.setattr(members, "clipped_sums", longer)


def clipping_after_summing(monkeypatch):
    real = clipping._sums

    def clip_the_sum(contributions, factors):
        step = CLIP_NORM / real(contributions, torch.ones_like(factors)).new_tensor(2.0**24)
        total = real(contributions, torch.ones_like(factors) / step)
        norms = torch.linalg.vector_norm(total * step, dim=1, keepdim=True)
        return torch.round(total * (CLIP_NORM / norms).clamp(max=1))

    monkeypatch.setattr(clipping, "_sums", clip_the_sum)


def division_by_the_realised_cohort(monkeypatch, module=user_fedavg):
    real = module.play

    def play(mechanism, setting, state, streams, shared):
        after, report = real(mechanism, setting, state, streams, shared)
        expected = mechanism.divisor(setting.users.num_users)
        factor = expected / report.cohort_size.clamp(min=1).unsqueeze(1)
        return replace(after, params=state.params + (after.params - state.params) * factor), report

    monkeypatch.setattr(module, "play", play)


def averaged(canary, users=20, chance=0.5, noise=0.5):
    """Chance of being above t for a canary that pulls to `canary` and `users` others that pull to -1."""

    def above(t):
        found = np.zeros_like(t)
        for drawn in (0, 1):
            for crowd in range(users + 1):
                weight = binom.pmf(drawn, 1, chance) * binom.pmf(crowd, users, chance)
                factor = chance * (users + 1) / max(1, drawn + crowd)
                found += weight * norm.sf(t, (canary * drawn - crowd) * factor, noise * factor)
        return found

    return above


def no_sampling(monkeypatch):
    def everyone(drawn, ids, rounds, seed, replicas, secure):
        return np.ones((len(replicas), rounds, len(ids)), dtype=np.bool_)

    monkeypatch.setattr(seeds, "draw_cohorts", everyone)


def one_layer(monkeypatch):
    monkeypatch.setattr(PerLayer, "sensitivity", 1.0)


@dataclass(frozen=True, kw_only=True)
class Mistake:
    """How to make it, where it shows, and the law (clean, poisoned) that the audit's statistic then has."""

    plant: Callable
    laws: tuple
    mechanism: object = field(default_factory=user_mechanism)
    relation: Relation = REPLACE
    settings: dict = field(default_factory=dict)

    def caught(self, curve, seed):
        found = audit(self.mechanism, self.relation, num_replicas=REPLICAS, seed=seed, **self.settings)
        return found.contradictions(curve).size > 0


FEDSGD = InstanceFedSGD(
    rounds=1,
    noise_multiplier=1.0,
    sampling=FixedSize(cohort=1, users=1),
    batch_probability=1.0,
    clip_norm=CLIP_NORM,
)
FEDAVG = InstanceFedAvg(
    rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=1.0, clip_norm=CLIP_NORM
)
HYBRID = CohortOnce(
    rounds=1,
    noise_multiplier=1.0,
    sampling=Poisson(probability=1.0),
    clip_norm=CLIP_NORM,
    pooled=True,
    unit="instance",
)
SMALLER = (gaussian(-1, 0.8), gaussian(1, 0.8))
MISTAKES = {
    "noise too small, users": Mistake(plant=small_noise_of_users, laws=SMALLER),
    "noise too small, FedSGD": Mistake(
        plant=small_noise_of_instances, laws=SMALLER, mechanism=FEDSGD, settings={"num_users": 1}
    ),
    "noise too small, FedAvg": Mistake(
        plant=small_noise_of_instances, laws=SMALLER, mechanism=FEDAVG, settings={"num_users": 1}
    ),
    "noise too small, drawn instances": Mistake(
        plant=small_noise_of_drawn_instances, laws=SMALLER, mechanism=HYBRID
    ),
    # Three rounds: three times the pull, √3 times the noise.
    "clip norm too large, drawn instances": Mistake(
        plant=drawn_instances_clipped_to_twice_the_norm,
        laws=(gaussian(-6, 3**0.5), gaussian(6, 3**0.5)),
        mechanism=replace(HYBRID, rounds=3),
    ),
    # The others pull to -1; one canary, ten times as strong as each of them, turns the whole sum to +1.
    "clipping after summing": Mistake(
        plant=clipping_after_summing,
        laws=(gaussian(-1, 1), gaussian(1, 1)),
        relation=JOIN,
        settings={"crowd": -0.1},
    ),
    # All pull to -1 and so does the canary's opposite: whoever is drawn, the average is -1. The canary is the
    # only one who moves it, and no longer hidden among the random number of the others.
    "division by the realised cohort": Mistake(
        plant=division_by_the_realised_cohort,
        laws=(averaged(-1), averaged(1)),
        mechanism=user_mechanism(noise_multiplier=0.5, sampling=Poisson(probability=0.5)),
        settings={"crowd": -1.0, "num_users": 20},
    ),
    "division by the drawn instances": Mistake(
        plant=partial(division_by_the_realised_cohort, module=members),
        laws=(averaged(-1), averaged(1)),
        mechanism=replace(HYBRID, noise_multiplier=0.5, sampling=Poisson(probability=0.5)),
        settings={"crowd": -1.0, "num_users": 20},
    ),
    "sampling that is accounted but not done": Mistake(
        plant=no_sampling,
        laws=(gaussian(-1, 1), gaussian(1, 1)),
        mechanism=user_mechanism(sampling=Poisson(probability=0.5)),
    ),
    "layers that are accounted as one": Mistake(
        plant=one_layer,
        laws=(gaussian(-(2**0.5), 1), gaussian(2**0.5, 1)),
        mechanism=user_mechanism(clipping=PerLayer(num_layers=2)),
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_caught(monkeypatch, name):
    mistake = MISTAKES[name]
    mistake.plant(monkeypatch)
    curve = accounted(mistake.mechanism, mistake.relation)
    assert power(curve, *mistake.laws)
    assert mistake.caught(curve, seed=0)


def assert_mostly_caught(caught, name, record_property):
    """As many as POWER promises. Few seeds, which are always the same, must all be caught."""
    record_property("planted", name)
    record_property("caught", sum(caught))
    record_property("trained", len(caught))
    few = len(caught) * (1 - POWER) < 0.1
    assert sum(caught) >= (len(caught) if few else binom.ppf(FALSE_ALARM, len(caught), POWER))


@pytest.mark.slow
@pytest.mark.parametrize("name", MISTAKES)
def test_a_planted_mistake_is_caught_whatever_the_seed(monkeypatch, name, record_property):
    mistake = MISTAKES[name]
    mistake.plant(monkeypatch)
    curve = accounted(mistake.mechanism, mistake.relation)
    # Each audit takes two seeds; those of the test above are not used again.
    caught = [mistake.caught(curve, seed) for seed in range(2, 2 + 2 * SEEDS, 2)]
    assert_mostly_caught(caught, name, record_property)


def test_a_median_that_nobody_hides(monkeypatch):
    # Not a mistake of the code, which calls it heuristic: without noise on the median there is no guarantee.
    mechanism = user_mechanism(clipping=Median())
    assert mechanism.unmet(JOIN)
    found = audit(mechanism, JOIN, num_users=1)
    assert found.contradictions(accounted(mechanism, JOIN)).size > 0


# --- the last mistake: noise that replicas share ----------------------------------------------------------

ROWS, DIM = 1000, 64


def shared_power(share, count=ROWS, dim=DIM):
    """Chance that `dependence` is below FALSE_ALARM if all rows share a part of this variance.

    Rows are √(1-share) zᵢ + √share c. Their mean has variance (1-share)/n + share in each entry, whatever is
    left of a row when the mean is taken off has 1-share: the statistic, which follows an F law where nothing
    is shared, is 1 + n share/(1-share) times as large.
    """
    degrees = dim, (count - 1) * dim
    critical = f_distribution.isf(FALSE_ALARM / 2, *degrees)  # two tests share the false alarm
    return f_distribution.sf(critical / (1 + count * share / (1 - share)), *degrees)


def alike_power(rounding=1e-12, count=ROWS, dim=DIM):
    """One if a pair of equal rows, whose 1 - cos² is no more than `rounding`, is caught, else zero."""
    return float(2 * count * (count - 1) / 2 * betainc((dim - 1) / 2, 0.5, rounding) < FALSE_ALARM)


SHARING = {
    f"noise shared by {who}, {kind}": (mechanism, users, shared_by)
    for who, shared_by in (("pairs", 2), ("all", ROWS))
    for kind, mechanism, users in (
        ("users", user_mechanism(), 4),
        ("instances", FEDAVG, 1),
        ("drawn instances", HYBRID, 4),
    )
}


@pytest.fixture
def share_noise(monkeypatch):
    def install(shared_by):
        def shared(seed, purpose, replica, device, secure):
            own = replica // shared_by if purpose is Purpose.NOISE else replica
            return Stream(seed, purpose, own, device)

        monkeypatch.setattr(train, "Stream", shared)

    return install


@pytest.mark.parametrize("name", SHARING)
def test_replicas_that_share_their_noise_are_caught(share_noise, name):
    mechanism, users, shared_by = SHARING[name]
    share_noise(shared_by)
    rows = noise_rows(mechanism, num_users=users, num_replicas=ROWS)
    assert rows.shape == (ROWS, DIM)
    assert (rows[0] == rows[1]).all()  # bit by bit, hence 1 - cos² is the rounding of one division
    assert alike_power() >= POWER
    assert dependence(rows) < FALSE_ALARM


@pytest.mark.slow
@pytest.mark.parametrize("name", SHARING)
def test_replicas_that_share_their_noise_are_caught_whatever_the_seed(share_noise, name, record_property):
    mechanism, users, shared_by = SHARING[name]
    share_noise(shared_by)
    rows = (
        noise_rows(mechanism, num_users=users, num_replicas=ROWS, seed=seed) for seed in range(1, 1 + SEEDS)
    )
    assert_mostly_caught([dependence(row) < FALSE_ALARM for row in rows], name, record_property)


@pytest.mark.parametrize("share", [0.001, 0.003, 0.1])
def test_a_part_of_the_noise_that_replicas_share_is_caught(share):
    rng = np.random.default_rng(0)
    trials = 100
    caught = []
    for _ in range(trials):
        common, own = rng.normal(size=(1, DIM)), rng.normal(size=(ROWS, DIM))
        caught.append(dependence(np.sqrt(1 - share) * own + np.sqrt(share) * common) < FALSE_ALARM)
    low, high = binom.interval(1 - FALSE_ALARM, trials, shared_power(share))
    assert low <= sum(caught) <= high
    assert shared_power(share) >= POWER or share < 0.003  # of the variance
