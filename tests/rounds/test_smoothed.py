"""One release and draws around it: how much noise, what a user adds, and attacks that shift the sum."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.stats import chi2, norm

from fedproof.accounting import account, ensemble_account
from fedproof.accounting.ledger import Ledger
from fedproof.certificates import certify, certify_means
from fedproof.ensemble import Task, first_updates, released, train_replicas
from fedproof.ensemble.task import start_of
from fedproof.mechanisms import LocalTraining, Smoothed
from fedproof.models import build
from fedproof.threat import Relation, ThreatModel
from fedproof.training import train

FALSE_ALARM = 1e-6
MECHANISM = Smoothed(noise_multiplier=1.0, smoothing=6.0, clip_norm=0.5, population=30)
HOSTILE = (3e38, -3e38, 1e20, np.inf, np.nan, 1e-42, 0.0)


@pytest.fixture
def task(federation):
    local = LocalTraining(batch_size=2, epochs=2, learning_rate=0.5)
    return Task(
        federation=federation, model=build("linear", federation), mechanism=MECHANISM, local=local, seed=3
    )


def is_scale(numbers, std):
    """Whether these are normal numbers of this standard deviation; 5 % less would be caught."""
    low, high = chi2.interval(1 - FALSE_ALARM, df=numbers.size)
    statistic = float(np.square(numbers / std).sum())
    assert statistic * 0.95**2 < low
    return low < statistic < high


def test_both_noises_have_the_stated_scale_and_nothing_in_common(federation):
    mlp = build("mlp", federation, hidden=(1500,))
    work = Task(federation=federation, model=mlp, mechanism=MECHANISM, local=LocalTraining(batch_size=2))
    centre = released(work, torch.zeros(10, mlp.layout.dim)).numpy()  # nobody sends anything
    assert is_scale(centre, 1.0 * 0.5)
    drawn = train_replicas(work, range(3), first_updates=torch.from_numpy(centre)).params.double()
    around = (drawn - start_of(work, 0).double()).numpy() * 30 - centre
    assert is_scale(around, 6.0 * 0.5)
    together = np.corrcoef(np.vstack([centre, around]))[np.triu_indices(4, 1)]
    assert np.abs(together).max() < 5 / np.sqrt(centre.size)


def test_a_user_changes_the_sum_by_its_own_clipped_vector_alone_whatever_it_sends(task):
    honest = first_updates(task)
    without = released(task, torch.cat([honest[:4], honest[5:]]))
    rng = np.random.default_rng(0)
    for value in HOSTILE:
        updates = honest.clone()
        updates[4] = torch.from_numpy(rng.choice([value, 1.0, -2.0], size=honest.shape[1]))
        moved = released(task, updates) - without
        assert moved.norm() <= MECHANISM.clip_norm
        assert moved.any() == bool(updates[4].isfinite().all())
    order = torch.from_numpy(rng.permutation(len(honest)))
    torch.testing.assert_close(released(task, honest[order]), released(task, honest), rtol=0, atol=0)
    longest = honest * 1e6
    longest[1:] = 0
    moved = released(task, longest) - released(task, 0 * longest)
    np.testing.assert_allclose(float(moved.norm()), MECHANISM.clip_norm, rtol=1e-5)


def leads(task, inputs):
    """Directions `(inputs, dim)` in which the lead of class 0 over class 1 grows; the model is linear."""
    params = torch.zeros(1, task.model.layout.dim, requires_grad=True)
    logits = task.model.logits(params, torch.from_numpy(inputs)[None])[0]
    found = [torch.autograd.grad(row[0] - row[1], params, retain_graph=True)[0][0] for row in logits]
    return torch.stack(found).double()


def vote_share(task, centre, direction):
    """The exact share of draws that vote for class 0, which one number decides: the model is linear."""
    lead = (start_of(task, 0).double() * 30 + centre) @ direction
    return float(norm.cdf(lead / (MECHANISM.smoothing * MECHANISM.clip_norm * direction.norm())))


@pytest.mark.parametrize("relation", Relation)
@pytest.mark.parametrize("place", range(3))
def test_shifts_of_the_certified_size_leave_the_label_and_one_more_user_turns_it(federation, relation, place):
    """All users pull for class 0 as hard as they can, the poisoned ones against it: the bound is attained."""
    two = replace(
        federation,
        labels=federation.labels % 2,
        test_labels=federation.test_labels % 2,
        class_names=("a", "b"),
    )
    task = Task(
        federation=two, model=build("linear", two), mechanism=MECHANISM, local=LocalTraining(), seed=3
    )
    direction = leads(task, two.test_features)[place]
    pull = (direction / direction.norm()).float() * 9
    users = pull.repeat(40, 1)  # more than the federation has: what they hand in is all that counts
    clean = vote_share(task, released(task, users), direction)
    assert clean > 0.5
    threat = ThreatModel(relation=relation)
    exact = certify_means(
        [[clean, 1 - clean]], mechanism=MECHANISM, threat=threat, method="vote"
    ).certified_size[0]
    draws = train_replicas(task, range(400), first_updates=released(task, users)).scores
    drawn = certify(draws, mechanism=MECHANISM, threat=threat, method="vote").certified_size[place]
    assert 1 <= drawn <= exact

    def attacked(count):
        against = -pull.repeat(count, 1)
        kept = users if relation is Relation.JOIN else users[count:]
        return vote_share(task, released(task, torch.cat([kept, against])), direction)

    assert attacked(drawn) > 0.5
    assert attacked(exact) > 0.5
    assert attacked(exact + 1) < 0.5


def test_epsilon_is_that_of_one_release_whatever_the_number_of_draws():
    one = account(MECHANISM, 1e-3)["pld"]
    for replicas in (1, 2, 1000, 10**6):
        assert ensemble_account(MECHANISM, 1e-3, replicas)["pld"] == one
        ledger = Ledger.of(MECHANISM, 1e-3).spend(replicas)
        assert ledger.epsilon["pld"] == one
        assert ledger.affordable(one, replicas) == replicas
        assert ledger.affordable(one * 0.99, replicas) == 0
    assert account(replace(MECHANISM, smoothing=100.0), 1e-3)["pld"] == one


def test_sizes_follow_from_the_smoothing_and_not_from_the_noise_of_the_release():
    means = [[0.99, 0.01]]
    known = {"threat": ThreatModel(relation="join"), "method": "vote"}
    found = certify_means(means, mechanism=MECHANISM, **known).certified_size
    assert found == (13,)  # below 6 Φ⁻¹(0.99) = 13.96
    louder = replace(MECHANISM, noise_multiplier=50.0)
    assert certify_means(means, mechanism=louder, **known).certified_size == found
    for method in ("paper", "renyi"):
        with pytest.raises(ValueError, match=f"method = '{method}' rests on the epsilon of the release"):
            certify_means(means, mechanism=MECHANISM, method=method, delta=1e-3)


def test_from_python_and_what_is_refused(task):
    result = train(task, 300)
    assert result.scores.shape == (300, 5, 3)
    certificate = result.certify(method="vote")
    assert certificate.sound
    assert {"drawn", "this-release-smoothed"} <= {one.code for one in certificate.assumptions}
    assert not result.certify("join", method="vote").sound  # users without identities
    again = train_replicas(task, range(120, 140)).scores  # the seed repeats the release as well
    np.testing.assert_allclose(again, result.scores[120:140], atol=1e-6)
    secure = replace(task, secure_noise=True)
    with pytest.raises(ValueError, match="make it once, by released"):
        train_replicas(secure, range(2))
    one, other = (train_replicas(secure, range(2), first_updates=released(secure)) for _ in range(2))
    assert (one.params != other.params).any()
    with pytest.raises(ValueError, match="own_start = True must be False for kind = 'smoothed'"):
        replace(task, own_start=True)
    with pytest.raises(ValueError, match="smoothing = 0"):
        replace(MECHANISM, smoothing=0.0)
