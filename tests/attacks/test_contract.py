"""What every attack keeps to: honest users untouched, shapes kept, seeds repeat."""

from dataclasses import FrozenInstanceError, fields, replace

import numpy as np
import pytest
import torch

from fedproof.attacks import (
    ATTACKS,
    Attack,
    Instances,
    build_attack,
    build_series,
    choose_adversaries,
    poisoned,
    under_attack,
)
from fedproof.attacks.attack import rows_of, with_rows
from fedproof.ensemble import fingerprint, first_updates, train_replicas
from fedproof.models import build
from fedproof.protocol import FixedSize
from fedproof.threat import Unit
from tests.attacks.conftest import demo_task, random_federation

SHAPES = {
    "flat digits": (64,),
    "grey": (28, 28),
    "one channel": (1, 28, 28),
    "colour": (3, 32, 32),
}
ADVERSARIES = (7, 2, 5)
VARIANTS = {
    **{name: {} for name in ATTACKS},
    "backdoor half": {"kind": "backdoor", "poison_fraction": 0.5, "target": 2},
    "backdoor scaled": {"kind": "backdoor", "scale": 50.0},
    "distributed scaled": {"kind": "distributed-backdoor", "scale": 50.0, "poison_fraction": 0.5},
    "flip one class": {"kind": "label-flip", "source": 1, "target": 2},
    "flip scaled": {"kind": "label-flip", "scale": 100.0},
    "min-max sign": {"kind": "min-max", "direction": "inverse-sign"},
    "min-max unit": {"kind": "min-max", "direction": "inverse-unit-vector"},
    "min-sum sign": {"kind": "min-sum", "direction": "inverse-sign"},
    "min-sum unit": {"kind": "min-sum", "direction": "inverse-unit-vector"},
    "min-max scaled": {"kind": "min-max", "scale": 3.0},
    "worst case for one": {"kind": "worst-case", "inputs": (3,)},
    "worst case towards a class": {"kind": "worst-case", "target": 1},
    "two instances": {"kind": "backdoor", "instances": 2, "adversaries": (5,)},
    "two flipped instances": {"kind": "label-flip", "instances": 2, "adversaries": (5,)},
}


def made(variant, **changes):
    options = {"kind": variant, "adversaries": ADVERSARIES} | VARIANTS[variant] | changes
    return build_attack(options.pop("kind"), **options)


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("features", "labels", "offsets", "test_features", "test_labels")
    )


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_data_of_honest_users_and_shapes_stay(variant, shape):
    federation = random_federation(shape)
    attack = made(variant)
    after = poisoned(federation, attack)
    honest = ~rows_of(federation, attack.adversaries)
    assert np.array_equal(after.features[honest], federation.features[honest])
    assert np.array_equal(after.labels[honest], federation.labels[honest])
    assert np.array_equal(after.test_features, federation.test_features)
    assert after.features.shape == federation.features.shape
    assert after.features.dtype == federation.features.dtype
    assert not after.features.flags.writeable
    assert not after.labels.flags.writeable
    assert same(after, poisoned(federation, made(variant)))
    goal = attack.goal(federation)
    assert goal.inputs.shape[1:] == shape
    assert goal.inputs.dtype == federation.test_features.dtype


@pytest.mark.parametrize("variant", VARIANTS)
@pytest.mark.parametrize("shared", [True, False])
def test_updates_of_honest_users_stay(variant, shared):
    task = small_task()
    attack = made(variant)
    hook = under_attack(task, attack).attack
    if hook is None:
        return
    contributions, state = handed_in(task, shared=shared)
    before = contributions.updates.clone()
    after = hook(contributions, state)
    assert torch.equal(contributions.updates, before)  # nothing is changed in place
    assert after.updates.shape == before.shape
    assert after.updates.dtype == before.dtype
    adversarial = torch.isin(contributions.members, torch.tensor(attack.adversaries))
    assert torch.equal(after.updates[~adversarial], before[~adversarial])
    for name in ("present", "scales", "members"):
        assert torch.equal(getattr(after, name), getattr(contributions, name))
    assert torch.equal(hook(contributions, state).updates, after.updates)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_repeats_and_fingerprints_tell_attacks_apart(variant):
    task = small_task()
    first, second = (under_attack(task, made(variant)) for _ in range(2))
    one, other = (train_replicas(attacked, range(3)).scores for attacked in (first, second))
    assert np.array_equal(one, other)
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(task)
    if "instances" not in VARIANTS[variant]:
        fewer = under_attack(task, made(variant, adversaries=ADVERSARIES[:2]))
        assert fingerprint(fewer) != fingerprint(first)


@pytest.mark.parametrize("variant", VARIANTS)
def test_no_adversaries_no_attack(variant):
    if "instances" in VARIANTS[variant]:
        return
    task = small_task()
    attacked = under_attack(task, made(variant, adversaries=()))
    assert attacked.attack is None
    assert same(attacked.federation, task.federation)
    assert made(variant, adversaries=()).size == 0


@pytest.mark.parametrize("variant", VARIANTS)
def test_attacks_are_frozen_and_check_their_users(variant):
    attack = made(variant)
    with pytest.raises(FrozenInstanceError):
        attack.adversaries = ()
    federation = random_federation((8, 8), users=3)
    with pytest.raises(ValueError, match=r"adversaries = . must be below the number of users = 3"):
        poisoned(federation, attack)
    assert attack.size == (2 if isinstance(attack, Instances) else len(ADVERSARIES))


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("backdor", {}, "attack = 'backdor' must be one of backdoor"),
        ("backdoor", {"sise": 3}, "sise is no parameter of the attack backdoor; it has target"),
        ("backdoor", {"poison_fraction": 0.0}, "poison_fraction = 0.0"),
        ("backdoor", {"scale": -1.0}, "scale = -1.0"),
        ("backdoor", {"trigger_size": 0}, "trigger_size = 0"),
        ("distributed-backdoor", {"poison_fraction": 2.0}, "poison_fraction = 2.0"),
        ("label-flip", {"source": 1, "target": 1}, "source = 1 must not be the target"),
        ("min-max", {"direction": "up"}, "direction = 'up' must be one of inverse-unit-vector"),
        ("min-sum", {"direction": "up"}, "direction = 'up' must be one of"),
        ("worst-case", {"length": 0.0}, "length = 0.0"),
        ("backdoor", {"instances": 2}, "must be one user"),
        ("backdoor", {"adversaries": (1,), "instances": 2, "scale": 2.0}, "scale = 2.0"),
        ("backdoor", {"adversaries": (1, 1)}, "must not name a user twice"),
        ("backdoor", {"adversaries": (-1,)}, "adversaries = -1"),
        ("nowhere.at_all:attack", {}, "cannot be imported"),
        ("math:pi", {}, "is no function"),
        (f"{__name__}:no_attack", {}, "returned dict, must be a fedproof.attacks.Attack"),
        (f"{__name__}:all_zero", {"lable": 1}, "lable is no parameter of the attack .*:all_zero"),
    ],
)
def test_bad_parameters_are_named(name, options, message):
    with pytest.raises(ValueError, match=message):
        build_attack(name, **({"adversaries": ADVERSARIES} | options))


def test_classes_and_images_are_checked_against_the_data():
    images, text = random_federation((8, 8)), random_federation((6,), tokens=True)
    for attack in ("backdoor", "distributed-backdoor"):
        with pytest.raises(ValueError, match="are no images"):
            poisoned(text, build_attack(attack, adversaries=ADVERSARIES))
        with pytest.raises(ValueError, match="target = 3 must be a class of random, 0 to 2"):
            poisoned(images, build_attack(attack, adversaries=ADVERSARIES, target=3))
    with pytest.raises(ValueError, match="source = 5 must be a class"):
        poisoned(text, build_attack("label-flip", adversaries=ADVERSARIES, source=5))
    with pytest.raises(ValueError, match="trigger_size = 9 must be from 1 to 8"):
        poisoned(images, build_attack("backdoor", adversaries=ADVERSARIES, trigger_size=9))
    with pytest.raises(ValueError, match=r"user 5 has . instances that Backdoor can poison"):
        poisoned(images, build_attack("backdoor", adversaries=(5,), instances=100))
    task = small_task()
    with pytest.raises(ValueError, match="inputs = 99 must be below the number of test inputs"):
        under_attack(task, build_attack("worst-case", adversaries=ADVERSARIES, inputs=(99,)))
    with pytest.raises(ValueError, match="under attack already"):
        under_attack(under_attack(task, made("min-max")), made("absent"))


def test_adversaries_are_chosen_by_seed_and_nest():
    assert choose_adversaries(50, 9, seed=3) == choose_adversaries(50, 9, seed=3)
    assert choose_adversaries(50, 9, seed=3) != choose_adversaries(50, 9, seed=4)
    assert choose_adversaries(50, 9, seed=3)[:4] == choose_adversaries(50, 4, seed=3)
    assert sorted(choose_adversaries(5, 5, seed=0)) == [0, 1, 2, 3, 4]
    with pytest.raises(ValueError, match="adversaries = 6 must be at most the number of users = 5"):
        choose_adversaries(5, 6, seed=0)


def test_a_series_counts_what_the_certificate_counts():
    users = build_series("min-max", (1, 4), num_users=12, seed=3, scale=2.0)
    assert [(name, attack.size) for name, attack in users] == [("min-max", 1), ("min-max", 4)]
    assert users[0][1].adversaries == users[1][1].adversaries[:1]
    instances = build_series("label-flip", (0, 3), num_users=12, unit=Unit.INSTANCE, seed=3)
    assert [attack.size for _, attack in instances] == [0, 3]
    assert {attack.adversaries for _, attack in instances} == {choose_adversaries(12, 1, seed=3)}
    assert {attack.unit for _, attack in instances} == {Unit.INSTANCE}
    nobody = build_attack("label-flip", adversaries=(), instances=0)
    federation = random_federation((8, 8))
    assert same(poisoned(federation, nobody), federation)
    with pytest.raises(ValueError, match="must be one user"):
        build_attack("label-flip", adversaries=(), instances=1)


# --- attacks that users bring ----------------------------------------------------------------------------


def all_zero(federation, adversaries, label=0):
    labels = federation.labels.copy()
    labels[rows_of(federation, adversaries)] = label
    return with_rows(federation, labels=labels)


def too_much(federation, adversaries):
    return with_rows(federation, labels=np.zeros_like(federation.labels))


def grows(federation, adversaries):
    return replace(federation, test_features=federation.test_features + 1)


def opposite(contributions, state, adversaries, factor=1.0):
    return -factor * contributions.updates  # of everybody: only the adversaries' rows may count


def wrong_shape(contributions, state, adversaries):
    return contributions.updates[..., :1]


def no_attack(adversaries):
    return {}


def factory(adversaries, direction):
    return build_attack("min-max", adversaries=adversaries, direction=direction)


def test_a_users_own_attacks():
    task = small_task()
    flipped = under_attack(task, build_attack(f"{__name__}:all_zero", adversaries=ADVERSARIES, label=2))
    rows = rows_of(task.federation, ADVERSARIES)
    assert set(flipped.federation.labels[rows].tolist()) == {2}
    contributions, state = handed_in(task, shared=True)
    attacked = under_attack(task, build_attack(f"{__name__}:opposite", adversaries=ADVERSARIES, factor=2.0))
    expected = contributions.updates.clone()
    expected[:, list(ADVERSARIES)] *= -2
    assert torch.equal(attacked.attack(contributions, state).updates, expected)
    assert "opposite" in repr(attacked.attack)
    assert "2.0" in repr(attacked.attack)
    made_by = build_attack(f"{__name__}:factory", adversaries=ADVERSARIES, direction="inverse-sign")
    assert made_by == made("min-max sign")


def test_a_users_own_attack_cannot_reach_beyond_its_users():
    task = small_task()
    with pytest.raises(ValueError, match="changed labels of users who are no adversaries"):
        under_attack(task, build_attack(f"{__name__}:too_much", adversaries=ADVERSARIES))
    with pytest.raises(ValueError, match="changed test_features"):
        under_attack(task, build_attack(f"{__name__}:grows", adversaries=ADVERSARIES))
    attacked = under_attack(task, build_attack(f"{__name__}:wrong_shape", adversaries=ADVERSARIES))
    with pytest.raises(ValueError, match=r"wrong_shape returned .*, must be a tensor of shape"):
        attacked.attack(*handed_in(task, shared=True))


# --- helpers ---------------------------------------------------------------------------------------------


def small_task():
    federation = random_federation((8, 8))
    return demo_task(federation=federation, model=build("mlp", federation, hidden=(5,)))


def handed_in(task, *, shared):
    """Contributions before the attack, of round one (shared) or of a later round."""
    seen = []

    def spy(contributions, state):
        seen.append((contributions, state))
        return contributions

    sampling = FixedSize(cohort=6, users=task.federation.num_users)
    train_replicas(
        replace(task, attack=spy, mechanism=replace(task.mechanism, sampling=sampling)),
        range(4),
        first_updates=first_updates(task),
    )
    return seen[0 if shared else 1]


def test_every_parameter_is_in_the_representation():
    for variant in VARIANTS:
        attack = made(variant)
        assert isinstance(attack, Attack)
        for field in fields(attack):
            assert f"{field.name}=" in repr(attack)
