"""The planner shows what `fedproof plan` computes."""

import itertools

import pytest

from fedproof.certificates.planning import certifies, noise_for_size
from fedproof.mechanisms import Everyone, FixedSize, InstanceFedSGD, Poisson, Query, UserFedAvg
from fedproof.report.planner import make_plan, query_at, sizes_along
from fedproof.report.run_data import read_run
from fedproof.threat import ThreatModel


@pytest.fixture(scope="module")
def made(make_run):
    run = read_run(make_run(), pictures=False)
    return run, make_plan(run)


def test_every_size_holds_and_the_next_does_not(made):
    run, found = made
    own = run.certificate.mechanism
    places = itertools.product(
        enumerate(found.noises), enumerate(found.probabilities), enumerate(found.rounds)
    )
    for place, ((i, noise), (j, probability), (r, rounds)) in enumerate(places):
        if place % 4:  # one in four, all kinds among them: each costs two curves
            continue
        size, query = found.sizes[i][j][r], query_at(own, noise, probability, rounds)
        question = {"top": found.top, "rival": found.rival}
        assert size == 0 or certifies(query, found.threat, size=size, **question)
        assert size == found.most or not certifies(query, found.threat, size=size + 1, **question)


def test_the_noise_that_plan_asks_for_certifies_on_the_grid(made):
    run, found = made
    i, j, r = found.start
    noise = noise_for_size(
        size=found.here,
        top=found.top,
        rival=found.rival,
        sampling=run.certificate.mechanism.sampling,
        rounds=found.rounds[r],
        threat=found.threat,
    )
    assert noise <= found.noises[i]
    below = [
        size
        for value, plane in zip(found.noises, found.sizes, strict=True)
        if value < noise
        for size in [plane[j][r]]
    ]
    assert all(size < found.here for size in below)


def test_the_run_itself_is_on_the_grid(made):
    run, found = made
    i, j, r = found.start
    own = run.certificate.mechanism
    assert (found.noises[i], found.probabilities[j], found.rounds[r]) == (
        own.noise_multiplier,
        own.sampling.probability,
        own.rounds,
    )
    median = run.summary.certified_size.median
    assert abs(found.here - median) <= 1  # the same confidences, rounded to four digits


@pytest.mark.parametrize("relation", ["join", "replace"])
@pytest.mark.parametrize(
    "sampling", [Poisson(probability=0.2), Poisson(probability=1.0), Everyone()], ids=str
)
def test_sizes_are_found_from_any_guess(relation, sampling):
    threat = ThreatModel(relation=relation)
    queries = [Query(noise_multiplier=noise, sampling=sampling, count=2) for noise in (0.4, 1.0, 3.0)]
    found = sizes_along(queries, threat, top=0.8, rival=0.15, most=8)
    for query, size in zip(queries, found, strict=True):
        every = [certifies(query, threat, size=k, top=0.8, rival=0.15) for k in range(1, 9)]
        assert size == (every.index(False) if False in every else 8)


def test_a_fixed_cohort_stays_one():
    mechanism = UserFedAvg(rounds=2, noise_multiplier=2.0, sampling=FixedSize(cohort=24, users=96))
    query = query_at(mechanism, 3.0, 0.5, 4)
    assert query == Query(noise_multiplier=3.0, sampling=FixedSize(cohort=48, users=96), count=4)


def test_instances_vary_their_batch():
    mechanism = InstanceFedSGD(
        rounds=2, noise_multiplier=2.0, sampling=FixedSize(cohort=4, users=8), batch_probability=0.1
    )
    query = query_at(mechanism, 3.0, 0.2, 4)
    assert (query.noise_multiplier, query.sampling, query.count) == (6.0, Poisson(probability=0.2), 4)
    assert query.selection_probability == 0.5


def test_nothing_to_plan_without_a_decided_input(make_run):
    assert make_plan(read_run(make_run("mechanism.kind=fedavg"), pictures=False)) is None
