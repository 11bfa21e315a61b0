"""No audit speaks against the code as it is, and each comes close to what is accounted."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import norm

from fedproof.accounting import account, tradeoff
from fedproof.accounting.tradeoff import GaussianTradeoff
from fedproof.audit import audit, canary_pair, dependence, evidence, noise_rows, statistics
from fedproof.ensemble import Task, one_round
from fedproof.federation import Federation
from fedproof.mechanisms import (
    CohortOnce,
    Everyone,
    FixedSize,
    Flat,
    InstanceFedAvg,
    InstanceFedSGD,
    Local,
    LocalTraining,
    OneRound,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.mechanisms.uploads import Ball, NonNegative, Pairs, Rows
from fedproof.models import build
from fedproof.release import summed
from fedproof.threat import Relation, ThreatModel

CLIP_NORM = 1e-4
JOIN, REPLACE = Relation.JOIN, Relation.REPLACE
CLIPS = [Flat(), PerLayer(num_layers=3), Quantile(count_noise_std=2.0)]
# (sampling, relation): cohorts of a fixed size know no `join`
SAMPLINGS = [
    (Poisson(probability=0.5), JOIN),
    (Poisson(probability=0.5), REPLACE),
    (Poisson(probability=0.1), REPLACE),
    (FixedSize(cohort=3, users=5), REPLACE),
    (Everyone(), JOIN),
    (Everyone(), REPLACE),
]
FEDSGD = InstanceFedSGD(
    rounds=1,
    noise_multiplier=0.7,
    sampling=FixedSize(cohort=2, users=4),
    batch_probability=0.5,
    clip_norm=CLIP_NORM,
)
FEDAVG = InstanceFedAvg(
    rounds=1, local_steps=2, noise_multiplier=1.0, batch_probability=0.4, clip_norm=CLIP_NORM
)


def hybrid(unit, sampling, **changes):
    return CohortOnce(
        **{"rounds": 3, "noise_multiplier": 1.5, "clip_norm": CLIP_NORM, **changes},
        sampling=sampling,
        unit=unit,
        pooled=unit == "instance",
    )


HYBRID = hybrid("instance", Poisson(probability=0.5))


def accounted(mechanism, relation, size=1):
    return tradeoff(mechanism, ThreatModel(unit=mechanism.unit, relation=relation), size)


def user_fedavg(**changes):
    return UserFedAvg(
        **{"rounds": 1, "noise_multiplier": 1.0, "sampling": Everyone(), "clip_norm": CLIP_NORM, **changes}
    )


@pytest.mark.parametrize(("sampling", "relation"), SAMPLINGS, ids=str)
@pytest.mark.parametrize("clipping", CLIPS, ids=lambda clipping: type(clipping).__name__)
def test_canaries_at_user_level_do_not_exceed_what_is_accounted(clipping, sampling, relation):
    # Three rounds where clip norms change between rounds, and where one round is not all there is to see.
    rounds = 3 if isinstance(clipping, Quantile) or sampling == Poisson(probability=0.1) else 1
    mechanism = user_fedavg(rounds=rounds, sampling=sampling, clipping=clipping)
    found = audit(mechanism, relation)
    assert found.contradictions(accounted(mechanism, relation)).size == 0


@pytest.mark.parametrize(("sampling", "relation"), SAMPLINGS[:4], ids=str)
@pytest.mark.parametrize("unit", ["user", "instance"])
@pytest.mark.parametrize("size", [1, 2])
def test_canaries_of_a_sample_drawn_once_do_not_exceed_what_is_accounted(unit, sampling, relation, size):
    mechanism = hybrid(unit, sampling)
    found = audit(mechanism, relation, size=size, num_users=5 - size)
    assert found.contradictions(accounted(mechanism, relation, size)).size == 0


def test_rounds_on_one_sample_leak_more_than_samples_drawn_anew_and_no_more_than_is_accounted():
    mechanism = hybrid("instance", Poisson(probability=0.1), rounds=9, noise_multiplier=0.9)
    found = audit(mechanism, JOIN, num_replicas=8000)
    assert found.contradictions(accounted(mechanism, JOIN)).size == 0
    assert 1 < found.epsilon_lower(1e-3) < account(mechanism, 1e-3, ["pld"])["pld"]
    anew = user_fedavg(rounds=9, noise_multiplier=0.9, sampling=mechanism.sampling)
    assert found.contradictions(accounted(anew, JOIN)).size > 0  # what a wrong account would look like


@pytest.mark.parametrize(
    "mechanism", [user_fedavg(sampling=Poisson(probability=0.5)), FEDSGD, FEDAVG, HYBRID]
)
def test_nor_do_they_with_noise_from_the_operating_system(mechanism):
    users = 1 if mechanism is FEDAVG else 4
    found = audit(mechanism, REPLACE, num_users=users, secure_noise=True)
    assert found.contradictions(accounted(mechanism, REPLACE)).size == 0


def test_noise_from_the_operating_system_reaches_what_is_accounted():
    mechanism = user_fedavg()
    found = audit(mechanism, REPLACE, num_users=1, num_replicas=8000, secure_noise=True)
    exact = accounted(mechanism, REPLACE)
    assert found.contradictions(exact).size == 0
    assert found.contradictions(GaussianTradeoff(shift=0.85 * exact.shift)).size > 0


@pytest.mark.parametrize("sampling", [Poisson(probability=0.5), Everyone()], ids=str)
@pytest.mark.parametrize("crowd", [-0.1, -1.0])
def test_nor_do_they_where_the_others_pull_against_them(sampling, crowd):
    mechanism = user_fedavg(sampling=sampling)
    for relation in Relation:
        found = audit(mechanism, relation, crowd=crowd)
        assert found.contradictions(accounted(mechanism, relation)).size == 0


@pytest.mark.parametrize("mechanism", [FEDSGD, FEDAVG], ids=lambda mechanism: type(mechanism).__name__)
@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("size", [1, 3])
def test_canaries_at_instance_level_do_not_exceed_what_is_accounted(mechanism, relation, size):
    users = 4 if mechanism is FEDSGD else 1
    found = audit(mechanism, relation, size=size, num_users=users)
    assert found.contradictions(accounted(mechanism, relation, size)).size == 0


@pytest.mark.parametrize("relation", Relation)
def test_several_canaries_do_not_exceed_what_is_accounted_for_as_many(relation):
    mechanism = user_fedavg(noise_multiplier=2.0, sampling=Poisson(probability=0.5))
    found = audit(mechanism, relation, size=4)
    assert found.contradictions(accounted(mechanism, relation, 4)).size == 0
    assert found.contradictions(accounted(mechanism, relation, 1)).size > 0  # and the audit sees all four


@pytest.mark.parametrize(
    ("mechanism", "relation", "users"),
    [
        (user_fedavg(noise_multiplier=0.5), JOIN, 1),
        (user_fedavg(), REPLACE, 1),
        (user_fedavg(clipping=PerLayer(num_layers=3), noise_multiplier=1.7), REPLACE, 1),
        (
            InstanceFedAvg(
                rounds=1, local_steps=1, noise_multiplier=1.0, batch_probability=1.0, clip_norm=CLIP_NORM
            ),
            REPLACE,
            1,
        ),
        (hybrid("user", Poisson(probability=1.0)), REPLACE, 1),
        (hybrid("instance", Poisson(probability=1.0)), REPLACE, 1),
    ],
)
def test_canaries_reach_what_is_accounted(mechanism, relation, users):
    # A blind audit would pass everything: a guarantee 15 % better than the true one is contradicted.
    found = audit(mechanism, relation, num_users=users, num_replicas=8000)
    exact = accounted(mechanism, relation)
    assert isinstance(exact, GaussianTradeoff)
    assert found.contradictions(exact).size == 0
    assert found.contradictions(GaussianTradeoff(shift=0.85 * exact.shift)).size > 0


def test_epsilon_stays_below_the_exact_one():
    # Gaussian mechanism, shift one: δ(ε) = Φ(1/2 - ε) - e^ε Φ(-1/2 - ε) (Balle and Wang 2018, Theorem 8)
    found = audit(user_fedavg(), JOIN, num_replicas=20_000)
    delta = 1e-3
    epsilon = found.epsilon_lower(delta)
    assert epsilon > 1.0
    assert norm.cdf(0.5 - epsilon) - np.exp(epsilon) * norm.cdf(-0.5 - epsilon) > delta


def test_the_statistic_has_the_law_it_is_meant_to_have():
    tasks = canary_pair(user_fedavg(clipping=PerLayer(num_layers=4)), REPLACE)
    for task, mean in zip(tasks, (-2.0, 2.0), strict=True):  # √4 clip norms
        sample = statistics(task, 2000)
        assert abs(sample.mean() - mean) < 5 / np.sqrt(2000)
        assert abs(sample.std() - 1) < 5 / np.sqrt(4000)


@pytest.mark.parametrize(
    ("mechanism", "users"),
    [(user_fedavg(), 4), (user_fedavg(rounds=2), 4), (FEDSGD, 4), (FEDAVG, 1), (HYBRID, 4)],
    ids=["one round", "two rounds", "fedsgd", "fedavg", "hybrid"],
)
def test_replicas_have_noise_of_their_own(mechanism, users):
    assert dependence(noise_rows(mechanism, num_users=users)) > 1e-6


def test_bad_arguments_are_named():
    with pytest.raises(ValueError, match=r"clip_norm = 1.0 must be at most 0.001"):
        audit(user_fedavg(clip_norm=1.0), REPLACE)
    with pytest.raises(ValueError, match="not defined for cohorts of a fixed size"):
        audit(user_fedavg(sampling=FixedSize(cohort=3, users=5)), JOIN)
    with pytest.raises(ValueError, match="8 finite numbers or more"):
        evidence(np.zeros(3), np.zeros(30))
    with pytest.raises(ValueError, match="no noise at all"):
        dependence(np.zeros((3, 3)))


# --- one release: canaries send the longest vector there is, and nobody else moves the sum ------------------

HEAD, NEAR = {"features": 2, "classes": 2}, {"anchors": 2, "classes": 2, "sharpness": 50.0}
ONCE = [Ball(**HEAD), Rows(**HEAD), Pairs(**HEAD), NonNegative(**NEAR)]


def task_with(mechanism, canaries):
    """A user who adds nothing, and `canaries`, two instances each."""
    rows = np.array([(0.0, 0.0), (0.0, 0.0), *(row for canary in canaries for row in canary)])
    federation = Federation(
        features=rows.astype(np.float32),
        labels=np.arange(len(rows)) % 2,
        offsets=np.arange(0, len(rows) + 1, 2),
        test_features=np.ones((1, 2), dtype=np.float32),
        test_labels=np.zeros(1, dtype=np.int64),
        class_names=("a", "b"),
        name="canaries",
        public_features=np.eye(2, dtype=np.float32),
    )
    return Task(
        federation=federation,
        model=build("linear", federation),
        mechanism=mechanism,
        local=LocalTraining(solver="sums"),
    )


def sums_of_releases(mechanism, canaries, monkeypatch, *, num_releases=8000, seed=0):
    """Of a user who adds nothing and `canaries`, two instances each: released sums, and one without noise."""
    task = task_with(mechanism, canaries)
    sent = list(one_round.uploads_of(task))
    with monkeypatch.context() as patched:  # what is sent depends on no seed: computed once
        patched.setattr(one_round, "uploads_of", lambda task, units: sent)
        seeds = range(seed, seed + num_releases)
        totals = [one_round.release(replace(task, seed=one)).total.ravel() for one in seeds]
    step = mechanism.grid.step
    return np.array(totals) * step, sum(summed(mechanism, part) for part in sent).ravel() * step


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("upload", ONCE, ids=lambda upload: upload.kind)
def test_canaries_in_one_release_come_close_to_what_is_accounted(upload, relation, monkeypatch):
    reach = upload.norm if relation is JOIN else upload.distance
    mechanism = OneRound(upload=upload, noise_multiplier=reach / upload.norm / 2)
    canary, other = [(1.0, 0.0), (-1.0, 0.0)], [(-1.0, 0.0), (1.0, 0.0)]
    if upload.bumps:
        canary, other = [(1.0, 0.0), (1.0, 0.0)], [(0.0, 1.0), (0.0, 1.0)]
    before = [] if relation is JOIN else [other]
    clean, less = sums_of_releases(mechanism, before, monkeypatch)
    poisoned, more = sums_of_releases(mechanism, [canary], monkeypatch, seed=10_000)
    found = evidence(clean @ (more - less), poisoned @ (more - less))
    (query,) = mechanism.queries if relation is JOIN else mechanism.replaced
    shift = (1 if relation is JOIN else 2) / query.noise_multiplier
    assert shift == pytest.approx(2)
    assert found.contradictions(GaussianTradeoff(shift=shift)).size == 0
    assert found.contradictions(GaussianTradeoff(shift=0.85 * shift)).size > 0


# --- users' own noise: what the server sees of one, and what the sum alone tells --------------------------


def own_noise(mechanism, canary, monkeypatch, *, num=4000, seed=0):
    """What one user sends, and the sum of it and of three others, each with noise of its own."""
    task = task_with(mechanism, [canary, [(0.0, 0.0)] * 2, [(0.0, 0.0)] * 2])
    made, own, sent, totals = list(one_round._honest(task, range(4))), one_round.uploads_of, [], []
    with monkeypatch.context() as patched:
        patched.setattr(one_round, "_honest", lambda task, asked: made)
        for one in (replace(task, seed=number) for number in range(seed, seed + num)):
            noised = list(own(one))
            patched.setattr(one_round, "uploads_of", lambda task, units, noised=noised: noised)
            sent.append(noised[0][1].ravel())
            totals.append(one_round.release(one).total.ravel() * mechanism.grid.step)
    return np.array(sent), np.array(totals)


@pytest.mark.parametrize("upload", [Ball(**HEAD), Rows(**HEAD)], ids=lambda upload: upload.kind)
def test_canaries_under_their_own_noise_come_close_to_what_is_accounted(upload, monkeypatch):
    mechanism = Local(upload=upload, noise_multiplier=0.5, honest=4)
    canary, other = [(1.0, 0.0), (-1.0, 0.0)], [(-1.0, 0.0), (1.0, 0.0)]
    first = own_noise(mechanism, canary, monkeypatch)
    second = own_noise(mechanism, other, monkeypatch, seed=10_000)
    (server,) = mechanism.replaced
    together, _ = mechanism.sum_query(REPLACE)
    for seen, (clean, poisoned) in ((server, (first[0], second[0])), (together, (first[1], second[1]))):
        way = np.array([1.0, -1.0, 0.0, 0.0])  # a canary's head, as far from the other as the set is wide
        found = evidence(clean @ way, poisoned @ way)
        shift = 2 / seen.noise_multiplier
        assert found.contradictions(GaussianTradeoff(shift=shift)).size == 0
        assert found.contradictions(GaussianTradeoff(shift=0.8 * shift)).size > 0  # noise of 4/5 is caught
