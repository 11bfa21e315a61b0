"""Hostile units in the real engine: which models may feel them, and which must stay the same bit for bit.

What a unit holds is its adversary's choice: any numbers, any labels, any number of instances up to the public
limit. Who has drawn a unit is found by training alone: models that differ when the unit holds one harmless
thing or another have drawn it, all others have not. So nothing here depends on how the engine draws.
"""

from dataclasses import dataclass, fields, replace

import numpy as np
import torch
from hypothesis import strategies as st

from fedproof.attacks import units
from fedproof.ensemble import Task, train_replicas
from fedproof.federation import Federation
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    LocalTraining,
    NoisyPartition,
    Partition,
    Poisson,
    UserFedAvg,
)
from fedproof.models import build
from fedproof.threat import Unit

USERS, CLASSES, SHAPE, LIMIT = 12, 3, (5,), 9
NUMBERS = (3e38, -3e38, 1e19, np.nan, np.inf, -np.inf, 1e-45, 1e-40, 0.0, -0.0)


@dataclass(frozen=True)
class Hold:
    """What a hostile user holds.

    Attributes:
        numbers: written over all features, by turns.
        count: number of instances.
        label: of all of them; None: by turns.
    """

    numbers: tuple
    count: int
    label: int | None = None


holds = st.builds(
    Hold,
    numbers=st.lists(st.sampled_from(NUMBERS), min_size=1, max_size=3).map(tuple),
    count=st.sampled_from((1, 2, LIMIT)) | st.integers(1, LIMIT),
    label=st.none() | st.integers(0, CLASSES - 1),
)
"""Strategy for what a hostile unit holds."""


def federation(seed=0, users=USERS):
    """Users with one to six instances, which a linear model can tell apart."""
    rng = np.random.default_rng(seed)
    sizes = rng.integers(1, 7, users)
    offsets = np.concatenate(([0], np.cumsum(sizes))).astype(np.int64)
    centres = 2 * np.eye(CLASSES, SHAPE[0])
    labels, test_labels = rng.integers(0, CLASSES, int(offsets[-1])), rng.integers(0, CLASSES, 16)
    given = {
        "features": centres[labels] + rng.normal(size=(len(labels), *SHAPE)),
        "test_features": centres[test_labels] + rng.normal(size=(16, *SHAPE)),
    }
    known = {field.name for field in fields(Federation)}
    more = {"most_instances": LIMIT} if "most_instances" in known else {}
    return Federation(
        **{name: value.astype(np.float32) for name, value in given.items()},
        labels=labels,
        offsets=offsets,
        test_labels=test_labels,
        class_names=tuple("abc"),
        name="hostile",
        **more,
    )


POISSON = Poisson(probability=0.15)
ONCE = {"rounds": 2, "sampling": POISSON}
BAGGED = {**ONCE, "sampling": Poisson(probability=0.1), "pooled": True, "unit": Unit.INSTANCE}
LAYOUTS = {
    "users": UserFedAvg(rounds=2, noise_multiplier=1.0, sampling=POISSON, population=2 * USERS),
    "once": Bagging(**ONCE),
    "once, noise": CohortOnce(**ONCE, noise_multiplier=1.0, population=2 * USERS),
    "once, pooled": Bagging(**ONCE, pooled=True),
    "once, instances": Bagging(**BAGGED),
    "once, instances, noise": CohortOnce(**BAGGED, noise_multiplier=1.0, population=10 * USERS),
    "groups": Partition(groups=6, rounds=2),
    "groups, pooled": Partition(groups=6, rounds=2, pooled=True),
    "groups of instances": Partition(groups=6, rounds=2, pooled=True, unit=Unit.INSTANCE),
    "groups, noise": NoisyPartition(groups=6, rounds=2, noise_multiplier=1.0, population=2 * USERS),
    "instance steps": InstanceFedSGD(
        rounds=2, noise_multiplier=1.0, sampling=FixedSize(cohort=2, users=USERS), batch_probability=0.3
    ),
    "instance training": InstanceFedAvg(
        rounds=1,
        local_steps=2,
        noise_multiplier=1.0,
        batch_probability=1.0,
        sampling=POISSON,
        population=2 * USERS,
    ),
}


def module(federation):
    """A model that is brought along, without a stacked forward pass."""
    return torch.nn.Sequential(
        torch.nn.Linear(SHAPE[0], 4), torch.nn.Tanh(), torch.nn.Linear(4, federation.num_classes)
    )


def task(mechanism, model="linear", seed=0, data=None):
    data = data or federation()
    name = f"{__name__}:module" if model == "module" else model
    return Task(
        federation=data,
        model=build(name, data),
        mechanism=mechanism,
        local=LocalTraining(epochs=2, batch_size=3, learning_rate=0.5),
        seed=seed,
    )


def by_instance(mechanism):
    """Whether a poisoned unit is one instance."""
    return mechanism.unit is Unit.INSTANCE


def num_replicas(mechanism):
    return mechanism.models(USERS) or 24


# --- what units hold ----------------------------------------------------------------------------------------


def poisoned(data, unit, hold, *, instance):
    """`data` in which one user, or one instance, is hostile."""
    if not instance:
        data = units.resized(data, (unit,), (hold.count,))
        rows = units.rows_of_users(data)[unit]
    else:
        rows = np.array([unit])
    return overwritten(data, rows, hold)


def overwritten(data, rows, hold):
    features, labels = data.features.copy(), data.labels.copy()
    features[rows] = np.resize(np.array(hold.numbers, dtype=np.float32), (len(rows), *SHAPE))
    labels[rows] = (labels[rows] + 1) % CLASSES if hold.label is None else hold.label
    return units.frozen(data, features=features, labels=labels)


def joined(data, hold, *, instance, host=0):
    """`data` and one hostile user more, or one instance more of the user `host`, and where it stands."""
    if instance:
        after, places = units.with_copies(data, data.offsets[host : host + 1])
        return overwritten(after, places, hold), int(places[0])
    after = units.with_newcomers(data, 1, seed=0)
    return poisoned(after, data.num_users, hold, instance=False), data.num_users


HARMLESS = (Hold((0.5, -1.0), 2, 0), Hold((-2.0, 0.25, 1.0), 2, 1))


# --- which models feel it -----------------------------------------------------------------------------------


def trained(one):
    """Parameters `(replicas, dim)` of the real engine."""
    return train_replicas(one, range(num_replicas(one.mechanism))).params.numpy()


def differing(one, other):
    """Which replicas are not the same bit for bit."""
    return (one.view(np.uint32) != other.view(np.uint32)).any(axis=1)


class Watched:
    """A task with one unit that is to be hostile: its models as they are, and which have drawn the unit."""

    def __init__(self, one, unit, train=trained):
        self.task, self.unit, self.train = one, unit, train
        self.clean = train(one)
        self.drawn = differing(*(self.attacked(hold) for hold in HARMLESS))

    def attacked(self, hold):
        data = poisoned(self.task.federation, self.unit, hold, instance=by_instance(self.task.mechanism))
        return self.train(replace(self.task, federation=data))

    def disturbed(self, hold):
        """Replicas that have not drawn the unit, and feel what it holds: there should be none."""
        return np.flatnonzero(differing(self.clean, self.attacked(hold)) & ~self.drawn).tolist()


def disturbed_by_joining(one, hold, train=trained, host=0):
    """Replicas that feel that somebody has joined, although they have not drawn it: there should be none."""
    after, unit = joined(one.federation, hold, instance=by_instance(one.mechanism), host=host)
    newcomer = Watched(replace(one, federation=after), unit, train)
    return np.flatnonzero(differing(train(one), newcomer.clean) & ~newcomer.drawn).tolist()
