"""The attacker's cost, the verdict on an attacked ensemble, and what an attack costs the experimenter."""

import time

import numpy as np
import pytest
from scipy.stats import binom

from fedproof.arrays import ensemble_accuracy
from fedproof.attacks import Attack, Goal, build_attack, choose_adversaries
from fedproof.certificates import ApproximateDP, certify
from fedproof.ensemble import first_updates, train_replicas
from fedproof.robustness.outcome import costs, interval, losses, scores_on, success_rate, train, verdict
from fedproof.robustness.poisoned import attacked_first_updates, under_attack
from tests.attacks.conftest import demo_task

FALSE_ALARM = 1e-6


def random_scores(replicas, inputs, classes, seed=0):
    return np.random.default_rng(seed).dirichlet(np.ones(classes), (replicas, inputs)).astype(np.float32)


def test_losses_are_mean_cross_entropies():
    scores, labels = random_scores(5, 4, 3), np.array([0, 2, 1, 1])
    inputs = np.zeros((4, 2))
    wanted = losses(scores, Goal(inputs=inputs, labels=labels))
    avoided = losses(scores, Goal(inputs=inputs, labels=labels, wanted=False))
    for replica in range(5):
        chosen = [float(scores[replica, i, labels[i]]) for i in range(4)]
        assert wanted[replica] == pytest.approx(np.mean([-np.log(p) for p in chosen]), rel=1e-5)
        assert avoided[replica] == pytest.approx(np.mean([-np.log1p(-p) for p in chosen]), rel=1e-5)


def test_with_two_classes_to_avoid_one_is_to_want_the_other():
    scores, labels = random_scores(6, 5, 2), np.array([0, 1, 1, 0, 1])
    inputs = np.zeros((5, 2))
    avoided = losses(scores, Goal(inputs=inputs, labels=labels, wanted=False))
    np.testing.assert_allclose(avoided, losses(scores, Goal(inputs=inputs, labels=1 - labels)), rtol=1e-5)


def test_hopeless_models_cost_the_bound_not_infinity():
    goal = Goal(inputs=np.zeros((1, 2)), labels=np.array([0]))
    found = losses(np.array([[[0.0, 1.0]]]), goal)
    assert np.isfinite(found).all()
    assert costs(found, 2.0).tolist() == [2.0]
    with pytest.raises(ValueError, match=r"cost_bound = 0\.0"):
        costs(found, 0.0)
    with pytest.raises(ValueError, match="one label for each of at least one input"):
        Goal(inputs=np.zeros((0, 2)), labels=np.zeros(0, dtype=np.int64))


def test_success_is_the_share_of_inputs_answered_as_wanted():
    task = demo_task(rounds=1)
    attack = build_attack("backdoor", adversaries=(0,), target=1)
    goal = attack.goal(task.federation)
    found = train(task, 6, [goal, Attack(adversaries=()).goal(task.federation)])
    models = train_replicas(task, range(6)).models
    said = scores_on(task, models, goal.inputs)
    np.testing.assert_allclose(found.answers[0][0], said.sum(axis=0), rtol=1e-5)
    votes = np.stack([(said.argmax(axis=2) == label).sum(axis=0) for label in range(2)], axis=1)
    np.testing.assert_array_equal(found.answers[0][1], votes)
    assert success_rate(found.answers[0][0], goal) == np.mean(said.mean(axis=0).argmax(axis=1) == 1)
    # Who wants any wrong answer succeeds where the ensemble is wrong.
    wrong = success_rate(found.answers[1][0], Attack(adversaries=()).goal(task.federation))
    assert wrong == pytest.approx(1 - ensemble_accuracy(found.scores, task.federation.test_labels))


def test_stored_models_give_the_scores_of_training():
    task = demo_task(rounds=1)
    replicas = train_replicas(task, range(4))
    again = scores_on(task, replicas.models, task.federation.test_features)
    np.testing.assert_allclose(again, replicas.scores, atol=1e-6)


@pytest.mark.parametrize("method", ["mean", "vote"])
def test_the_verdict_counts_what_is_kept_and_what_is_lost(method):
    # The attacked ensemble keeps input 0, loses input 1 for sure, and input 2 within its error.
    clean = np.tile([[[0.9, 0.06, 0.04]] * 3], (200, 1, 1))
    certificate = certify(
        clean, privacy=ApproximateDP(epsilon=0.1, delta=0.0, relation="replace"), method=method
    )
    assert min(certificate.certified_size) >= 1
    rows = {"kept": [0.8, 0.1, 0.1], "lost": [0.1, 0.2, 0.7], "close": [0.49, 0.5, 0.01]}
    attacked = np.tile([list(rows.values())], (200, 1, 1))
    attacked[:99, 2] = [0.5, 0.49, 0.01]
    found = verdict(attacked, certificate, 1, failure_probability=FALSE_ALARM)
    assert (found.certified, found.kept, found.contradicted) == (3, 1, 1)
    none = verdict(
        attacked, certificate, max(certificate.certified_size) + 1, failure_probability=FALSE_ALARM
    )
    assert (none.certified, none.kept, none.contradicted) == (0, 0, 0)


def test_the_interval_of_the_cost_covers_it():
    # 300 intervals at 10 % may fail 30 times; a binomial quantile says how often by chance.
    generator = np.random.default_rng(0)
    failures = 0
    for _ in range(300):
        low, high = interval(3 * generator.beta(2, 5, 60), 3.0, 0.1)
        failures += not low <= 3 * 2 / 7 <= high
    assert failures <= binom.ppf(1 - FALSE_ALARM, 300, 0.1)
    low, high = interval(np.full(400, 1.5), 3.0, 0.1)
    assert high - low < 0.3  # not trivially wide


@pytest.mark.slow
@pytest.mark.speed
@pytest.mark.parametrize(
    "name", ["backdoor", "distributed-backdoor", "label-flip", "min-max", "min-sum", "worst-case"]
)
def test_an_attacked_ensemble_costs_little_more_than_a_clean_one(name):
    task, adversaries = demo_task(), choose_adversaries(96, 12, seed=0)
    first = first_updates(task)
    attack = build_attack(name, adversaries=adversaries)
    drawn = task.mechanism.sampling.probability
    # Adversaries who know each other's updates train in every round, also those who are not drawn.
    undrawn = len(adversaries) * (1 - drawn) / (96 * drawn) if attack.collusive else 0.0
    allowed = 1.3 * (1 + undrawn)

    def attacked():
        poisoned = under_attack(task, attack)
        own = attacked_first_updates(poisoned, adversaries, first)
        train_replicas(poisoned, range(1000), first_updates=own)

    def clean():
        train_replicas(task, range(1000), first_updates=first)

    tries = {attacked: [], clean: []}
    for _ in range(5):  # in turn, so that whatever disturbs one disturbs the other
        for work, took in tries.items():
            begin = time.process_time()
            work()
            took.append(time.process_time() - begin)
        if min(tries[attacked]) <= allowed * min(tries[clean]):
            break
    assert min(tries[attacked]) <= allowed * min(tries[clean])
