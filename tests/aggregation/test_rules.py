"""Rules against double loops written from their definitions; ties, duplicates, smallest cohorts."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.aggregation import RULES, Contributions, build_rule
from fedproof.aggregation.median import folded
from fedproof.mechanisms import FixedSize, InstanceFedSGD, UserFedAvg
from fedproof.statements import Statement
from fedproof.threat import Relation

LEAST = {
    "krum": lambda f: 2 * f + 3,
    "multi-krum": lambda f: 2 * f + 3,
    "trimmed-mean": lambda f: 2 * f + 1,
    "median": lambda f: 2 * f + 1,
    "bulyan": lambda f: 4 * f + 3,
    "geometric-median": lambda f: 2 * f + 1,
}

# --- the definitions, one number at a time ----------------------------------------------------------------


def distance(a, b):
    return sum((x - y) ** 2 for x, y in zip(a, b, strict=True))


def krum_order(rows, indices, neighbours):
    """Indices by rising score, of equal ones the first."""
    scores = {}
    for i in indices:
        others = sorted(distance(rows[i], rows[j]) for j in indices if j != i)
        scores[i] = sum(others[:neighbours])
    return sorted(indices, key=lambda i: (scores[i], i))


def mean_of(rows):
    return [math.fsum(column) / len(rows) for column in zip(*rows, strict=True)]


def median_of(values):
    ranked = sorted(values)
    middle = len(ranked) // 2
    return ranked[middle] if len(ranked) % 2 else (ranked[middle - 1] + ranked[middle]) / 2


def naive_krum(rows, f):
    return rows[krum_order(rows, list(range(len(rows))), len(rows) - f - 2)[0]]


def naive_multi_krum(rows, f):
    order = krum_order(rows, list(range(len(rows))), len(rows) - f - 2)
    return mean_of([rows[i] for i in order[: len(rows) - f]])


def naive_trimmed_mean(rows, f):
    columns = [sorted(column)[f : len(rows) - f] for column in zip(*rows, strict=True)]
    return [math.fsum(column) / len(column) for column in columns]


def naive_median(rows, f):
    return [median_of(column) for column in zip(*rows, strict=True)]


def naive_bulyan(rows, f):
    left, chosen = list(range(len(rows))), []
    while len(chosen) < len(rows) - 2 * f:
        neighbours = max(1, len(left) - f - 2)
        best = krum_order(rows, left, neighbours)[0]
        left.remove(best)
        chosen.append(rows[best])
    result = []
    for column in zip(*chosen, strict=True):
        middle = median_of(column)
        nearest = sorted(sorted(column), key=lambda value: abs(value - middle))
        kept = nearest[: len(chosen) - 2 * f]
        result.append(math.fsum(kept) / len(kept))
    return result


def naive_geometric_median(rows, f):
    point = [median_of(column) for column in zip(*rows, strict=True)]
    for _ in range(200):
        distances = [math.sqrt(distance(point, row)) for row in rows]
        weights = [1 / max(1e-6, value) for value in distances]
        total = math.fsum(weights)
        after = [
            math.fsum(w * x for w, x in zip(weights, column, strict=True)) / total
            for column in zip(*rows, strict=True)
        ]
        moved = math.sqrt(distance(after, point))
        point = after
        if moved <= 1e-6 * sorted(distances)[(len(distances) - 1) // 2]:
            break
    return point


NAIVE = {
    "krum": naive_krum,
    "multi-krum": naive_multi_krum,
    "trimmed-mean": naive_trimmed_mean,
    "median": naive_median,
    "bulyan": naive_bulyan,
    "geometric-median": naive_geometric_median,
}


def test_every_rule_has_a_definition_here():
    assert set(NAIVE) == set(RULES) == set(LEAST)


def check_equal(name, stack, f):
    """A stack of integer-valued cohorts, so that ties are exact, one replica after the other."""
    updates = torch.tensor(stack, dtype=torch.float64)
    found = RULES[name][0](updates, f)
    for row, cohort in zip(found, updates.tolist(), strict=True):
        np.testing.assert_allclose(row.tolist(), NAIVE[name](cohort, f), rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("f", [0, 1, 2])
@pytest.mark.parametrize("extra", [0, 1, 4])
def test_rules_follow_their_definitions(name, f, extra):
    generator = np.random.default_rng(17)
    n = LEAST[name](f) + extra
    stack = generator.normal(size=(5, n, 3))
    stack[:, :f] = 100  # adversaries far away
    check_equal(name, stack, f)
    check_equal(name, generator.integers(-2, 3, (20, n, 2)), f)  # many ties and duplicates


@pytest.mark.parametrize("name", RULES)
@settings(max_examples=40, deadline=None, derandomize=True)
@given(data=st.data())
def test_rules_follow_their_definitions_on_hostile_integers(name, data):
    f = data.draw(st.integers(0, 2))
    n = data.draw(st.integers(LEAST[name](f), LEAST[name](f) + 3))
    entry = st.sampled_from([-1000, -1, 0, 0, 1, 1, 2, 1000])
    rows = data.draw(st.lists(st.lists(entry, min_size=2, max_size=2), min_size=n, max_size=n))
    check_equal(name, [rows], f)


@pytest.mark.parametrize("name", RULES)
def test_equal_updates_are_returned(name):
    updates = torch.full((2, LEAST[name](1), 4), 0.25, dtype=torch.float64)
    np.testing.assert_allclose(RULES[name][0](updates, 1), 0.25, atol=1e-12)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("size", [1e3, 1e18, 1e38])
def test_a_minority_cannot_drag_the_result_away(name, size):
    honest = torch.randn((3, 40, 6), generator=torch.Generator().manual_seed(0))
    updates = torch.cat([honest, torch.full((3, 5, 6), size)], dim=1)
    found = RULES[name][0](updates, 5)
    assert bool(found.isfinite().all())
    assert float(found.abs().max()) < 4


def check_replicas_apart(name, updates):
    """One replica is hostile, or missing, or the only one: others are the same bit for bit."""
    hostile = torch.cat([100 * updates[:1], updates[1:]])
    rule = partial(RULES[name][0], num_adversaries=1)
    found = rule(updates)[1:]
    assert torch.equal(found, rule(hostile)[1:])
    assert torch.equal(found, rule(updates[1:].clone()))
    assert torch.equal(found[:1], rule(updates[1:2].clone()))


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("dim", [5, 700, 3001])
def test_other_replicas_change_no_bit(name, dim):
    generator = torch.Generator().manual_seed(0)
    check_replicas_apart(name, torch.randn(9, 11, dim, generator=generator, dtype=torch.float64))


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("replicas", [2, 9, 100])
@pytest.mark.parametrize("dim", [700, 3001, 20_000])
def test_other_replicas_change_no_bit_on_a_gpu(name, replicas, dim):
    generator = torch.Generator("cuda").manual_seed(0)
    check_replicas_apart(name, torch.randn(replicas, 11, dim, generator=generator, device="cuda"))


@pytest.mark.parametrize("shape", [(3, 0), (3, 1), (2, 5, 4), (4, 64, 3), (1, 1001)])
def test_folded_sums_are_sums(shape):
    values = torch.randn(shape, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    torch.testing.assert_close(folded(values, 1), values.sum(1))


def test_geometric_median_is_optimal():
    # At the geometric median the unit vectors towards all points cancel.
    updates = torch.randn((4, 9, 3), generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    point = RULES["geometric-median"][0](updates, 0, tolerance=1e-12, iterations=10_000)
    away = updates - point.unsqueeze(1)
    unit = away / away.norm(dim=2, keepdim=True)
    assert float(unit.sum(1).norm(dim=1).max()) < 1e-6


# --- as the server applies them ---------------------------------------------------------------------------


def contributions(*, shared: bool, layers: int = 1, replicas: int = 4, members: int = 14, dim: int = 5):
    generator = torch.Generator().manual_seed(3)
    updates = torch.randn((1 if shared else replicas, members, dim), generator=generator)
    present = torch.rand((replicas, members), generator=generator) < 0.8
    present[:, :7] = True
    scales = torch.rand((replicas, members, layers), generator=generator) * present.unsqueeze(2)
    ids = torch.arange(members).expand(len(updates), -1)
    sizes = (dim,) if layers == 1 else (2, dim - 2)
    return Contributions(updates=updates, present=present, scales=scales, members=ids, layer_sizes=sizes)


@pytest.mark.parametrize("name", RULES)
@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_rule_sees_each_replicas_own_clipped_cohort(name, shared, layers):
    given_in = contributions(shared=shared, layers=layers)
    found = build_rule(name, num_adversaries=1)(given_in)
    bounded = given_in.bounded()
    for replica in range(len(bounded)):
        cohort = bounded[replica][given_in.present[replica]]
        alone = RULES[name][0](cohort.unsqueeze(0), 1)[0] * len(cohort)
        torch.testing.assert_close(found[replica], alone)


@pytest.mark.parametrize("name", RULES)
def test_an_empty_cohort_changes_nothing(name):
    given_in = contributions(shared=True)
    given_in.present[1] = False
    assert torch.equal(build_rule(name, num_adversaries=1)(given_in)[1], torch.zeros(5))


@pytest.mark.parametrize("name", RULES)
def test_small_cohorts_are_refused_with_numbers(name):
    least = LEAST[name](3)
    with pytest.raises(ValueError, match=rf"{name} .* = 9 needs cohorts of at least {LEAST[name](9)} users"):
        build_rule(name, num_adversaries=9)(contributions(shared=True))
    with pytest.raises(ValueError, match=rf"= 3 needs cohorts of at least {least} users, not {least - 1}"):
        build_rule(name, num_adversaries=3, cohort=least - 1)
    build_rule(name, num_adversaries=3, cohort=least)
    with pytest.raises(
        ValueError, match=rf"{name} against num_adversaries = 3 needs .* {least} .* has {least - 1}"
    ):
        RULES[name][0](torch.zeros(1, least - 1, 2), 3)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("krumm", {}, "rule = 'krumm' must be one of mean, krum"),
        ("krum", {"sise": 3}, "sise is no parameter of the rule krum"),
        ("mean", {"f": 3}, "f is no parameter of the rule mean"),
        ("krum", {"num_adversaries": -1}, "num_adversaries = -1"),
        ("nowhere.at_all:rule", {}, "cannot be imported"),
        ("math:pi", {}, "rule = 'math:pi': module 'math' has no function 'pi'"),
    ],
)
def test_bad_rules_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_rule(name, **options)


def test_multi_krum_selects_as_many_as_it_is_told():
    updates = torch.randn((2, 9, 3), generator=torch.Generator().manual_seed(0))
    krum, all_of_them = (RULES["multi-krum"][0](updates, 2, num_selected=m) for m in (1, 9))
    torch.testing.assert_close(krum, RULES["krum"][0](updates, 2))
    torch.testing.assert_close(all_of_them, updates.mean(1))
    with pytest.raises(ValueError, match="num_selected = 10 must be at most"):
        RULES["multi-krum"][0](updates, 2, num_selected=10)


def first_update(updates, num_adversaries, factor=1.0):
    return factor * updates[:, 0]


def test_a_users_own_rule():
    rule = build_rule(f"{__name__}:first_update", factor=2.0)
    given_in = contributions(shared=False)
    sizes = given_in.present.sum(1)
    expected = 2 * sizes.unsqueeze(1) * given_in.bounded()[:, 0]
    torch.testing.assert_close(rule(given_in), expected)
    assert "first_update" in repr(rule)


@pytest.mark.parametrize("name", RULES)
def test_a_mechanism_says_what_its_rule_means_for_the_certificate(name):
    fixed = FixedSize(cohort=10, users=20)
    user = UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=fixed, rule=name)
    noisy_sum = InstanceFedSGD(
        rounds=1, noise_multiplier=1.0, sampling=fixed, batch_probability=0.1, rule=name
    )
    for relation in Relation:
        assert user.unmet(relation) == (Statement.of("rule", rule=name),)
        assert noisy_sum.unmet(relation) == (Statement.of("noise-of-the-sum", rule=name),)
        assert replace(user, rule="mean").unmet(relation) == ()
        assert replace(noisy_sum, rule="mean").unmet(relation) == ()
