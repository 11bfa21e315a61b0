"""Mean and vote certificates against explicit worst cases, and against the readings of the theory."""

import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.accounting.tradeoff import NOTHING, GaussianTradeoff
from fedproof.certificates import certify, certify_means
from fedproof.certificates.confidence import Bound, mean_lower, mean_upper
from fedproof.certificates.paper_theorems import certified_size
from fedproof.certificates.privacy import approximate_curve
from fedproof.certificates.tight import class_bounds, exact_sizes, mean_sizes, observed_sizes, walk
from fedproof.mechanisms import Everyone, InstanceFedAvg, OneRound, Poisson, UserFedAvg
from fedproof.mechanisms.uploads import UPLOADS, Anchors
from fedproof.release import Release, vectors_of
from fedproof.threat import Relation, ThreatModel
from tests.certificates.conftest import JOIN, REPLACE, WorstCase
from tests.tiny import with_noise

TOPS = [0.55, 0.8, 0.97, 0.995]


def worst_size(top, noise_multiplier, probability, relation):
    """Largest size at which the worst poisoned distribution does not flip the prediction."""
    size = 0
    while True:
        case = WorstCase(noise_multiplier, probability, size + 1, relation)
        least = case.least(top)
        if relation == "join":
            least = min(least, case.least_reversed(top))
        if least <= 0.5:  # F_A' = least, F_B' = 1 - least
            return size
        size += 1


@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize("relation", ["join", "replace"])
@pytest.mark.parametrize("probability", [1.0, 0.2])
def test_sound_and_tight_for_one_round(top, relation, probability):
    sampling = Everyone() if probability == 1 else Poisson(probability=probability)
    mechanism = UserFedAvg(rounds=1, noise_multiplier=4.0, sampling=sampling)
    threat = ThreatModel(unit="user", relation=relation)
    found = certify_means([[top, 1 - top]], mechanism=mechanism, threat=threat).certified_size[0]
    assert found == worst_size(top, 4.0, probability, relation)


@pytest.mark.parametrize(
    ("noise_multiplier", "top", "join", "replace"),
    # theory.md section 3, T = 3, q = 0.1, infinite O
    [(1.8, 0.80, 8, 4), (1.8, 0.97, 19, 11), (1.8, 0.995, 26, 15), (2.3, 0.97, 24, 13)],
)
def test_readings_of_the_theory(noise_multiplier, top, join, replace):
    mechanism = UserFedAvg(rounds=3, noise_multiplier=noise_multiplier, sampling=Poisson(probability=0.1))
    found = [
        certify_means([[top, 1 - top]], mechanism=mechanism, threat=threat).certified_size[0]
        for threat in (JOIN, REPLACE)
    ]
    assert found == [join, replace]


def test_instance_level_reading():
    # theory.md section 3: q = 50/1266, σ = 5, 78 steps: 26 (join), 13 (replace)
    mechanism = InstanceFedAvg(rounds=3, local_steps=26, noise_multiplier=5.0, batch_probability=50 / 1266)
    found = [
        certify_means(
            [[0.97, 0.03]], mechanism=mechanism, threat=ThreatModel(unit="instance", relation=relation)
        ).certified_size[0]
        for relation in ("join", "replace")
    ]
    assert found == [26, 13]


@settings(derandomize=True, deadline=None)
@given(st.floats(0.5, 0.999), st.floats(0.001, 0.5), st.floats(0.05, 1), st.floats(0, 0.01))
def test_the_curve_of_epsilon_and_delta_is_never_weaker_than_the_paper(top, rival, epsilon, delta):
    tight = mean_sizes(
        np.array([top]), np.array([min(rival, 1 - top)]), lambda k: approximate_curve(epsilon, delta, k), 60
    )
    paper = certified_size(top, min(rival, 1 - top), epsilon=epsilon, delta=delta)
    assert max(tight[0], 0) >= min(paper, 60)


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 3), st.floats(0, 0.5), st.floats(0, 1), st.floats(0, 1))
def test_tangents_of_the_approximate_curve_lie_below_it(epsilon, delta, touch, other):
    curve = approximate_curve(epsilon, delta, 1)
    slope, intercept = curve.tangent(touch)
    assert slope * other + intercept <= curve.lower(other) + 1e-12
    assert slope * touch + intercept == pytest.approx(float(curve.lower(touch)), abs=1e-12)


@settings(derandomize=True, deadline=None)
@given(st.floats(0, 45), st.floats(0, 0.5), st.floats(1, 18))
def test_the_curve_of_epsilon_and_delta_knows_probabilities_that_one_minus_them_forgets(
    epsilon, delta, digits
):
    rare = 10.0**-digits
    most = min(1.0, np.exp(epsilon) * rare + delta, 1 - np.exp(-epsilon) * (1 - rare - delta))
    assert approximate_curve(epsilon, delta, 1).upper(rare) >= most - 1e-12


def test_walk_stops_at_the_first_failure():
    asked = []

    def holds(size, inputs):
        asked.append(size)
        return np.array([size in (0, 1, 3)] * len(inputs))

    assert walk(1, holds, 10).tolist() == [1]
    assert asked == [0, 1, 2]


def test_search_ends_at_the_largest_size():
    sizes = mean_sizes(np.array([1.0]), np.array([0.0]), lambda k: GaussianTradeoff(shift=0.0), 5)
    assert sizes.tolist() == [5]


def test_what_is_certain_costs_one_curve_and_others_their_own():
    asked = []

    def curve(size):
        asked.append(size)
        return GaussianTradeoff(shift=size / 4)

    top, rival = np.array([1.0, 0.97, 1.0, 0.5]), np.array([0.0, 0.03, 1e-9, 0.5])
    assert mean_sizes(top, rival, curve, 1000).tolist() == [
        1000,
        7,
        52,
        -1,
    ]  # Φ⁻¹(1 - 1e-12) - Φ⁻¹(1e-9) = 13.03
    assert max(set(asked) - {1000}) == 53


def test_what_is_certain_is_lost_where_nothing_is_known_of_so_many():
    def curve(size):
        return GaussianTradeoff(shift=size) if size < 4 else NOTHING

    assert mean_sizes(np.array([1.0]), np.array([0.0]), curve, 9).tolist() == [3]


@pytest.mark.parametrize("bound", [Bound.BETTING, Bound.HOEFFDING, Bound.EMPIRICAL_BERNSTEIN])
def test_the_shortcut_over_rivals_gives_the_largest_bound(scores, bound):
    found = class_bounds(scores, bound, 0.001)
    for index in range(scores.shape[1]):
        values = scores[:, index].astype(np.float64)
        top = int(values.mean(axis=0).argmax())
        rivals = np.delete(values, top, axis=1)
        assert found.top[index] == top
        assert found.top_lower[index] == pytest.approx(mean_lower(values[:, [top]], bound, 0.001)[0])
        assert found.rival_upper[index] == pytest.approx(mean_upper(rivals, bound, 0.001).max(), abs=1e-6)


@pytest.mark.parametrize("bound", [Bound.BETTING, Bound.CLOPPER_PEARSON])
def test_coverage_of_the_whole_certificate(bound):
    # Truth at the edge: F_A such that size 5 just fails. 2,000 inputs are 2,000 experiments.
    generator = np.random.default_rng(11)
    curve = lambda k: GaussianTradeoff(shift=k / 5)  # noqa: E731
    edge = float(GaussianTradeoff(shift=1.0).upper(0.5))  # L_5(edge) = 1/2
    draws = (generator.random((150, 2000)) < edge).astype(float)
    bounds = class_bounds(np.stack([draws, 1 - draws], axis=2), bound, 0.05 / 2)
    sizes = mean_sizes(bounds.top_lower, bounds.rival_upper, curve, 20)
    wrong = np.mean(sizes >= 5)
    assert wrong <= 0.05 + 3 * np.sqrt(0.05 * 0.95 / 2000)
    assert np.mean(sizes >= 2) > 0.9  # and it is not empty


# --- observed influence -------------------------------------------------------------------------------------


def release_of(mechanism, added, normal, anchors):
    total = with_noise(mechanism, added.sum(axis=0), normal)
    return Release(mechanism=mechanism, total=total, anchors=anchors)


@pytest.mark.parametrize("seed", range(12))
def test_observed_sizes_by_trying_every_set_of_users_and_everything_that_they_could_send(seed):
    """Sharp: no set of so many users can change the label whatever it votes, and one more of them can."""
    rng, users, classes = np.random.default_rng(seed), 5, 3
    mechanism = OneRound(upload=Anchors(anchors=2, classes=classes, sharpness=1.0), noise_multiplier=0.2)
    anchors = rng.normal(size=(2, 3)).astype(np.float32)
    votes = np.array(list(itertools.product([-1, 0, 1, 2], repeat=2)))  # all that one user can send
    vectors = np.concatenate(list(vectors_of(mechanism, votes)))
    sent = vectors[rng.integers(0, len(votes), users)]
    x = rng.normal(size=(4, 3))
    normal = rng.normal(size=mechanism.upload.shape)
    release = release_of(mechanism, sent, normal, anchors)
    top, sizes = observed_sizes(release, sent, x, max_size=users)
    np.testing.assert_array_equal(top, release.scores(x).argmax(axis=1))
    noise = release.total - sent.sum(axis=0)
    (weights,) = release.weights(x)
    safe = np.full(len(x), users)
    for size in range(1, users + 1):
        # Users whose votes are the same are the same choice, and so are votes in another order.
        for gone in itertools.combinations(range(users), size):
            rest = np.delete(sent, gone, axis=0).sum(axis=0) + noise
            multisets = itertools.combinations_with_replacement(range(len(votes)), size)
            come = np.array([vectors[list(chosen)].sum(axis=0) for chosen in multisets])
            scores = np.einsum("iw,swc->sic", weights, (rest + come) * mechanism.grid.step)
            flipped = (scores.argmax(axis=2) != top).any(axis=0)
            safe = np.where(flipped, np.minimum(safe, size - 1), safe)
    np.testing.assert_array_equal(sizes, safe)


@pytest.mark.parametrize("kind", ["rows", "pairs", "ball", "non-negative", "anchors"])
def test_observed_sizes_are_never_smaller_than_those_for_everything_that_could_have_been_sent(kind):
    rng, users, classes = np.random.default_rng(1), 60, 4
    near = {"anchors": 7, "sharpness": 2.0} if kind in ("anchors", "non-negative") else {"features": 5}
    upload = UPLOADS[kind](classes=classes, **near)
    mechanism = OneRound(upload=upload, noise_multiplier=1.0)
    anchors = rng.normal(size=(7, 5)).astype(np.float32) if upload.bumps else None
    agreed = rng.normal(size=upload.shape)
    sent = agreed + 0.5 * rng.normal(size=(users, *upload.shape))
    sent = sent.argmax(axis=2) if upload.labels else sent
    added = np.concatenate(list(vectors_of(mechanism, sent)))
    release = release_of(mechanism, added, rng.normal(size=upload.shape), anchors)
    x = rng.normal(size=(200, 5))
    top, exact = exact_sizes(release.scores(x), Relation.REPLACE)
    for most in (3, 25, users, 500):
        found, sizes = observed_sizes(release, added, x, max_size=most)
        np.testing.assert_array_equal(found, top)
        assert (sizes >= np.minimum(exact, most)).all()
        assert sizes.max() <= most
    assert sizes.mean() > exact.mean()


def test_scores_too_large_to_count_units_in_are_refused():
    mechanism = OneRound(upload=Anchors(anchors=4, classes=2), noise_multiplier=1.0)
    for wrong in (2.0**32, -1e300, np.inf, np.nan):
        with pytest.raises(ValueError, match="at input 0, class 1"):
            certify(np.array([[[1.0, wrong]]]), mechanism=mechanism, method="exact")


def test_users_who_were_against_the_label_are_no_danger_to_it():
    """Six for A, two for B: whoever voted for B has nothing left to take away; by hand."""
    mechanism = OneRound(upload=Anchors(anchors=1, classes=2), noise_multiplier=0.0)
    added = np.concatenate(list(vectors_of(mechanism, np.array([[0]] * 6 + [[1]] * 2))))
    release = release_of(mechanism, added, np.zeros((1, 2)), np.ones((1, 1), dtype=np.float32))
    top, sizes = observed_sizes(release, added, np.ones((1, 1)), max_size=9)
    assert (top.tolist(), sizes.tolist()) == ([0], [1])  # lead 4, and two users who turn take four
    added = np.concatenate(list(vectors_of(mechanism, np.array([[0]] * 6 + [[-1]] * 2))))
    release = release_of(mechanism, added, np.full((1, 2), 0.0), np.ones((1, 1), dtype=np.float32))
    assert observed_sizes(release, added, np.ones((1, 1)), max_size=9)[1].tolist() == [2]
