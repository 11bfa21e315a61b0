"""What local training sees: images that move, classes that count alike."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from fedproof.mechanisms import LocalTraining
from fedproof.rounds.local import Augment
from fedproof.rounds.state import class_balance


def test_images_move_by_the_same_pixels_in_a_step_and_keep_their_border():
    augment = Augment(local=LocalTraining(shift=2), seed=0, round=0)
    images = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5)
    seen = [augment(images, 0, step) for step in range(20)]
    assert any(torch.equal(one, images) is False for one in seen)
    for one in seen:
        moves = one[0, 0] - images[0, 0]
        assert torch.equal(one - images, moves.expand_as(one))
        assert set(one[0, 0].flatten().tolist()) <= set(images[0, 0].flatten().tolist())
    assert torch.equal(augment(images, 0, 3), seen[3])


def test_flips_happen_half_of_the_time():
    augment = Augment(local=LocalTraining(flip=True), seed=0, round=0)
    image = torch.tensor([[0.0, 1.0]])
    flipped = sum(bool(augment(image, 0, step)[0, 0] == 1) for step in range(400))
    assert 140 < flipped < 260  # six standard deviations


def test_nothing_asked_for_changes_nothing_and_draws_of_shift_and_flip_stay_what_they_are():
    images = torch.rand(2, 3, 8, 8)
    assert Augment(local=LocalTraining(), seed=0, round=0)(images, 0, 0) is images
    faint = Augment(local=LocalTraining(shift=2, flip=True, bend=1e-9), seed=0, round=0)
    for step in range(8):
        moved = Augment(local=LocalTraining(shift=2, flip=True), seed=0, round=0)(images, 0, step)
        assert torch.allclose(faint(images, 0, step), moved, atol=1e-6)


@pytest.mark.parametrize("shape", [(9, 7), (3, 9, 7)])
@pytest.mark.parametrize("asked", [{"stretch": 0.2}, {"bend": 1.5}, {"stretch": 0.2, "bend": 1.5}])
def test_every_place_of_a_batch_is_warped_in_its_own_way_alike_for_all_models(shape, asked):
    augment = Augment(local=LocalTraining(shift=1, flip=True, **asked), seed=0, round=0)
    images = torch.rand(4, 5, *shape)
    images[1:, :3] = images[0, :3]
    images[0, 1] = images[0, 0]
    seen = augment(images, 1, 2)
    assert seen.shape == images.shape
    assert seen.is_contiguous()
    assert not torch.equal(seen[0, 0], seen[0, 1])
    assert torch.equal(seen[1, 0], seen[3, 0])
    assert not torch.equal(augment(images, 1, 3), seen)
    # A model sees the same alone, in a longer stack, and in a shorter batch but for digits of its grid.
    assert torch.equal(augment(images[2:3], 1, 2)[0], seen[2])
    assert torch.allclose(augment(images[:, :2], 1, 2), seen[:, :2], atol=1e-5)
    low, high = seen.aminmax()
    assert images.min() - 1e-6 <= low < high <= images.max() + 1e-6  # means of neighbours, no black border


def test_an_image_is_stretched_about_its_middle_and_its_border_repeated():
    augment = Augment(local=LocalTraining(stretch=0.3), seed=3, round=0)
    across = torch.linspace(-1, 1, 41).expand(1, 200, 41, 41)
    seen = augment(across, 0, 0)[0]
    assert torch.allclose(seen[:, 20, 20], torch.zeros(200), atol=1e-5)
    # A plane stays one: its slopes are a row of the matrix, within 0.3 of the identity's and spread evenly.
    right, down = (seen[:, 20, 25] - seen[:, 20, 15]) / 0.5, (seen[:, 25, 20] - seen[:, 15, 20]) / 0.5
    for slope, middle in ((right, 1.0), (down, 0.0)):
        low, high = (slope - middle).aminmax()
        assert -0.3 - 1e-4 <= low < -0.27
        assert 0.27 < high <= 0.3 + 1e-4
    assert float(seen.abs().max()) <= 1 + 1e-6


def test_bending_displaces_pixels_by_no_more_than_is_asked_for():
    across = torch.arange(28.0).expand(1, 100, 28, 28)
    seen = Augment(local=LocalTraining(bend=2.0), seed=1, round=0)(across, 0, 0)
    moves = (seen - across)[0, :, :, 4:-4]  # away from the border that is repeated
    assert 1.0 < float(moves.abs().max()) < 2.0 * 1.5  # a cubic overshoots its points a little
    assert float((moves[:, :, 1:] - moves[:, :, :-1]).abs().max()) < 1  # smooth: nothing is folded


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_what_a_hostile_image_holds_stays_in_it(value):
    augment = Augment(local=LocalTraining(shift=2, flip=True, stretch=0.2, bend=1.0), seed=0, round=0)
    images = torch.rand(3, 4, 12, 12)
    clean = augment(images, 0, 0)
    images[1, 2] = value
    seen = augment(images, 0, 0)
    differs = (seen.view(torch.int32) != clean.view(torch.int32)).flatten(2).any(-1)
    assert differs.nonzero().tolist() == [[1, 2]]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"stretch": -0.1}, "stretch = -0.1 must be zero or a positive number"),
        ({"stretch": float("nan")}, "stretch = nan must be zero or a positive number"),
        ({"stretch": 0.5}, "stretch = 0.5 must be below 0.5"),
        ({"bend": -1.0}, "bend = -1.0 must be zero or a positive number"),
    ],
)
def test_warps_that_are_none_are_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        LocalTraining(**asked)


def test_balance_makes_every_class_of_a_user_count_alike(federation):
    weights = class_balance(federation)
    for user in range(federation.num_users):
        own = slice(*federation.offsets[user : user + 2])
        labels, weight = federation.labels[own], weights[own]
        sums = [weight[labels == label].sum() for label in np.unique(labels)]
        np.testing.assert_allclose(sums, len(labels) / len(sums))
    poisoned = replace(federation, labels=np.where(np.arange(40) < 4, 0, federation.labels))
    assert np.array_equal(class_balance(poisoned)[4:], weights[4:])
