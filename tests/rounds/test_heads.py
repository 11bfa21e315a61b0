"""Heads in closed form: against direct computations, and each from its own group alone."""

from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from fedproof.rounds.heads import SOLVERS, heads, heads_of


def data(instances, features=7, classes=3, seed=0):
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, classes, instances)
    centres = generator.standard_normal((classes, features))
    inputs = centres[labels] + generator.standard_normal((instances, features))
    return inputs.astype(np.float32), labels


def weights_of(labels, *, balanced):
    if not balanced:
        return np.ones(len(labels))
    held, counts = np.unique(labels, return_counts=True)
    share = dict(zip(held.tolist(), (len(labels) / (len(held) * counts)).tolist(), strict=True))
    return np.array([share[label] for label in labels.tolist()])


def by_least_squares(features, labels, *, penalty, balanced):
    """Ridge regression as the least squares of more rows, one for each weight."""
    inputs = np.hstack([features.astype(np.float64), np.ones((len(features), 1))])
    root = np.sqrt(weights_of(labels, balanced=balanced))[:, None]
    extra = np.sqrt(penalty) * np.eye(inputs.shape[1])
    targets = np.vstack([root * (np.eye(3)[labels] - 1 / 3), np.zeros((len(extra), 3))])
    return np.linalg.lstsq(np.vstack([root * inputs, extra]), targets, rcond=None)[0].T


def by_descent(features, labels, *, penalty, balanced):
    inputs = np.hstack([features.astype(np.float64), np.ones((len(features), 1))])
    weights, targets = weights_of(labels, balanced=balanced)[:, None], np.eye(3)[labels]

    def objective(flat):
        head = flat.reshape(-1, 3)
        logits = inputs @ head
        logs = logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)
        value = -(weights * targets * logs).sum() + penalty / 2 * (head**2).sum()
        return value, (inputs.T @ (weights * (np.exp(logs) - targets)) + penalty * head).ravel()

    found = minimize(objective, np.zeros(inputs.shape[1] * 3), jac=True, options={"gtol": 1e-10})
    return found.x.reshape(-1, 3).T


def by_adding_up(features, labels, *, penalty, balanced, centre):
    """One instance after the other, into the row of its class, less the centre in every row."""
    head = np.zeros((3, features.shape[1] + 1))
    for row, label, weight in zip(features, labels, weights_of(labels, balanced=balanced), strict=True):
        head += weight * np.outer(np.eye(3)[label] - centre, np.append(row.astype(np.float64), 1.0))
    return head


DIRECT = {
    "ridge": by_least_squares,
    "logistic": by_descent,
    "gradient": partial(by_adding_up, centre=1 / 3),
    "sums": partial(by_adding_up, centre=0.0),
}


@pytest.mark.parametrize("instances", [1, 5, 8, 40])  # fewer than features, and more
@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("solver", SOLVERS)
def test_heads_are_what_a_direct_computation_gives(solver, balanced, instances):
    features, labels = data(instances)
    asked = {"penalty": 2.0, "balanced": balanced}
    found = heads(features, labels, np.array([0, instances]), 3, solver=solver, **asked)
    np.testing.assert_allclose(found[0].numpy(), DIRECT[solver](features, labels, **asked), atol=1e-5)


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=30)
@given(
    seed=st.integers(0, 1000), cores=st.integers(1, 3), hostile=st.sampled_from([0.0, 3e38, np.nan, np.inf])
)
def test_a_head_depends_on_its_own_group_alone(solver, seed, cores, hostile):
    generator = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(generator.integers(0, 12, 5))])
    features, labels = data(offsets[-1], seed=seed)
    asked = {"solver": solver, "penalty": 0.5, "balanced": bool(seed % 2)}
    alone = [
        heads(features[begin:end], labels[begin:end], np.array([0, end - begin]), 3, **asked)[0]
        for begin, end in pairwise(offsets)
    ]
    victim = int(generator.integers(5))
    features[offsets[victim] : offsets[victim + 1]] = hostile
    together = heads(features, labels, offsets, 3, cores=cores, **asked)
    assert together.isfinite().all()
    for group in range(5):
        assert group == victim or torch.equal(together[group], alone[group])
    if not np.isfinite(hostile):
        assert not together[victim].any()


def test_arrays_that_cannot_be_written_to_are_taken_as_they_are():
    features, labels = data(20)
    found = heads(features, labels, np.array([0, 20]), 3, solver="ridge", penalty=1.0)
    features.flags.writeable = labels.flags.writeable = False
    assert torch.equal(found, heads(features, labels, np.array([0, 20]), 3, solver="ridge", penalty=1.0))


def test_threads_of_the_host_change_no_bit():
    features, labels = data(400, features=300)
    asked = {"offsets": np.array([0, 100, 400]), "num_classes": 3, "penalty": 1.0}
    before = torch.get_num_threads()
    try:
        for solver in SOLVERS:
            found = []
            for threads in (1, 2):
                torch.set_num_threads(threads)
                found.append(heads(features, labels, solver=solver, **asked))
            assert torch.equal(*found)
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"solver": "sgd", "penalty": 1.0}, "solver = 'sgd' must be one of ridge, logistic"),
        ({"solver": "ridge", "penalty": 0.0}, "penalty = 0.0 must be a positive number"),
    ],
)
def test_mistakes_are_said(asked, said):
    with pytest.raises(ValueError, match=said):
        heads(*data(4), np.array([0, 4]), 3, **asked)


@pytest.mark.parametrize("solver", SOLVERS)
@settings(max_examples=30)
@given(seed=st.integers(0, 1000), hostile=st.sampled_from([0.0, 3e38, np.nan, np.inf]))
def test_in_one_array_a_head_depends_on_its_own_rows_alone(solver, seed, hostile):
    generator = np.random.default_rng(seed)
    held = generator.integers(0, 12, 5)
    inputs, labels = data(60, seed=seed)
    inputs, labels = torch.from_numpy(inputs).view(5, 12, 7), torch.from_numpy(labels).view(5, 12)
    inside = torch.arange(12) < torch.from_numpy(held)[:, None]
    asked = {"solver": solver, "penalty": 0.5, "balanced": bool(seed % 2)}
    before = heads_of(inputs, labels, inside, 3, **asked)
    for group, count in enumerate(held.tolist()):
        own = inputs[group, :count].numpy(), labels[group, :count].numpy(), np.array([0, count])
        np.testing.assert_allclose(before[group], heads(*own, 3, **asked)[0], rtol=1e-6, atol=1e-9)
    victim = int(generator.integers(5))
    inputs[victim], inputs[~inside] = hostile, hostile  # padding, too, means nothing
    after = heads_of(inputs, labels, inside, 3, **asked)
    assert after.isfinite().all()
    for group in range(5):
        assert group == victim or torch.equal(after[group], before[group])
