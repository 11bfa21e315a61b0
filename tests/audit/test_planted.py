"""Mistakes planted into the real code: the audit must catch each, with probability at least 0.999.

The law of the statistic under each mistake is known in closed form. `power` computes from it the chance that
the audit, at FALSE_ALARM, contradicts the guarantee; what is asserted is both the power and the catch itself.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import binom, norm

from fedproof.accounting import tradeoff
from fedproof.audit import audit, dependence, noise_rows
from fedproof.certificates.confidence import binomial_lower
from fedproof.ensemble import train
from fedproof.mechanisms import instance, sampling, user_fedavg
from fedproof.mechanisms.randomness import Purpose, Stream
from fedproof.mechanisms.sampling import expected_cohort
from fedproof.protocol import (
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Median,
    PerLayer,
    Poisson,
    UserFedAvg,
)
from fedproof.threat import Relation, ThreatModel

FALSE_ALARM = 1e-6
CLIP_NORM = 1e-4
REPLICAS, THRESHOLDS = 8000, 32
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


def assert_caught(mechanism, relation, laws, **settings):
    curve = accounted(mechanism, relation)
    assert power(curve, *laws)
    assert audit(mechanism, relation, num_replicas=REPLICAS, **settings).contradictions(curve).size > 0


def test_noise_too_small_at_user_level(monkeypatch):
    real = user_fedavg.add_noise
    monkeypatch.setattr(
        user_fedavg, "add_noise", lambda total, std, sizes, streams: real(total, 0.8 * std, sizes, streams)
    )
    assert_caught(user_mechanism(), REPLACE, (gaussian(-1, 0.8), gaussian(1, 0.8)))


@pytest.mark.parametrize(
    "mechanism",
    [
        InstanceFedSGD(
            rounds=1,
            noise_multiplier=1.0,
            sampling=FixedSize(cohort=1, users=1),
            batch_probability=1.0,
            clip_norm=CLIP_NORM,
        ),
        InstanceFedAvg(
            rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=1.0, clip_norm=CLIP_NORM
        ),
    ],
    ids=lambda mechanism: type(mechanism).__name__,
)
def test_noise_too_small_at_instance_level(monkeypatch, mechanism):
    real = instance._noise
    monkeypatch.setattr(instance, "_noise", lambda *arguments: 0.8 * real(*arguments))
    assert_caught(mechanism, REPLACE, (gaussian(-1, 0.8), gaussian(1, 0.8)), num_users=1)


def test_clipping_after_summing(monkeypatch):
    real_bound, real_noise = user_fedavg.bound, user_fedavg.add_noise

    def whole(contributions, clipping, clip_norms):
        bounded = real_bound(contributions, clipping, clip_norms)
        scales = contributions.present.unsqueeze(2).to(contributions.updates.dtype)
        return replace(bounded, contributions=replace(bounded.contributions, scales=scales))

    def clip_then_noise(total, std, sizes, streams):
        norms = torch.linalg.vector_norm(total, dim=1, keepdim=True)
        return real_noise(total * (CLIP_NORM / norms).clamp(max=1), std, sizes, streams)

    monkeypatch.setattr(user_fedavg, "bound", whole)
    monkeypatch.setattr(user_fedavg, "add_noise", clip_then_noise)
    # The others pull to -1; one canary, ten times as strong as each of them, turns the whole sum to +1.
    assert_caught(user_mechanism(), JOIN, (gaussian(-1, 1), gaussian(1, 1)), crowd=-0.1)


def test_division_by_the_realised_cohort(monkeypatch):
    real = user_fedavg.play

    def play(mechanism, setting, state, streams, shared):
        after, report = real(mechanism, setting, state, streams, shared)
        expected = expected_cohort(mechanism.sampling, setting.users.num_users)
        factor = expected / report.cohort_size.clamp(min=1).unsqueeze(1)
        return replace(after, params=state.params + (after.params - state.params) * factor), report

    monkeypatch.setattr(user_fedavg, "play", play)
    # All pull to -1 and so does the canary's opposite: whoever is drawn, the average is -1. The canary is the
    # only one who moves it, and no longer hidden among the random number of the others.
    users, chance, noise = 20, 0.5, 0.5

    def law(canary):
        def above(t):
            found = np.zeros_like(t)
            for drawn in (0, 1):
                for crowd in range(users + 1):
                    weight = binom.pmf(drawn, 1, chance) * binom.pmf(crowd, users, chance)
                    factor = chance * (users + 1) / max(1, drawn + crowd)
                    found += weight * norm.sf(t, (canary * drawn - crowd) * factor, noise * factor)
            return found

        return above

    mechanism = user_mechanism(noise_multiplier=noise, sampling=Poisson(probability=chance))
    assert_caught(mechanism, REPLACE, (law(-1), law(1)), crowd=-1.0, num_users=users)


def test_sampling_that_is_accounted_but_not_done(monkeypatch):
    def everyone(drawn, num_users, rounds, seed, replicas, secure):
        return np.ones((len(replicas), rounds, num_users), dtype=np.bool_)

    monkeypatch.setattr(sampling, "draw_cohorts", everyone)
    mechanism = user_mechanism(sampling=Poisson(probability=0.5))
    assert_caught(mechanism, REPLACE, (gaussian(-1, 1), gaussian(1, 1)))


def test_layers_that_are_accounted_as_one(monkeypatch):
    monkeypatch.setattr(PerLayer, "sensitivity", 1.0)
    mechanism = user_mechanism(clipping=PerLayer(num_layers=2))
    assert_caught(mechanism, REPLACE, (gaussian(-(2**0.5), 1), gaussian(2**0.5, 1)))


def test_a_median_that_nobody_hides(monkeypatch):
    # Not a mistake of the code, which calls it heuristic: without noise on the median there is no guarantee.
    mechanism = user_mechanism(clipping=Median())
    assert mechanism.reasons
    found = audit(mechanism, JOIN, num_users=1)
    assert found.contradictions(accounted(mechanism, JOIN)).size > 0


@pytest.mark.parametrize("shared_by", [2, 1000], ids=["pairs", "all"])
@pytest.mark.parametrize(
    ("mechanism", "users"),
    [
        (user_mechanism(), 4),
        (
            InstanceFedAvg(
                rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=1.0, clip_norm=CLIP_NORM
            ),
            1,
        ),
    ],
    ids=["user", "instance"],
)
def test_replicas_that_share_their_noise(monkeypatch, shared_by, mechanism, users):
    def shared(seed, purpose, replica, device, secure):
        return Stream(seed, purpose, replica // shared_by if purpose is Purpose.NOISE else replica, device)

    monkeypatch.setattr(train, "Stream", shared)
    # Equal rows have |cos| = 1 but for rounding: caught with probability one.
    assert dependence(noise_rows(mechanism, num_users=users)) < FALSE_ALARM


def test_replicas_that_share_a_tenth_of_their_noise():
    # 1,000 rows of 64: the mean of a common part of variance 0.1 is 100 times as long as that of chance.
    rng = np.random.default_rng(0)
    common = rng.normal(size=(1, 64))
    rows = np.sqrt(0.9) * rng.normal(size=(1000, 64)) + np.sqrt(0.1) * common
    assert dependence(rows) < FALSE_ALARM
