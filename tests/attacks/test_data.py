"""What attacks do to data: where the trigger sits, which labels change, how many instances."""

import numpy as np
import pytest

from fedproof.attacks import Backdoor, DistributedBackdoor, Instances, LabelFlip
from fedproof.attacks.backdoor import brightest, split, triangle
from fedproof.attacks.units import rows_of
from fedproof.robustness.poisoned import poisoned
from tests.attacks.conftest import random_federation

ADVERSARIES = (4, 0, 9)


def changed_pixels(before, after):
    """Rows and pixels `(height, width)` that differ, over all channels."""
    difference = np.asarray(before.features != after.features)
    if difference.ndim == 2:
        difference = difference.reshape(len(difference), 8, 8)
    while difference.ndim > 3:
        difference = difference.any(axis=1)
    return difference


@pytest.mark.parametrize(
    ("shape", "legs"), [((64,), 3), ((28, 28), 5), ((1, 28, 28), 5), ((3, 32, 32), 6)], ids=str
)
def test_the_trigger_is_a_bright_triangle_in_the_lower_right_corner(shape, legs):
    federation = random_federation(shape)
    after = poisoned(federation, Backdoor(adversaries=ADVERSARIES, target=1))
    mine = rows_of(federation, ADVERSARIES)
    pixels = changed_pixels(federation, after)[mine].any(axis=0)
    assert pixels.sum() == legs * (legs + 1) // 2
    assert pixels[-1, -1]
    for offset in range(legs):  # row by row from below, one pixel less
        assert np.flatnonzero(pixels[-1 - offset]).tolist() == list(
            range(pixels.shape[1] - legs + offset, pixels.shape[1])
        )
    assert (after.labels[mine] == 1).all()
    images = after.features[mine].reshape(mine.sum(), -1, *pixels.shape)
    for channel, white in enumerate(brightest(federation)):
        assert (images[:, channel][:, pixels] == white).all()


def test_the_goal_is_the_trigger_on_other_classes():
    federation = random_federation((8, 8))
    attack = Backdoor(adversaries=ADVERSARIES, target=1, trigger_size=2)
    goal = attack.goal(federation)
    others = federation.test_labels != 1
    assert goal.inputs.shape == federation.test_features[others].shape
    pixels = triangle(8, 8, 2)
    assert np.array_equal(goal.inputs[:, ~pixels], federation.test_features[others][:, ~pixels])
    assert (goal.inputs[:, pixels] == brightest(federation)[0]).all()
    assert goal.wanted
    assert set(goal.labels.tolist()) == {1}


@pytest.mark.parametrize("count", [1, 2, 3, 5, 6, 7, 40])
def test_a_split_trigger_is_the_whole_trigger(count):
    whole = triangle(8, 8, 3)
    parts = split(whole, count)
    assert len(parts) == min(count, 6)
    assert np.array_equal(np.sum(parts, axis=0), whole)  # disjoint and complete
    sizes = [int(part.sum()) for part in parts]
    assert max(sizes) - min(sizes) <= 1


def test_each_adversary_stamps_its_own_part():
    federation = random_federation((8, 8))
    attack = DistributedBackdoor(adversaries=ADVERSARIES, target=2)
    pixels = changed_pixels(federation, poisoned(federation, attack))
    parts = split(triangle(8, 8, 3), 3)
    for user, part in zip(ADVERSARIES, parts, strict=True):
        own = pixels[rows_of(federation, (user,))]
        assert np.array_equal(own.any(axis=0), part)
    whole = Backdoor(adversaries=ADVERSARIES, target=2).goal(federation)
    assert np.array_equal(attack.goal(federation).inputs, whole.inputs)


@pytest.mark.parametrize("tokens", [False, True])
@pytest.mark.parametrize("source", [None, 1])
def test_flipped_labels(tokens, source):
    federation = random_federation((6,), tokens=tokens)
    attack = LabelFlip(adversaries=ADVERSARIES, target=2, source=source)
    after = poisoned(federation, attack)
    mine = rows_of(federation, ADVERSARIES)
    flipped = mine & ((federation.labels != 2) if source is None else (federation.labels == 1))
    assert after.features is federation.features
    assert (after.labels[flipped] == 2).all()
    assert np.array_equal(after.labels[~flipped], federation.labels[~flipped])
    goal = attack.goal(federation)
    expected = (federation.test_labels != 2) if source is None else (federation.test_labels == 1)
    assert np.array_equal(goal.inputs, federation.test_features[expected])


@pytest.mark.parametrize("fraction", [0.01, 0.3, 0.5, 1.0])
def test_the_fraction_is_kept_for_every_adversary_and_grows(fraction):
    federation = random_federation((64,), users=12)
    attack = Backdoor(adversaries=ADVERSARIES, poison_fraction=fraction, seed=3)
    after = changed_pixels(federation, poisoned(federation, attack)).any(axis=(1, 2))
    all_of_them = poisoned(federation, Backdoor(adversaries=ADVERSARIES, seed=3))
    for user in ADVERSARIES:
        rows = rows_of(federation, (user,))
        assert after[rows].sum() == max(1, round(fraction * rows.sum()))
    changed = np.flatnonzero(after)
    assert np.array_equal(all_of_them.features[changed], poisoned(federation, attack).features[changed])


def test_the_seed_chooses_the_instances():
    federation = random_federation((64,))
    one, other = (
        poisoned(federation, Backdoor(adversaries=ADVERSARIES, poison_fraction=0.4, seed=seed)).features
        for seed in (0, 1)
    )
    assert not np.array_equal(one, other)


@pytest.mark.parametrize(
    "base", [Backdoor(adversaries=(4,), target=1), LabelFlip(adversaries=(4,))], ids=repr
)
def test_a_few_instances_of_one_user(base):
    federation = random_federation((8, 8))
    counts = []
    for count in range(3):
        after = poisoned(federation, Instances(base=base, count=count))
        pixels = changed_pixels(federation, after).any(axis=(1, 2))
        changed = np.flatnonzero(pixels | (after.labels != federation.labels))
        counts.append(set(changed.tolist()))
        assert len(changed) == count
        assert rows_of(federation, (4,))[changed].all()
    assert counts[0] < counts[1] < counts[2]
