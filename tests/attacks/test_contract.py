"""What every attack keeps to, on every layout: honest units untouched, its own units only, seeds repeat."""

from dataclasses import FrozenInstanceError, dataclass, fields, replace

import numpy as np
import pytest
import torch

from fedproof.attacks import (
    ATTACKS,
    Attack,
    Instances,
    Joining,
    build_attack,
    build_series,
    choose_adversaries,
    units,
)
from fedproof.attacks.units import rows_of
from fedproof.ensemble import fingerprint, first_updates, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FedAvg,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    Partition,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.models import build
from fedproof.robustness.poisoned import poisoned, under_attack
from fedproof.threat import Relation, Unit
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
    "huge values": {"kind": "hostile", "values": "huge"},
    "values that are none": {"kind": "hostile", "values": "nan", "resize": False},
    "one instance each": {"kind": "label-flip", "user_instances": 1},
    "as many instances as allowed": {"kind": "backdoor", "user_instances": 8, "scale": 50.0},
    "worst case by data": {"kind": "worst-case", "by_data": True},
    "worst data for one": {"kind": "worst-case", "by_data": True, "inputs": (3,), "user_instances": 8},
    "worst data towards a class": {"kind": "worst-case", "by_data": True, "target": 1, "gain": 9.0},
    "two instances": {"kind": "backdoor", "instances": 2, "adversaries": (5,)},
    "two flipped instances": {"kind": "label-flip", "instances": 2, "adversaries": (5,)},
    "two worst instances": {"kind": "worst-case", "instances": 2, "adversaries": (5,)},
    "two hostile instances of two": {"kind": "hostile", "instances": 2},
    "two instances leave": {"kind": "leave", "instances": 2},
    "two instances join": {"kind": "backdoor", "instances": 2, "joining": True},
    "three users join": {"kind": "label-flip", "joining": True, "adversaries": (12, 13, 14)},
    "three hostile users join": {"kind": "hostile", "joining": True, "adversaries": (12, 13, 14)},
    "three worst users join": {
        "kind": "worst-case",
        "joining": True,
        "adversaries": (12, 13, 14),
        "by_data": True,
    },
    "three join in the worst direction": {
        "kind": "worst-case",
        "joining": True,
        "adversaries": (12, 13, 14),
        "user_instances": 1,
        "scale": 2.0,
    },
}
COME_AND_GO = [
    name for name, given in VARIANTS.items() if "joining" in given or "leave" in (name, given.get("kind"))
]


def made(variant, **changes):
    options = {"kind": variant, "adversaries": ADVERSARIES} | VARIANTS[variant] | changes
    return build_attack(options.pop("kind"), **options)


def same(one, other):
    return all(
        np.array_equal(getattr(one, name), getattr(other, name))
        for name in ("features", "labels", "offsets", "test_features", "test_labels")
    )


@dataclass(frozen=True, kw_only=True)
class Named(Federation):
    """A federation whose units have names of their own."""

    user_ids: np.ndarray
    instance_ids: np.ndarray
    most_instances: int | None = None


def named(federation, **more):
    users, instances = federation.num_users, len(federation.labels)
    given = {field.name: getattr(federation, field.name) for field in fields(Federation)}
    ids = {"user_ids": 1000 + 7 * np.arange(users)[::-1], "instance_ids": 5 * np.arange(instances) + 3}
    return Named(**(given | ids | more))


def by_name(federation):
    """What each user holds, by its name: `(features, label)` of each of its instances, by theirs."""
    rows = np.split(np.arange(len(federation.labels)), federation.offsets[1:-1])
    return {
        int(user): {
            int(federation.instance_ids[row]): (
                federation.features[row].tobytes(),
                int(federation.labels[row]),
            )
            for row in own
        }
        for user, own in zip(federation.user_ids, rows, strict=True)
    }


@pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)
@pytest.mark.parametrize("variant", VARIANTS)
def test_data_of_honest_units_and_shapes_stay(variant, shape):
    federation = random_federation(shape)
    attack = made(variant)
    after = poisoned(federation, attack)
    assert np.array_equal(after.test_features, federation.test_features)
    assert after.features.shape[1:] == federation.features.shape[1:]
    assert after.features.dtype == federation.features.dtype
    if variant not in COME_AND_GO:
        assert after.num_users == federation.num_users
    with_names = named(federation)
    old, new = by_name(with_names), by_name(poisoned(with_names, attack))
    mine = {1000 + 7 * (11 - user) for user in attack.adversaries if user < 12}
    assert {user: held for user, held in new.items() if user in old and user not in mine} == {
        user: held for user, held in old.items() if user not in mine
    }
    if attack.unit is Unit.INSTANCE:
        before, now = (
            {one: held for own in side.values() for one, held in own.items()} for side in (old, new)
        )
        assert sum(before.get(one) != now.get(one) for one in before.keys() | now.keys()) == attack.size
        if attack.relation is Relation.JOIN:
            assert all(before[one] == now[one] for one in before.keys() & now.keys())
    else:
        moved = old.keys() ^ new.keys()
        assert len(moved) == (attack.size if attack.relation is Relation.JOIN else 0)
        assert all(old[user] == new[user] for user in old.keys() & new.keys() - mine)
    assert not after.features.flags.writeable
    assert not after.labels.flags.writeable
    if not np.isnan(after.features).any():
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
    again = hook(contributions, state).updates
    assert np.array_equal(again.numpy(), after.updates.numpy(), equal_nan=True)


@pytest.mark.parametrize("variant", VARIANTS)
def test_training_repeats_and_fingerprints_tell_attacks_apart(variant):
    task = small_task()
    first, second = (under_attack(task, made(variant)) for _ in range(2))
    one, other = (train_replicas(attacked, range(3)).scores for attacked in (first, second))
    assert np.array_equal(one, other)
    assert fingerprint(first) == fingerprint(second)
    assert fingerprint(first) != fingerprint(task)
    if "instances" not in VARIANTS[variant]:
        fewer = under_attack(task, made(variant, adversaries=made(variant).adversaries[:2]))
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
    message = r"adversaries = . must be below the number of users = 3"
    if isinstance(attack, Joining):
        message = "must be the positions behind the last of 3 users"
    with pytest.raises(ValueError, match=message):
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
        ("backdoor", {"adversaries": (), "instances": 2}, "somebody must hold them"),
        ("backdoor", {"instances": 2, "user_instances": 3}, "user_instances = 3 is for whole users"),
        ("backdoor", {"user_instances": 0}, "count = 0"),
        ("hostile", {"values": "rude"}, "values = 'rude' must be one of huge, nan"),
        ("worst-case", {"by_data": True, "gain": -1.0}, "gain = -1.0"),
        ("worst-case", {"gain": 2.0}, "gain is no parameter of the attack worst-case"),
        ("backdoor", {"adversaries": (1,), "instances": 2, "scale": 2.0}, "scale = 2.0"),
        ("backdoor", {"adversaries": (1, 1)}, "must not name a user twice"),
        ("backdoor", {"adversaries": (-1,)}, "adversaries = -1"),
        ("nowhere.at_all:attack", {}, "cannot be imported"),
        ("math:pi", {}, "attack = 'math:pi': module 'math' has no function 'pi'"),
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
    with pytest.raises(ValueError, match="somebody must hold them"):
        build_attack("label-flip", adversaries=(), instances=1)


def test_a_series_of_units_that_come_and_go():
    joining = build_series("hostile", (0, 2, 4), num_users=12, relation=Relation.JOIN)
    assert [attack.adversaries for _, attack in joining] == [(), (12, 13), (12, 13, 14, 15)]
    assert {attack.relation for _, attack in joining} == {Relation.JOIN}
    federation = random_federation((8, 8))
    sizes = [poisoned(federation, attack).num_users for _, attack in joining]
    assert sizes == [12, 14, 16]
    leaving = build_series("leave", (1, 3), num_users=12, relation=Relation.JOIN)
    assert [poisoned(federation, attack).num_users for _, attack in leaving] == [11, 9]
    with pytest.raises(ValueError, match="must leave somebody behind"):
        poisoned(federation, build_attack("leave", adversaries=tuple(range(12))))
    with pytest.raises(ValueError, match="'leave' needs relation = 'join'"):
        build_series("leave", (1,), num_users=12)
    for key, value in (("scale", 5.0), ("user_instances", 3)):
        with pytest.raises(ValueError, match=f"{key} = {value} is not used by attack = 'leave'"):
            build_attack("leave", adversaries=(1,), **{key: value})
    with pytest.raises(ValueError, match="spread = 2 is for poisoned instances"):
        build_series("backdoor", (1,), num_users=12, spread=2)


def test_instances_are_dealt_out_by_turns():
    federation = random_federation((8, 8))
    for spread, most in ((1, 2), (2, 1), (12, 1)):
        ((_, attack),) = build_series("hostile", [2], num_users=12, unit=Unit.INSTANCE, spread=spread)
        after = poisoned(federation, attack)
        changed = (after.features != federation.features).reshape(len(after.labels), -1).any(axis=1)
        owners = np.repeat(np.arange(12), federation.sizes)[changed]
        assert changed.sum() == 2
        assert np.bincount(owners).max() == most
    with pytest.raises(ValueError, match="adversaries = 13 must be at most"):
        build_series("hostile", [2], num_users=12, unit=Unit.INSTANCE, spread=13)


def test_the_public_limit_is_kept():
    federation = named(random_federation((8, 8)), most_instances=20)
    attack = made("huge values")
    sizes = poisoned(federation, attack).sizes
    assert [int(sizes[user]) for user in attack.adversaries] == [20, 1, int(federation.sizes[5])]
    with pytest.raises(ValueError, match="user_instances = 21 must be at most 20"):
        poisoned(federation, build_attack("label-flip", adversaries=(3,), user_instances=21))
    assert (
        poisoned(federation, build_attack("label-flip", adversaries=(3,), user_instances=20)).sizes[3] == 20
    )


# --- attacks that users bring ----------------------------------------------------------------------------


def all_zero(federation, adversaries, label=0):
    labels = federation.labels.copy()
    labels[rows_of(federation, adversaries)] = label
    return units.frozen(federation, labels=labels)


def too_much(federation, adversaries):
    return units.frozen(federation, labels=np.zeros_like(federation.labels))


def grows(federation, adversaries):
    return replace(federation, test_features=federation.test_features + 1)


def one_more_user(federation, adversaries):
    return units.with_newcomers(federation, 1, seed=0)


def takes_an_instance(federation, adversaries):
    other = next(user for user in range(federation.num_users) if user not in adversaries)
    return units.resized(federation, (other,), (1,))


def other_names(federation, adversaries):
    return replace(federation, user_ids=federation.user_ids[::-1])


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
    expected[:, np.isin(contributions.members[0].numpy(), ADVERSARIES)] *= -2
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
    with pytest.raises(ValueError, match="changed the number of users"):
        under_attack(task, build_attack(f"{__name__}:one_more_user", adversaries=ADVERSARIES))
    with pytest.raises(ValueError, match="number of instances of users who are no adversaries"):
        under_attack(task, build_attack(f"{__name__}:takes_an_instance", adversaries=ADVERSARIES))
    with pytest.raises(ValueError, match="users who are no adversaries"):
        poisoned(named(task.federation), build_attack(f"{__name__}:other_names", adversaries=ADVERSARIES))
    attacked = under_attack(task, build_attack(f"{__name__}:wrong_shape", adversaries=ADVERSARIES))
    with pytest.raises(ValueError, match=r"wrong_shape returned .*, must be a tensor of shape"):
        attacked.attack(*handed_in(task, shared=True))


# --- every layout ----------------------------------------------------------------------------------------


POISSON = Poisson(probability=0.4)
ONCE = {"rounds": 2, "sampling": POISSON}
LAYOUTS = {
    "users": UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=POISSON),
    "users, fixed": UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=FixedSize(cohort=4, users=12)),
    "users, all": UserFedAvg(rounds=1, noise_multiplier=1.0, sampling=Everyone()),
    "users, layers": UserFedAvg(
        rounds=1, noise_multiplier=1.0, sampling=POISSON, clipping=PerLayer(num_layers=2)
    ),
    "users, quantile": UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=POISSON, clipping=Quantile()),
    "users, no noise": FedAvg(rounds=2, sampling=POISSON),
    "once": Bagging(**ONCE),
    "once, fixed": Bagging(rounds=1, sampling=FixedSize(cohort=4, users=12)),
    "once, noise": CohortOnce(**ONCE, noise_multiplier=1.0),
    "once, pooled": Bagging(**ONCE, pooled=True),
    "once, instances": Bagging(**ONCE, pooled=True, unit=Unit.INSTANCE),
    "once, instances, noise": CohortOnce(**ONCE, pooled=True, unit=Unit.INSTANCE, noise_multiplier=1.0),
    "groups": Partition(groups=4),
    "groups, pooled": Partition(groups=4, pooled=True),
    "groups of instances": Partition(groups=4, pooled=True, unit=Unit.INSTANCE),
    "instance steps": InstanceFedSGD(
        rounds=2, noise_multiplier=1.0, sampling=FixedSize(cohort=4, users=12), batch_probability=0.5
    ),
    "instance training": InstanceFedAvg(
        rounds=1, local_steps=2, noise_multiplier=1.0, batch_probability=1.0, sampling=POISSON
    ),
}


def why_not(attack, task):
    """What is said where an attack makes no sense for a layout; None where it does."""
    mechanism = task.mechanism
    if mechanism.pooled and attack.crafter(task) is not None:
        return "where pooled = true nobody hands in any"
    moves = attack.relation is Relation.JOIN and attack.unit is Unit.USER
    without_noise = mechanism.once and not mechanism.noise_multiplier
    if moves and isinstance(mechanism.sampling, FixedSize) and not without_noise:
        return "is not defined for noised cohorts of a fixed size"
    return None


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("variant", VARIANTS)
def test_every_attack_on_every_layout(variant, layout):
    task = replace(small_task(), mechanism=LAYOUTS[layout])
    attack = made(variant)
    message = why_not(attack, task)
    if message is not None:
        with pytest.raises(ValueError, match=message):
            under_attack(task, attack)
        return
    scores = train_replicas(under_attack(task, attack), range(2)).scores
    assert scores.shape == (2, 20, 3)
    again = train_replicas(under_attack(task, made(variant)), range(2)).scores
    assert np.array_equal(scores, again, equal_nan=True)


# --- helpers ---------------------------------------------------------------------------------------------


def small_task():
    federation = random_federation((8, 8))
    local = LocalTraining(epochs=2, batch_size=3, learning_rate=0.5)
    return demo_task(federation=federation, model=build("mlp", federation, hidden=(5,)), local=local)


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
