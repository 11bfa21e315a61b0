import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import binom

from fedproof.data import load, partition, show, summarise

PROPERTY = settings(derandomize=True, deadline=None, max_examples=60)
FALSE_ALARM = 1e-6
labels = st.lists(st.integers(0, 4), min_size=12, max_size=200).map(lambda x: np.array(x, dtype=np.int64))
seeds = st.integers(0, 2**32 - 1)


def generator(seed):
    return np.random.default_rng(seed)


def assert_each_instance_once(split, instances, users, minimum=1):
    assert len(split.offsets) == users + 1
    np.testing.assert_array_equal(np.sort(split.order), np.arange(instances))
    assert split.offsets[0] == 0
    assert split.offsets[-1] == instances
    assert np.diff(split.offsets).min() >= minimum


def makers(labels, users, minimum):
    """Every way to partition, as a function of the seed."""
    owners = np.arange(len(labels)) % users
    return {
        "iid": lambda s: partition.iid(labels, users=users, generator=generator(s)),
        "dirichlet": lambda s: partition.dirichlet(
            labels, users=users, alpha=0.3, minimum=minimum, generator=generator(s)
        ),
        "natural": lambda s: partition.natural(owners, users=None, generator=generator(s)),
    }


@PROPERTY
@given(labels=labels, users=st.integers(1, 6), minimum=st.integers(1, 2), seed=seeds)
def test_each_instance_goes_to_exactly_one_user_and_seeds_repeat(labels, users, minimum, seed):
    for name, make in makers(labels, users, minimum).items():
        split, again = make(seed), make(seed)
        assert_each_instance_once(split, len(labels), users, minimum if name == "dirichlet" else 1)
        np.testing.assert_array_equal(split.order, again.order)
        np.testing.assert_array_equal(split.offsets, again.offsets)


@PROPERTY
@given(labels=labels, users=st.integers(1, 12), seed=seeds)
def test_iid_sizes_differ_by_at_most_one(labels, users, seed):
    sizes = np.diff(partition.iid(labels, users=users, generator=generator(seed)).offsets)
    assert sizes.max() - sizes.min() <= 1


@PROPERTY
@given(alpha=st.floats(1e-8, 1e8), users=st.integers(2, 20), seed=seeds)
def test_dirichlet_keeps_the_minimum_at_any_alpha(alpha, users, seed):
    numbers = np.arange(120) % 3
    split = partition.dirichlet(numbers, users=users, alpha=alpha, minimum=6, generator=generator(seed))
    assert_each_instance_once(split, 120, users, 6)
    for user in range(users):  # the minimum comes evenly from the three classes
        counts = np.bincount(numbers[split.order[split.offsets[user] : split.offsets[user + 1]]], minlength=3)
        assert counts.min() >= 2


@PROPERTY
@given(users=st.integers(2, 30), seed=seeds)
def test_dirichlet_shares_are_equal_for_a_huge_alpha(users, seed):
    numbers = np.arange(3000) % 3
    split = partition.dirichlet(numbers, users=users, alpha=1e9, generator=generator(seed))
    assert np.ptp(np.diff(split.offsets)) <= 6  # rounding of three classes


def test_dirichlet_shares_have_the_stated_distribution():
    # With two users the first one's share of a class is Beta(alpha, alpha); for alpha = 1 uniform.
    shares = [partition._dirichlet_weights(1.0, 2, generator(seed))[0] for seed in range(2000)]
    low, high = binom.interval(1 - FALSE_ALARM, 2000, 0.25)
    for quarter in range(4):
        assert low < np.sum((np.array(shares) * 4).astype(int) == quarter) < high
    spiky = [partition._dirichlet_weights(0.5, 2, generator(seed))[0] for seed in range(2000)]
    assert np.sum(np.array(spiky) < 0.25) > high  # a wrong alpha would be seen


def test_smaller_alpha_is_more_heterogeneous():
    distances = [
        summarise(load("digits", users=20, partition="dirichlet", dirichlet_alpha=alpha)).heterogeneity
        for alpha in (100, 1, 0.1)
    ]
    assert distances == sorted(distances)
    assert distances[0] < 0.15
    assert distances[2] > 0.6


@PROPERTY
@given(share=st.floats(0.1, 1.0), groups=st.integers(2, 5), seed=seeds)
def test_degree_is_the_share_of_the_groups_own_class(share, groups, seed):
    numbers = np.arange(groups * 600) % groups
    users = 3 * groups
    split = partition.degree(numbers, users=users, share=share, generator=generator(seed))
    assert_each_instance_once(split, len(numbers), users)
    pools = [[] for _ in range(groups)]
    for user in range(users):
        pools[user % groups].append(split.order[split.offsets[user] : split.offsets[user + 1]])
    for own, pool in enumerate(pools):
        assert abs(np.mean(numbers[np.concatenate(pool)] == own) - share) < 0.01


def test_natural_keeps_users_with_enough_and_draws_by_seed():
    owners = np.repeat([5, 2, 9, 7], [4, 1, 3, 6])
    split = partition.natural(owners, users=None, minimum=3, generator=generator(0))
    assert np.diff(split.offsets).tolist() == [4, 6, 3]  # users 5, 7, 9
    two = [partition.natural(owners, users=2, generator=generator(seed)).order.tolist() for seed in range(20)]
    assert len({tuple(order) for order in two}) > 1
    for users in (0, 5):
        with pytest.raises(ValueError, match=f"users = {users}: 4 users own at least 1"):
            partition.natural(owners, users=users, generator=generator(0))
    with pytest.raises(ValueError, match="lower users or minimum"):
        partition.natural(owners, users=None, minimum=7, generator=generator(0))


def test_minimum_that_cannot_be_had_is_refused():
    with pytest.raises(ValueError, match="users = 5 with at least 3 instances each need 15"):
        partition.dirichlet(np.zeros(14, np.int64), users=5, alpha=1, minimum=3, generator=generator(0))


def test_rows_add_up_to_the_summary():
    federation = load("digits", users=13, partition="dirichlet", minimum=5)
    rows, summary = show(federation), summarise(federation)
    assert sum(row["instances"] for row in rows) == summary.num_instances == 1438
    assert min(row["instances"] for row in rows) == summary.smallest >= 5
    assert [sum(row[f"class {c}"] for row in rows) for c in range(10)] == list(summary.class_counts)
    assert sum(summary.test_class_counts) == summary.num_inputs == 359


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dirichlet_alpha": 0.1}, r"dirichlet_alpha = 0\.1 belongs to partition = 'dirichlet', not 'iid'"),
        ({"partition": "iid", "degree": 1.0}, r"degree = 1\.0 belongs to partition = 'degree', not 'iid'"),
        (
            {"partition": "degree", "minimum": 2},
            "minimum = 2 belongs to partition = 'dirichlet' or 'natural', not 'degree'",
        ),
    ],
)
def test_what_another_partition_needs_is_refused(options, message):
    with pytest.raises(ValueError, match=message):
        load("digits", users=20, **options)
