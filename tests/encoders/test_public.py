"""Public instances belong to nobody, and centre, directions and whitening come from them alone."""

import sys

import numpy as np
import pytest

from fedproof.data import load as load_raw
from fedproof.encoders import load
from fedproof.projection import neighbourhood_of, projection_of
from fedproof.statements import Statement


def test_public_instances_belong_to_nobody_and_others_keep_their_identities():
    seen = load("digits", users=48, public=500)
    published = load_raw("digits", users=1)
    rows = published.features[np.argsort(published.instance_ids)]
    np.testing.assert_array_equal(seen.features, rows[seen.instance_ids])
    left = np.setdiff1d(np.arange(len(rows)), seen.instance_ids)
    np.testing.assert_array_equal(seen.public_features, rows[left])
    assert len(left) == 500
    assert seen.most_instances is None
    assert not seen.public_features.flags.writeable
    assert seen.encoded_by.assumptions == (Statement.of("public", count=500, source="no user"),)


def test_the_seed_of_the_data_chooses_them_and_more_of_them_hold_those_of_fewer():
    def public(count, seed):
        return {row.tobytes() for row in load("digits", public=count, seed=seed).public_features}

    assert public(200, 0) == public(200, 0)
    assert public(200, 0) != public(200, 1)
    assert public(200, 0) < public(300, 0)


def test_without_public_instances_users_are_who_they_were():
    plain = load("digits", users=48, seed=3)
    np.testing.assert_array_equal(plain.features, load_raw("digits", users=48, seed=3).features)
    assert plain.public_features is None
    assert plain.encoded_by is None


@pytest.mark.parametrize("partition", ["iid", "dirichlet", "degree"])
def test_every_partition_deals_out_what_is_left(partition):
    seen = load("digits", users=20, public=1000, partition=partition)
    assert len(seen.labels) == 438
    assert len(np.unique(seen.instance_ids)) == 438


def test_where_data_come_with_users_whole_users_are_set_aside(module):
    seen = load(f"{module}:grown", public=7, test="shares")
    plain = load(f"{module}:grown", test="shares")
    assert seen.num_users == 7  # ten, less three whose nine instances are public, or left out
    assert len(seen.public_features) == 7
    assert set(seen.user_ids) < set(plain.user_ids)
    theirs = {
        row.tobytes()
        for user in range(10)
        for row in plain.features[3 * user : 3 * user + 3]
        if user not in seen.user_ids
    }
    assert {row.tobytes() for row in seen.public_features} < theirs
    assert len(seen.test_labels) == 7  # nobody is judged by inputs of users who are not there


def test_projection_centres_turns_and_whitens():
    seen = load("digits", users=48, public=600, project=20)
    public = seen.public_features.astype(np.float64)
    np.testing.assert_allclose(public.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose(np.cov(public.T, bias=True), np.eye(20), atol=1e-5)
    assert seen.features.shape[1:] == seen.test_features.shape[1:] == (20,)
    assert seen.features.dtype == np.float32
    # Directions are those in which public instances differ most.
    raw = load("digits", users=48, public=600).public_features.astype(np.float64)
    variances = np.linalg.eigvalsh(np.cov(raw.T, bias=True))[::-1]
    found = projection_of(raw, 20)
    np.testing.assert_allclose(1 / np.square(np.linalg.norm(found.directions, axis=0)), variances[:20])


def test_a_row_is_projected_alike_however_many_there_are():
    rng = np.random.default_rng(0)
    projection = projection_of(rng.normal(size=(50, 12)), 8)
    rows = rng.normal(size=(2100, 12)).astype(np.float32)
    np.testing.assert_array_equal(projection(rows)[:3], projection(rows[:3]))


def test_whoever_holds_no_numbers_harms_no_other_row():
    rng = np.random.default_rng(0)
    public, rows = rng.normal(size=(50, 12)), rng.normal(size=(9, 12)).astype(np.float32)
    projection = projection_of(public, 8)
    clean = projection(rows)
    rows[3], rows[4] = np.nan, 3e38
    np.testing.assert_array_equal(
        np.delete(projection(rows), [3, 4], axis=0), np.delete(clean, [3, 4], axis=0)
    )
    public[7, 2] = np.inf
    with pytest.raises(ValueError, match="project = 8 needs finite numbers, public instances hold others"):
        projection_of(public, 8)


@pytest.mark.parametrize("encoder", [None, "hog", "halves"])
def test_nothing_of_a_users_data_enters_what_others_see(module, encoder):
    named = f"{module}:{encoder}" if encoder == "halves" else encoder

    def seen():
        return load(f"{module}:images", users=5, public=12, project=6, encoder=named)

    before, ids = seen(), load(f"{module}:images", users=5, public=12)
    images = sys.modules[module].IMAGES
    own = images[:30].copy()
    held = [i for i in range(30) if (own[i] == ids.features).all(axis=(1, 2, 3)).any()]
    mine = [i for i in held if (own[i] == ids.features[: ids.offsets[1]]).all(axis=(1, 2, 3)).any()]
    images[mine] = images[mine][:, :, ::-1] ** 3  # the first user holds something else
    after = seen()
    np.testing.assert_array_equal(before.public_features, after.public_features)
    np.testing.assert_array_equal(before.test_features, after.test_features)
    begin = before.offsets[1]
    assert not np.array_equal(before.features[:begin], after.features[:begin])
    np.testing.assert_array_equal(before.features[begin:], after.features[begin:])


def test_a_federation_of_ones_own_may_bring_public_features(module):
    seen = load(f"{module}:federation", encoder="hog", project=3)
    assert seen.public_features.shape == (8, 3)
    assert seen.encoded_by.public == 8
    with pytest.raises(ValueError, match="leave out public, and give the Federation public_features"):
        load(f"{module}:federation", public=3)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"public": 1438}, "public = 1438 must be below 1438, the number of training instances"),
        ({"public": 10**9}, "public = 1000000000 must be below 1438"),
        ({"public": 0}, "public = 0 must be a whole number of at least 1"),
        ({"public": 1400}, "public = 1400 leaves 38 instances, too few for users = 96 with at least 1 each"),
        (
            {"public": 1000, "partition": "dirichlet", "minimum": 5},
            "public = 1000 leaves 438 instances, too few for users = 96 with at least 5 each",
        ),
        ({"project": 8}, "project = 8 needs public instances, which it comes from: set public"),
        ({"public": 8, "project": 8}, "project = 8 must be below public = 8"),
        (
            {"public": 100, "project": 65},
            "project = 65 must be at most 64: 100 public instances with 64 feat",
        ),
        (
            {"public": 100, "project": 64},
            "project = 64 must be at most .*: public instances differ in no more",
        ),
        ({"public": 100, "project": 0}, "project = 0 must be a whole number of at least 1"),
    ],
)
def test_what_cannot_be_set_aside_or_projected_is_refused_in_one_line(options, message):
    with pytest.raises(ValueError, match=message) as error:
        load("digits", **options)
    assert "\n" not in str(error.value)


def test_whole_users_cannot_all_be_set_aside(module):
    with pytest.raises(ValueError, match="public = 28 leaves no user with data: whole users are set aside"):
        load(f"{module}:grown", public=28, test="shares")


def test_projecting_what_is_not_public_is_refused(module):
    with pytest.raises(
        ValueError, match=r"project = 2 needs public instances.*give the Federation public_fea"
    ):
        load(f"{module}:images", users=5, project=2)


def clusters(rng, count):
    """Unit vectors around five centres of a space of thirty dimensions, and whose they are."""
    centres = np.random.default_rng(5).normal(size=(5, 30))
    labels = rng.integers(5, size=count)
    return centres[labels] + 0.8 * rng.normal(size=(count, 30)), labels


def test_a_map_of_neighbours_makes_points_of_clusters():
    rng = np.random.default_rng(1)
    (public, _), (others, labels) = clusters(rng, 400), clusters(rng, 200)
    found = neighbourhood_of(public, 4)(others).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, rtol=1e-6)
    cosines = found @ found.T
    same = labels[:, None] == labels
    raw = others / np.linalg.norm(others, axis=1, keepdims=True)
    assert cosines[same].mean() > 0.97 > (raw @ raw.T)[same].mean()
    assert cosines[~same].max() < cosines[same].min()


def test_a_map_of_neighbours_is_the_eigenproblem_it_says():
    public, _ = clusters(np.random.default_rng(2), 60)
    found = neighbourhood_of(public, 3, beside=True)
    places = public - public.mean(axis=0)
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    cosines = places @ places.T
    weights = np.zeros_like(cosines)
    for row in range(60):
        nearest = [other for other in np.argsort(-cosines[row]) if other != row][:20]
        weights[row, nearest] = np.exp(8 * (cosines[row, nearest] - 1))
    weights = (weights + weights.T) / 2
    degrees = weights.sum(axis=1)
    values = np.linalg.eigvals(weights / degrees[:, None])  # as D^-1/2 v is an eigenvector of D^-1 W
    for place, value in enumerate(np.sort(values.real)[::-1][1:4]):
        one = found.coordinates[:, place]
        np.testing.assert_allclose(weights @ one / degrees, value * one, atol=1e-9)
    assert found(public).shape == (60, 3 + 30)


def test_pixels_that_never_change_are_no_direction_of_the_map():
    public, _ = clusters(np.random.default_rng(2), 60)
    still = np.concatenate([public, np.ones((60, 12))], axis=1)
    np.testing.assert_allclose(
        neighbourhood_of(still, 3)(still), neighbourhood_of(public, 3)(public), atol=1e-5
    )


def test_who_holds_no_number_changes_no_other_place_on_the_map():
    public, _ = clusters(np.random.default_rng(3), 100)
    project = neighbourhood_of(public, 5, beside=True)
    rows = clusters(np.random.default_rng(4), 1500)[0].astype(np.float32)
    hostile = rows.copy()
    hostile[[0, 700]] = [[np.nan] * 30, [3e38] * 30]
    others = np.setdiff1d(np.arange(1500), [0, 700])
    np.testing.assert_array_equal(project(rows)[others], project(hostile)[others])
    np.testing.assert_array_equal(project(rows[1234:1235]), project(rows)[1234:1235])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"projection": "spectral"}, "projection = 'spectral' needs project, the number of its coordinates"),
        ({"project": 4, "public": 9, "projection": "fourier"}, "must be one of principal, spectral, both"),
        ({"project": 4, "public": 9, "projection": "both"}, "needs at least 21 public instances"),
    ],
)
def test_projections_that_cannot_be(options, message):
    with pytest.raises(ValueError, match=message):
        load("digits", users=10, **options)
