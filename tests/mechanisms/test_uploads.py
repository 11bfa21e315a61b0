"""What one unit can do to a release: sets, weights and sums keep to what is certified, whoever sends what."""

import itertools
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fedproof.certificates.tight import exact_sizes
from fedproof.mechanisms import OneRound
from fedproof.mechanisms.uploads import UPLOADS, Anchors, Ball, NonNegative, Pairs, Rows, on_grid
from fedproof.release import ERROR, Release, load_release, summed
from fedproof.threat import Relation, Unit
from tests.tiny import with_noise

FEATURES, CLASSES, ANCHORS = 4, 3, 6
SETS = {
    "anchors": Anchors(anchors=ANCHORS, classes=CLASSES, sharpness=4.0),
    "rows": Rows(features=FEATURES, classes=CLASSES),
    "pairs": Pairs(features=FEATURES, classes=CLASSES),
    "ball": Ball(features=FEATURES, classes=CLASSES),
    "non-negative": NonNegative(anchors=ANCHORS, classes=CLASSES, sharpness=4.0),
}
HOSTILE = (0.0, 1.0, -1.0, 1e-300, -5e-324, 1e30, 3e38, 1e300, -1e308, np.inf, -np.inf, np.nan)

STEP = 2.0**-32  # of the grid


def places(seed=0, count=ANCHORS):
    return np.random.default_rng(seed).normal(size=(count, FEATURES))


def sent_by(upload, rng, count, *, hostile=True):
    """What units may send: labels of any number, or numbers of any size."""
    if upload.labels:
        return rng.integers(-3, CLASSES + 3, size=(count, ANCHORS))
    vectors = rng.normal(size=(count, *upload.shape))
    if hostile:
        vectors *= 10.0 ** rng.integers(-300, 300, size=(count, 1, 1))
        vectors[rng.random(vectors.shape) < 0.2] = rng.choice(HOSTILE)
    return vectors


def test_all_sets_are_tried():
    assert set(SETS) == set(UPLOADS)


@pytest.mark.parametrize("kind", SETS)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), step=st.sampled_from([STEP, 2.0**-12, 2.0**-8]))
def test_a_vector_moves_a_lead_by_one_at_most_and_two_vectors_differ_by_no_more_than_is_said(
    kind, seed, step
):
    upload, rng = SETS[kind], np.random.default_rng(seed)
    with np.errstate(all="ignore"):
        vectors = on_grid(upload, upload.inside(sent_by(upload, rng, 20)), step) * step
    norms = np.linalg.norm(vectors.reshape(20, -1), axis=1)
    assert norms.max() <= upload.norm
    apart = vectors.reshape(20, 1, -1) - vectors.reshape(1, 20, -1)
    assert np.linalg.norm(apart, axis=2).max() <= upload.distance
    weights = upload.weights(rng.normal(size=(30, FEATURES)), places() if upload.bumps else None)
    scores = np.einsum("iw,uwc->uic", weights, vectors)
    leads = scores[:, :, :, None] - scores[:, :, None, :]
    assert np.abs(leads).max() <= 1 + 1e-12


@pytest.mark.parametrize("kind", [kind for kind in SETS if not SETS[kind].labels])
def test_what_all_classes_have_in_common_hides_no_difference_however_small(kind):
    """Numbers common to all classes, beside others of any size: what a mean rounds is larger than those."""
    rng = np.random.default_rng(3)
    for classes in (2, 3, 7, 10):
        upload = type(SETS[kind])(**(vars(SETS[kind]) | {"classes": classes}))
        width = upload.shape[0]
        sent = rng.normal(size=(4000, width, classes)) * 10.0 ** rng.uniform(-40, -10, size=(4000, 1, 1))
        sent[::2, :, 2:] = 0
        sent[:, : width - 1] = rng.random((4000, width - 1, 1))
        vectors = on_grid(upload, upload.inside(sent), STEP) * STEP
        assert np.linalg.norm(vectors.reshape(4000, -1), axis=1).max() <= upload.norm
        weights = upload.weights(rng.normal(size=(1, FEATURES)), places() if upload.bumps else None)[0]
        longest = np.linalg.norm(weights)  # in the direction in which most is moved
        apart = np.linalg.norm(vectors[:, :, :, None] - vectors[:, :, None], axis=1)
        assert longest * apart.max() <= (1 + 1e-12) * (np.sqrt(2) if upload.bumps else 1)


@pytest.mark.parametrize("kind", SETS)
def test_influence_norm_and_distance_are_attained(kind):
    """No smaller number would do: the worst vectors for one input and one pair of classes."""
    upload = SETS[kind]
    x = places(1, 1)
    weights = upload.weights(x, places() if upload.bumps else None)[0]
    if upload.labels:
        worst, best = np.full((1, ANCHORS), 1), np.full((1, ANCHORS), 0)
    else:
        pull = np.outer(weights, [1.0, -1.0, 0.0])
        best, worst = pull[None], -pull[None]
    plus, minus = (on_grid(upload, upload.inside(sent), STEP)[0] * STEP for sent in (best, worst))
    lead = [weights @ (one[:, 0] - one[:, 1]) for one in (plus, minus)]
    np.testing.assert_allclose(lead, [1, -1], rtol=1e-5)
    if upload.kind in ("anchors", "ball", "rows"):
        full = np.ones((1, *upload.shape)) if not upload.labels else best
        assert np.linalg.norm(upload.inside(full)) == pytest.approx(upload.norm)


@pytest.mark.parametrize("kind", SETS)
@pytest.mark.parametrize("relation", Relation)
def test_the_certified_size_is_safe_and_one_more_unit_flips(kind, relation):
    """The bound is attained: k worst uploads leave the label, k + 1 change it; replaced, and joining."""
    upload, rng = SETS[kind], np.random.default_rng(7)
    mechanism = OneRound(upload=upload, noise_multiplier=0.5)
    anchors = places().astype(np.float32) if upload.bumps else None
    x = places(3, 1)
    weights = upload.weights(x, None if anchors is None else anchors.astype(float))[0]
    agreed = np.outer(weights, [1.0, -1.0, 0.0])
    honest = np.zeros((40, ANCHORS), dtype=np.int64) if upload.labels else np.tile(agreed, (40, 1, 1))
    # Noise that leaves two classes, between which every honest unit has said all it can.
    normal = np.outer(weights, [0.0, 0.0, -1e3]) + 0.1 * rng.normal(size=upload.shape)

    def label(sent):
        total = with_noise(mechanism, summed(mechanism, sent), normal)
        release = Release(mechanism=mechanism, total=total, anchors=anchors)
        return release.scores(x), int(release.scores(x).argmax())

    scores, clean = label(honest)
    size = int(exact_sizes(scores, relation)[1][0])
    assert 5 < size <= 41
    rival = int(np.argsort(scores[0])[-2])
    pull = np.eye(CLASSES)[rival] - np.eye(CLASSES)[clean]
    against = np.full(ANCHORS, rival) if upload.labels else np.outer(weights, pull)
    for count in (size, size + 1):
        attacked = honest.copy()
        if relation is Relation.REPLACE:
            attacked[:count] = against
        else:
            attacked = np.concatenate([honest, np.repeat(against[None], count, axis=0)])
        assert (label(attacked)[1] == clean) == (count == size)


@pytest.mark.parametrize("kind", SETS)
def test_one_unit_changes_a_sum_by_its_own_vector_alone_whatever_it_sends(kind):
    upload, rng = SETS[kind], np.random.default_rng(0)
    mechanism = OneRound(upload=upload, noise_multiplier=1.0)
    honest = sent_by(upload, rng, 300, hostile=False)
    for place in (0, 255, 256, 299):
        rest = np.delete(honest, place, axis=0)
        hostile = honest.copy()
        hostile[place] = 9 if upload.labels else np.nan
        np.testing.assert_array_equal(summed(mechanism, hostile), summed(mechanism, rest))
    order = rng.permutation(300)
    np.testing.assert_array_equal(summed(mechanism, honest), summed(mechanism, honest[order]))


def test_exact_sizes_by_trying_every_move():
    """Leads in quarters: the size is the largest number of moves after which A still leads."""
    quarters = np.arange(0, 5, 0.25)
    for lead, relation in itertools.product(quarters, Relation):
        moved = 1 if relation is Relation.JOIN else 2
        size = exact_sizes(np.array([[lead, 0.0, -1.0]]), relation)[1][0]
        safe = [k for k in range(10) if lead - moved * k > 4 * ERROR]
        assert size == (max(safe) if safe else -1)


def test_an_input_without_direction_is_not_certified():
    release = Release(
        mechanism=OneRound(upload=SETS["rows"], noise_multiplier=1.0),
        total=np.full((FEATURES, CLASSES), 2**40),
    )
    scores = release.scores(np.array([[0.0] * FEATURES, [np.nan] * FEATURES]))
    assert exact_sizes(scores, Relation.JOIN)[1].tolist() == [-1, -1]


def test_a_release_is_read_as_it_was_written_and_nothing_else_is(tmp_path):
    mechanism = OneRound(upload=SETS["anchors"], noise_multiplier=2.0)
    total = np.random.default_rng(0).integers(-(2**40), 2**40, size=mechanism.upload.shape)
    release = Release(mechanism=mechanism, total=total, anchors=places().astype(np.float32))
    release.save(tmp_path / "release.npz")
    found = load_release(tmp_path / "release.npz")
    assert found.mechanism == mechanism
    x = places(5, 9)
    np.testing.assert_array_equal(found.scores(x), release.scores(x))
    (tmp_path / "release.npz").write_bytes(b"PK\x03\x04 no")
    with pytest.raises(ValueError, match=r"release.npz is damaged"):
        load_release(tmp_path / "release.npz")
    np.savez(tmp_path / "other.npz", total=total)
    with pytest.raises(ValueError, match="is no release"):
        load_release(tmp_path / "other.npz")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"total": np.zeros((ANCHORS, CLASSES))}, "must be int64"),
        ({"total": np.zeros((ANCHORS, CLASSES + 1), dtype=np.int64)}, "must be int64"),
        ({"anchors": None}, "upload = 'anchors' needs anchors"),
        ({"anchors": places().ravel()}, r"anchors are float64 \(.*\), must be finite numbers"),
        ({"anchors": places() * np.nan}, "must be finite numbers"),
        ({"anchors": np.full((ANCHORS, FEATURES), np.inf)}, "must be finite numbers"),
        ({"anchors": places().astype(complex)}, "anchors are complex128"),
        ({"anchors": places().astype("M8[s]")}, "anchors are datetime64"),
        (
            {"mechanism": OneRound(upload=Rows(features=ANCHORS, classes=3), noise_multiplier=1)},
            "has no anch",
        ),
    ],
)
def test_releases_that_cannot_be(change, message):
    fields = {
        "mechanism": OneRound(upload=SETS["anchors"], noise_multiplier=1.0),
        "total": np.zeros((ANCHORS, CLASSES), dtype=np.int64),
        "anchors": places().astype(np.float32),
    }
    with pytest.raises(ValueError, match=message):
        Release(**fields | change)


@pytest.mark.parametrize("kind", [Anchors, NonNegative])
def test_one_class_is_nothing_to_vote_on(kind):
    with pytest.raises(ValueError, match="classes = 1 must be at least 2"):
        kind(anchors=ANCHORS, classes=1)


def test_what_cannot_be_computed_exactly_is_refused():
    mechanism = OneRound(upload=SETS["rows"], noise_multiplier=1.0)
    huge = Release(mechanism=mechanism, total=np.full((FEATURES, CLASSES), 2**62))
    with pytest.raises(ValueError, match="cannot be read to"):
        huge.scores(places())
    with pytest.raises(ValueError, match=r"noise_multiplier = 1e.12 must be at most"):
        OneRound(upload=SETS["rows"], noise_multiplier=1e12)
    with pytest.raises(ValueError, match="inputs have 5 features, must have 4"):
        huge.scores(np.ones((2, 5)))
    with pytest.raises(ValueError, match="one instance trains no model"):
        OneRound(upload=SETS["anchors"], noise_multiplier=1.0, unit=Unit.INSTANCE)


@pytest.mark.parametrize("kind", SETS)
def test_scores_of_a_million_units_are_within_their_error(kind):
    upload = SETS[kind]
    mechanism = OneRound(upload=upload, noise_multiplier=1.0)
    rng = np.random.default_rng(2)
    scale = round(1 / mechanism.grid.step)
    total = rng.integers(-(10**6) * scale, 10**6 * scale, size=upload.shape)
    anchors = places().astype(np.float32) if upload.bumps else None
    release = Release(mechanism=mechanism, total=total, anchors=anchors)
    x = places(8, 5)
    (weights,) = release.weights(x)
    for row, scores in zip(weights, release.scores(x), strict=True):
        for category, score in enumerate(scores):
            exact = (
                sum(Fraction(float(w)) * int(t) for w, t in zip(row, total[:, category], strict=True)) / scale
            )
            assert abs(Fraction(float(score)) - exact) < ERROR


@pytest.mark.parametrize("kind", [Ball, Rows, Pairs])
@pytest.mark.parametrize("width", [8, 392])
def test_heads_that_hardly_differ_stay_in_their_set(kind, width):
    """What rounding leaves of a mean that all classes share must not be scaled up with what differs."""
    upload = kind(features=width, classes=10)
    for value in (0.1, 0.3, 1 / 3, 0.7):
        for steps in (1, 2):
            head = np.full((1, *upload.shape), value)
            head[0, 0, 0] += steps * np.spacing(value)
            (vector,) = on_grid(upload, upload.inside(head), STEP) * STEP
            assert np.linalg.norm(vector) <= upload.norm
