"""What one unit holds, and whether it is there at all, changes no bit of a model that did not draw it.

Every mechanism, layout and kind of model is driven through hostile units: huge, infinite, not a number,
subnormal, of one instance or as many as are allowed, of other labels, joining at any place or leaving. The
changes that are always tried are a list, see `every_change`; `make fuzz` draws many more.
"""

import os
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from fedproof.aggregation import build_rule
from fedproof.aggregation.rule import Rule
from fedproof.ensemble import Task, train_replicas
from fedproof.ensemble.memory import Sizes
from fedproof.federation import Federation
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    FedAvg,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    NoisyPartition,
    Partition,
    PerLayer,
    Poisson,
    Quantile,
    UserFedAvg,
)
from fedproof.models import build
from fedproof.models.module import from_module
from fedproof.seeds import Lots, Purpose, cohorts_of
from fedproof.threat import Unit

EXAMPLES = int(os.environ.get("FEDPROOF_ISOLATION_EXAMPLES", "15"))  # drawn for each case
USERS, MOST, REPLICAS = 6, 7, range(5)
HALF, THREE = Poisson(probability=0.3), FixedSize(cohort=2, users=USERS)
FOUR = FixedSize(cohort=4, users=USERS)
NOISY = {"rounds": 2, "noise_multiplier": 1.0}
HUGE = (3e38, -3e38, 1e20, np.inf, -np.inf, np.nan, 1e-42, 0.0, 1.0)
PLAIN = LocalTraining(epochs=2, batch_size=3, learning_rate=0.3)


@dataclass(frozen=True, kw_only=True)
class Case:
    """A mechanism, a model, and how users train."""

    mechanism: object
    model: str = "linear"
    rule: str = "mean"
    limited: bool = True
    local: LocalTraining = PLAIN


SGD = LocalTraining(
    epochs=2, batch_size=2, learning_rate=0.2, momentum=0.9, weight_decay=0.01, cosine=True, balanced=True
)
WARPED = replace(PLAIN, shift=1, flip=True, stretch=0.2, bend=0.5)
RIDGE = LocalTraining(solver="ridge", penalty=0.1, balanced=True)
LOGISTIC = LocalTraining(solver="logistic", penalty=0.1)
SHORT = LocalTraining(batch_size=4, learning_rate=0.3)  # two steps: a step of an LSTM is a loop of its own
SHAPES = {"mnist-cnn": (28, 28), "lenet": (28, 28), "cifar-cnn": (3, 32, 32)}
DECLARED = {"sampling": HALF, "population": 2 * USERS}
CASES = {
    "user": Case(mechanism=UserFedAvg(**NOISY, **DECLARED), local=SGD),
    "user, mlp, no limit": Case(mechanism=UserFedAvg(**NOISY, **DECLARED), model="mlp", limited=False),
    "user, own module": Case(mechanism=UserFedAvg(**NOISY, **DECLARED), model="module"),
    "user, lstm": Case(mechanism=UserFedAvg(**NOISY, **DECLARED), model="lstm", local=SHORT),
    "user, fixed": Case(mechanism=UserFedAvg(**NOISY, sampling=THREE), model="mlp"),
    "user, quantile": Case(mechanism=UserFedAvg(**NOISY, **DECLARED, clipping=Quantile())),
    "user, layers": Case(
        mechanism=UserFedAvg(**NOISY, **DECLARED, clipping=PerLayer(num_layers=2)), model="mlp"
    ),
    "user, median": Case(mechanism=UserFedAvg(**NOISY, **DECLARED, rule="median"), rule="median"),
    "fedavg": Case(mechanism=FedAvg(rounds=2, **DECLARED), local=SGD),
    "once": Case(mechanism=Bagging(rounds=2, sampling=THREE), local=SGD),
    "once, poisson": Case(mechanism=Bagging(rounds=2, sampling=HALF), model="mlp"),
    "once, krum": Case(mechanism=Bagging(rounds=2, sampling=FOUR, rule="krum"), rule="krum"),
    "once, trimmed": Case(
        mechanism=Bagging(rounds=2, sampling=THREE, rule="trimmed-mean"), rule="trimmed-mean", model="mlp"
    ),
    "once, noise": Case(mechanism=CohortOnce(**NOISY, **DECLARED), local=SGD),
    "once, noise, fixed": Case(mechanism=CohortOnce(**NOISY, sampling=THREE), model="mlp"),
    "once, pooled": Case(mechanism=Bagging(rounds=2, sampling=HALF, pooled=True), local=SGD),
    "once, pooled, fixed": Case(mechanism=Bagging(rounds=1, sampling=THREE, pooled=True), model="mlp"),
    "once, pooled, module": Case(
        mechanism=Bagging(rounds=1, sampling=HALF, pooled=True), model="module", local=SGD
    ),
    "partition": Case(mechanism=Partition(groups=4, rounds=2), local=SGD),
    "partition, mlp": Case(mechanism=Partition(groups=4), model="mlp", limited=False),
    "partition, lstm": Case(mechanism=Partition(groups=4), model="lstm", local=SHORT),
    "partition, pooled": Case(mechanism=Partition(groups=4, rounds=2, pooled=True), local=SGD),
    "partition, pooled, module": Case(mechanism=Partition(groups=4, pooled=True), model="module"),
    "partition, one vote": Case(mechanism=Partition(groups=USERS - 1), model="mlp", local=SGD),
    "partition, ridge": Case(mechanism=Partition(groups=4, pooled=True), local=RIDGE),
    "partition, logistic": Case(mechanism=Partition(groups=4, pooled=True), model="logistic", local=LOGISTIC),
    "partition of instances, ridge": Case(
        mechanism=Partition(groups=4, pooled=True, unit="instance"), local=RIDGE
    ),
    "once, ridge": Case(mechanism=Bagging(rounds=1, sampling=HALF, pooled=True), local=RIDGE),
    "one vote each": Case(mechanism=Partition(rounds=2), local=SGD),
    "one vote each, pooled": Case(mechanism=Partition(pooled=True), model="mlp", local=SGD),
    "one vote each, module": Case(mechanism=Partition(), model="module", local=SGD),
    "one vote each, ridge": Case(mechanism=Partition(pooled=True), local=RIDGE),
    "one vote each, logistic": Case(mechanism=Partition(pooled=True), model="logistic", local=LOGISTIC),
    "noisy partition": Case(mechanism=NoisyPartition(groups=4, **NOISY, population=2 * USERS), local=SGD),
    "noisy partition of instances": Case(
        mechanism=NoisyPartition(groups=4, **NOISY, population=100, pooled=True, unit="instance"), model="mlp"
    ),
    "bagging": Case(mechanism=Bagging(rounds=1, sampling=HALF, pooled=True, unit="instance"), local=SGD),
    "bagging, noise": Case(
        mechanism=CohortOnce(**NOISY, sampling=HALF, population=100, pooled=True, unit="instance"),
        model="mlp",
    ),
    "bagging, noise, module": Case(
        mechanism=CohortOnce(**NOISY, sampling=HALF, population=100, pooled=True, unit="instance"),
        model="module",
    ),
    "partition of instances": Case(
        mechanism=Partition(groups=4, pooled=True, unit="instance"), model="mlp", local=SGD
    ),
    "user, mnist-cnn": Case(mechanism=UserFedAvg(**NOISY, **DECLARED), model="mnist-cnn", local=SGD),
    "partition, pooled, lenet": Case(mechanism=Partition(groups=4, pooled=True), model="lenet", local=SGD),
    "partition, pooled, warped": Case(mechanism=Partition(groups=4, pooled=True), local=WARPED),
    "once, cifar-cnn": Case(mechanism=Bagging(rounds=1, sampling=THREE), model="cifar-cnn", local=WARPED),
    "instance-fedavg, mnist-cnn": Case(
        mechanism=InstanceFedAvg(**NOISY, local_steps=2, batch_probability=0.5, **DECLARED),
        model="mnist-cnn",
    ),
    "bagging, noise, cifar-cnn": Case(  # one round of the largest network: what a second does, others show
        mechanism=CohortOnce(
            **NOISY | {"rounds": 1}, sampling=HALF, population=100, pooled=True, unit="instance"
        ),
        model="cifar-cnn",
    ),
    "instance-fedsgd": Case(
        mechanism=InstanceFedSGD(**NOISY, sampling=THREE, batch_probability=0.5), model="mlp"
    ),
    "instance-fedsgd, module": Case(
        mechanism=InstanceFedSGD(**NOISY, sampling=THREE, batch_probability=0.5), model="module"
    ),
    "instance-fedavg": Case(
        mechanism=InstanceFedAvg(**NOISY, local_steps=2, batch_probability=0.5, **DECLARED)
    ),
    "instance-fedavg, lstm": Case(
        mechanism=InstanceFedAvg(**NOISY, local_steps=2, batch_probability=0.5, **DECLARED), model="lstm"
    ),
    "instance-fedavg, all": Case(
        mechanism=InstanceFedAvg(**NOISY, local_steps=3, batch_probability=0.2, population=2 * USERS),
        model="mlp",
        local=LocalTraining(batch_size=2, momentum=0.9),
    ),
    "instance-fedavg, shuffled": Case(
        mechanism=InstanceFedAvg(**NOISY, local_steps=3, batch_probability=1.0, shuffled=True, **DECLARED),
        limited=False,
    ),
}


def honest(case, seed):
    """A federation of users of unlike sizes, with identities that are no positions."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, MOST + 1, USERS)
    tokens = case.model == "lstm"
    shape = (3,) if tokens else SHAPES.get(case.model, (1, 3, 4))
    many = int(sizes.sum())

    def features(count):
        if tokens:
            return rng.integers(0, 5, (count, *shape)).astype(np.int32)
        return rng.normal(size=(count, *shape)).astype(np.float32)

    return Federation(
        features=features(many),
        labels=rng.integers(0, 3, many),
        offsets=np.concatenate([[0], np.cumsum(sizes)]),
        test_features=features(4),
        test_labels=rng.integers(0, 3, 4),
        class_names=("a", "b", "c"),
        name="random",
        vectors=rng.normal(size=(5, 2)).astype(np.float32) if tokens else None,
        user_ids=np.sort(rng.permutation(1000)[:USERS]) + seed % 2 * 2**60,
        instance_ids=rng.permutation(100_000)[:many],
        most_instances=MOST if case.limited else None,
    )


def careless(updates, adversaries):
    """A rule as somebody writes it who thinks of one cohort: a bound taken over all that is handed in."""
    return updates.clamp(max=updates.mean()).mean(1)


def more_careless(contributions):
    """The same as a whole aggregation, which looks at absent members too."""
    most = contributions.updates.abs().amax()
    return contributions.bounded().sum(1) / most.clamp(min=1e-6)


OWN_RULES = {
    "a rule": Rule(name="own", num_adversaries=0, function=careless, least=lambda f: 1),
    "an aggregation": more_careless,
}


@pytest.mark.parametrize("rule", OWN_RULES)
@pytest.mark.parametrize("mechanism", [Partition(groups=4, rounds=2), FedAvg(rounds=2, **DECLARED)])
def test_a_rule_of_ones_own_sees_one_replica_at_a_time(rule, mechanism):
    case = Case(mechanism=mechanism, model="mlp")
    task = replace(task_of(case, honest(case, 0), 0), aggregation=OWN_RULES[rule])
    before = train(task)

    def holds(seed, change):
        other = replace(task, federation=changed(task.federation, change))
        apart = ~drew(task, other)
        assert torch.equal(before.params[apart], train(other).params[apart])

    drive(case, holds, examples=0)


def task_of(case, federation, seed, device="cpu"):
    torch.manual_seed(0)
    if case.model == "module":
        model = from_module(nn.Sequential(nn.Conv2d(1, 3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(18, 3)), 3)
    else:
        model = build(case.model, federation, hidden={"mlp": (5,), "lstm": (3,)}.get(case.model, ()))
    return Task(
        federation=federation,
        model=model,
        mechanism=case.mechanism,
        local=case.local,
        seed=seed,
        device=device,
        aggregation=build_rule(case.rule, num_adversaries=0, cohort=None),
    )


@cache
def clean(name, seed, device="cpu"):
    """The task on honest data, and its replicas."""
    task = task_of(CASES[name], honest(CASES[name], seed), seed, device)
    return task, train(task)


def replicas_of(task):
    return range(task.mechanism.models(task.units.num_users) or len(REPLICAS))


def train(task):
    return train_replicas(task, replicas_of(task), sizes=Sizes(stack=32, block=8, cells=64))


@st.composite
def changes(draw, case):
    """What happens to which unit, and what a hostile unit holds."""
    fixed = isinstance(getattr(case.mechanism, "sampling", None), FixedSize)
    single = case.mechanism.unit is Unit.INSTANCE and draw(st.booleans())
    return {
        "single": single,
        "kind": draw(st.sampled_from(["replace"] if fixed and not single else ["replace", "join", "leave"])),
        "place": draw(st.integers(0, 2**16)),
        "count": draw(st.integers(1, MOST)),
        "value": draw(st.sampled_from(HUGE)),
        "mixed": draw(st.booleans()),
        "seed": draw(st.integers(0, 2**16)),
    }


def hostile_rows(federation, change, count):
    """Features, labels and identities of what an adversary holds."""
    rng = np.random.default_rng(change["seed"])
    shape = (count, *federation.features.shape[1:])
    labels, ids = rng.integers(0, federation.num_classes, count), 200_000 + np.arange(count)
    if federation.vectors is not None:
        return rng.integers(0, 5, shape).astype(np.int32), labels, ids
    values = np.full(shape, change["value"], dtype=np.float32)
    if change["mixed"]:
        values = np.where(rng.random(shape) < 0.5, values, rng.normal(size=shape)).astype(np.float32)
    return values, labels, ids


def changed(federation, change):
    """The federation after a change to one user, or to one instance of one."""
    users = [
        (who, *(array[begin:end] for array in (federation.features, federation.labels, federation.which)))
        for who, begin, end in zip(federation.who, federation.offsets, federation.offsets[1:], strict=False)
    ]
    place, kind = change["place"] % len(users), change["kind"]
    who, *rows = users[place]
    if change["single"]:
        at = change["place"] // len(users) % len(rows[1])
        if (kind == "join" and len(rows[1]) == MOST) or (kind == "leave" and len(rows[1]) == 1):
            kind = "replace"
        new = hostile_rows(federation, change, 0 if kind == "leave" else 1)
        if kind == "replace":
            new = (*new[:2], rows[2][at : at + 1])
        keep = at if kind == "join" else at + 1
        merged = (np.concatenate([old[:at], one, old[keep:]]) for old, one in zip(rows, new, strict=True))
        users[place] = (who, *merged)
    elif kind == "leave":
        users.pop(place)
    elif kind == "join":
        users.insert(place, (5000 + change["seed"], *hostile_rows(federation, change, change["count"])))
    else:
        users[place] = (who, *hostile_rows(federation, change, change["count"]))
    ids, features, labels, which = zip(*users, strict=True)
    return replace(
        federation,
        features=np.concatenate(features),
        labels=np.concatenate(labels),
        offsets=np.cumsum([0, *map(len, labels)]),
        user_ids=np.array(ids),
        instance_ids=np.concatenate(which),
    )


def contents(units):
    """What each unit holds, by its identity."""
    return {
        who: tuple(array[begin:end].tobytes() for array in (units.features, units.labels, units.which))
        for who, begin, end in zip(units.who.tolist(), units.offsets, units.offsets[1:], strict=False)
    }


def drew(task, other):
    """Which replicas draw a unit in which the federations of two tasks differ."""
    before, after = contents(task.units), contents(other.units)
    differ = [who for who in before.keys() | after.keys() if before.get(who) != after.get(who)]
    found = np.zeros(len(replicas_of(task)), dtype=bool)
    for each in (task, other):
        chosen = cohorts_of(task.mechanism, each.units.who, task.seed, replicas_of(task))
        found |= chosen[:, :, np.isin(each.units.who, differ)].any((1, 2))
    by_lot = hasattr(task.mechanism, "batch_probability") and not getattr(task.mechanism, "shuffled", False)
    if by_lot and np.array_equal(task.units.who, other.units.who):  # a member adds noise, at least
        found &= batches_hold(task, other)
    return found


def batches_hold(task, other):
    """Whether any batch of a replica would hold an instance in which the two federations differ."""
    before, after = (contents(each.federation.by_instance()) for each in (task, other))
    differ = [which for which in before.keys() | after.keys() if before.get(which) != after.get(which)]
    draws = np.arange(task.mechanism.rounds * getattr(task.mechanism, "local_steps", 1))
    lots, ids = Lots(task.seed, Purpose.BATCH, REPLICAS), np.array([differ] * len(draws), dtype=np.int64)
    numbers = [lots.draw(draws, np.full(len(draws), replica), ids) for replica in REPLICAS]
    return np.array([(one < task.mechanism.batch_probability).any() for one in numbers])


def differing(name, seed, change, device="cpu"):
    """How many replicas changed that did not draw the unit, and how many did not draw it."""
    task, before = clean(name, seed, device)
    other = replace(task, federation=changed(task.federation, change))
    after = train(other)
    if task.mechanism.apart:
        return differing_by_identity(task, before, other, after)
    touched = drew(task, other)
    same = (before.params.view(torch.int32) == after.params.view(torch.int32)).all(1).numpy()
    same &= (before.scores.view(np.int32) == after.scores.view(np.int32)).all((1, 2))
    return int((~same & ~touched).sum()), int((~touched).sum())


def differing_by_identity(task, before, other, after):
    """The same where every user has a model of its own: whoever is there twice and holds the same."""

    def models(work, found):
        bits = zip(found.params.numpy(), found.scores, strict=True)
        return {
            who: [part.tobytes() for part in row]
            for who, row in zip(work.units.who.tolist(), bits, strict=True)
        }

    held, holds = contents(task.units), contents(other.units)
    were, are = models(task, before), models(other, after)
    apart = [who for who in held.keys() & holds.keys() if held[who] == holds[who]]
    return sum(were[who] != are[who] for who in apart), len(apart)


def every_change(case):
    """What is always tried: each value in the first place, which others may read, and each kind in each."""
    fixed = isinstance(getattr(case.mechanism, "sampling", None), FixedSize)
    for single in (False, True) if case.mechanism.unit is Unit.INSTANCE else (False,):
        kinds = (
            {"replace": np.nan} if fixed and not single else {"replace": np.nan, "join": np.inf, "leave": 0}
        )
        tried = [] if case.model == "lstm" else [("replace", value, 0) for value in HUGE]  # tokens have none
        tried += [(kind, value, place) for kind, value in kinds.items() for place in range(USERS)]
        for turn, (kind, value, place) in enumerate(tried):
            what = {"single": single, "kind": kind, "place": place * (USERS + 1), "seed": turn}
            yield turn % 4, what | {"count": 1 + 3 * turn % MOST, "value": value, "mixed": turn % 2 == 1}


def drive(case, holds, *, examples=EXAMPLES, every=1):
    """Call `holds(seed, change)` with one of `every` so many that are always tried, and with those drawn."""
    for seed, change in list(every_change(case))[::every]:
        holds(seed, change)
    if examples:
        how = settings(max_examples=examples, deadline=None, derandomize=True, database=None)
        how(given(change=changes(case), seed=st.integers(0, 3))(holds))()


def search(name, device, **how):
    apart = []

    def holds(seed, change):
        wrong, untouched = differing(name, seed, change, device)
        apart.append(untouched)
        assert wrong == 0, (seed, change)

    drive(CASES[name], holds, **how)
    assert sum(apart) > len(apart) / 2  # most changes leave somebody untouched: the test sees something


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].model not in SHAPES])
def test_whoever_is_not_drawn_changes_no_bit(name):
    search(name, "cpu")


@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].model in SHAPES])
def test_whoever_is_not_drawn_changes_no_bit_of_a_network(name):
    search(name, "cpu", examples=EXAMPLES // 15, every=5)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("name", CASES)
def test_whoever_is_not_drawn_changes_no_bit_on_a_gpu(name):
    search(name, "cuda", examples=EXAMPLES or 60)
