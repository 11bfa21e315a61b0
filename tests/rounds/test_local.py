"""What local training sees: images that move, classes that count alike."""

from dataclasses import replace

import numpy as np
import torch

from fedproof.rounds.local import Augment
from fedproof.rounds.state import class_balance


def test_images_move_by_the_same_pixels_in_a_step_and_keep_their_border():
    augment = Augment(shift=2, flip=False, seed=0, round=0)
    images = torch.arange(2 * 3 * 5 * 5, dtype=torch.float32).reshape(2, 3, 5, 5)
    seen = [augment(images, 0, step) for step in range(20)]
    assert any(torch.equal(one, images) is False for one in seen)
    for one in seen:
        moves = one[0, 0] - images[0, 0]
        assert torch.equal(one - images, moves.expand_as(one))
        assert set(one[0, 0].flatten().tolist()) <= set(images[0, 0].flatten().tolist())
    assert torch.equal(augment(images, 0, 3), seen[3])


def test_flips_happen_half_of_the_time():
    augment = Augment(shift=0, flip=True, seed=0, round=0)
    image = torch.tensor([[0.0, 1.0]])
    flipped = sum(bool(augment(image, 0, step)[0, 0] == 1) for step in range(400))
    assert 140 < flipped < 260  # six standard deviations


def test_balance_makes_every_class_of_a_user_count_alike(federation):
    weights = class_balance(federation)
    for user in range(federation.num_users):
        own = slice(*federation.offsets[user : user + 2])
        labels, weight = federation.labels[own], weights[own]
        sums = [weight[labels == label].sum() for label in np.unique(labels)]
        np.testing.assert_allclose(sums, len(labels) / len(sums))
    poisoned = replace(federation, labels=np.where(np.arange(40) < 4, 0, federation.labels))
    assert np.array_equal(class_balance(poisoned)[4:], weights[4:])
