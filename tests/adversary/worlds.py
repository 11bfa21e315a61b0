"""Explicit adversaries against each mechanism, in federations simple enough that all laws are known.

A world is a mechanism, a relation, a number k of poisoned units, and what some adversary does with them: the
pair of laws of all that is observed. Units that behave alike form a group; drawn numbers of each group decide
the mean of a release. The crowd behaves the same on both sides, but it may hide the adversaries or, at
instance level, give away whose turn it is.
"""

import math
from dataclasses import dataclass

import numpy as np

from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FixedSize,
    InstanceFedAvg,
    InstanceFedSGD,
    Mechanism,
    PerLayer,
    Poisson,
    Quantile,
    Queries,
    Query,
    UserFedAvg,
)
from fedproof.threat import Relation, ThreatModel, Unit
from tests.adversary.laws import (
    NOTHING,
    Group,
    Pair,
    adaptive,
    composed,
    instances_of,
    openly,
    release,
    selected,
)

_MOST_CASES = 4000  # numbers drawn of all groups that are enumerated
_SEEN = 2 * 240 + 1  # scores that an adaptive adversary tells apart


@dataclass(frozen=True)
class World:
    """One adversary: what is claimed about it, and the laws it brings about."""

    mechanism: Mechanism
    threat: ThreatModel
    size: int
    pair: Pair
    says: str
    one_way: bool = False  # only the first law is that of a federation the mechanism is made for

    @property
    def sides(self):
        return (self.pair,) if self.one_way else (self.pair, self.pair.swapped())

    def __str__(self):
        return f"{self.mechanism} {self.threat.relation} k={self.size}: {self.says}"


@dataclass(frozen=True)
class Reach:
    """How far a unit may pull: `length` in noise deviations, and a bit of fixed size beside it."""

    length: float
    bit: float = 0.0


# --- parameters ---------------------------------------------------------------------------------------------


def some_size(rng, most=40):
    """Mostly few, sometimes many."""
    return int(min(most, rng.geometric(rng.choice([0.9, 0.3, 0.08]))))


def some_rounds(rng):
    return some_size(rng, 12) if rng.random() < 0.95 else int(log_uniform(rng, 12, 300))


def some_adversaries(rng):
    return some_size(rng) if rng.random() < 0.9 else int(log_uniform(rng, 40, 2000))


def log_uniform(rng, low, high):
    return float(np.exp(rng.uniform(np.log(low), np.log(high))))


def some_noise(rng, size, rounds, rate):
    """A noise multiplier at which something can be told, and not everything."""
    telling = 2 * max(size * rate, math.sqrt(size * rate), 0.5) * math.sqrt(rounds)
    return log_uniform(rng, 0.15, 1.2) * telling


def some_chance(rng):
    return float(rng.choice([log_uniform(rng, 0.01, 1.0), rng.uniform(0, 1), 1.0], p=[0.6, 0.35, 0.05]))


# --- what units hand in -------------------------------------------------------------------------------------


def some_vector(rng, reach, plane):
    """Something a unit may add, of the full length more often than not."""
    length = reach.length * float(
        rng.choice([1.0, rng.choice([0.0, 0.25, 0.5]), rng.uniform()], p=[0.7, 0.2, 0.1])
    )
    if reach.bit:
        return (float(rng.choice([-1, 1])) * length, float(rng.choice([-1, 1])) * reach.bit)
    if not plane:
        return (float(rng.choice([-1, 1])) * length,)
    angle = rng.choice([rng.uniform(0, 2 * np.pi), np.pi / 2 * rng.integers(4)])
    return (length * float(np.cos(angle)), length * float(np.sin(angle)))


def opposite(vector):
    return tuple(-value for value in vector)


def some_groups(rng, size, crowd, reach, relation):
    """`size` poisoned units in one or two groups, and `crowd` honest ones beside them."""
    plane = bool(reach.bit) or rng.random() < 0.35
    parts = [size]
    if 1 < size <= 40 and rng.random() < 0.4:
        first = int(rng.integers(1, size))
        parts = [first, size - first]
    groups = []
    for part in parts:
        pull = some_vector(rng, reach, plane)
        before = (0.0,) * len(pull)
        if relation is Relation.REPLACE:
            before = opposite(pull) if rng.random() < 0.7 else some_vector(rng, reach, plane)
        groups.append(Group(part, before, pull))
    cases = math.prod(part + 1 for part in parts)
    # A third kind of unit only where all cases can still be counted.
    while crowd:
        now = (
            crowd
            if rng.random() < 0.6 or cases * (crowd + 1) > _MOST_CASES
            else int(rng.integers(1, crowd + 1))
        )
        same = some_vector(rng, reach, plane)
        if rng.random() < 0.3:
            same = tuple(0.5 * value for value in groups[0].poisoned)
        groups.append(Group(now, same, same))
        cases, crowd = cases * (now + 1), crowd - now
    return groups


def in_rounds(rng, make, rounds):
    """`rounds` releases: the same each time, by turns, or chosen by what was seen so far."""
    if rounds == 1 or rng.random() < 0.5:
        return composed([make()], [rounds]), "the same in every round"
    releases = [make() for _ in range(int(rng.integers(2, 4)))]
    if rng.random() < 0.5:
        cuts = np.sort(rng.integers(0, rounds + 1, len(releases) - 1))
        counts = np.diff(np.concatenate(([0], cuts, [rounds]))).tolist()
        used = [(one, count) for one, count in zip(releases, counts, strict=True) if count]
        return composed([one for one, _ in used], [count for _, count in used]), f"by turns {counts}"
    steps = np.sort(rng.normal(0, 60, (rounds, len(releases) - 1)), axis=1)
    seen = np.arange(_SEEN) - _SEEN // 2
    choices = (seen[None, :, None] > steps[:, None, :]).sum(axis=2)
    return adaptive(releases, rounds, rng.permutation(len(releases))[choices]), "by what was seen so far"


# --- mechanisms ---------------------------------------------------------------------------------------------


def sampled(rng, size, *, fixed):
    """A sampling, and how large the crowd is."""
    crowd = int(rng.choice([0, rng.integers(0, 5), rng.integers(0, 60)]))
    if not fixed:
        return Poisson(probability=some_chance(rng)), crowd if size <= 40 else 0
    crowd = crowd if rng.random() < 0.7 else int(rng.integers(0, 400))
    return some_cohort(rng, size + crowd), crowd


def some_cohort(rng, users):
    cohort = int(rng.integers(1, users + 1)) if rng.random() < 0.5 else some_size(rng, users)
    return FixedSize(cohort=cohort, users=users)


def relation_of(rng, *, fixed=False):
    return Relation.REPLACE if fixed or rng.random() < 0.5 else Relation.JOIN


def user_fedavg(rng, *, fixed=False, everyone=False, clipping=None):
    """User level: Poisson, fixed size or everybody; flat, per layer, or with a noised quantile."""
    relation, rounds, size = relation_of(rng, fixed=fixed), some_rounds(rng), some_adversaries(rng)
    sampling, crowd = sampled(rng, size, fixed=fixed)
    if everyone:
        sampling, crowd = Everyone(), min(crowd, 4)
    rate = sampling.probability
    noise = some_noise(rng, size, rounds, rate)
    given, reach = {}, Reach(1 / noise)
    if clipping == "per-layer":
        layers = int(rng.integers(2, 9))
        noise *= math.sqrt(layers)
        given, reach = {"clipping": PerLayer(num_layers=layers)}, Reach(math.sqrt(layers) / noise)
    if clipping == "quantile":
        std = noise * log_uniform(rng, 0.1, 10)
        given, reach = {"clipping": Quantile(count_noise_std=std)}, Reach(1 / noise, 0.5 / std)
    mechanism = UserFedAvg(rounds=rounds, noise_multiplier=noise, sampling=sampling, **given)
    threat = ThreatModel(relation=relation)

    def world():
        pair, how = in_rounds(
            rng, lambda: release(sampling, some_groups(rng, size, crowd, reach, relation)), rounds
        )
        return World(mechanism, threat, size, pair, f"{crowd} honest users, {how}")

    return world


def cohort_once(rng, *, fixed=False):
    """The hybrid: everybody drawn is in all rounds, so a trajectory is a vector of √rounds lengths."""
    relation, rounds, size = relation_of(rng, fixed=fixed), some_rounds(rng), some_adversaries(rng)
    sampling, crowd = sampled(rng, size, fixed=fixed)
    noise = some_noise(rng, size, rounds, sampling.probability)
    unit = Unit(rng.choice(list(Unit)))
    mechanism = CohortOnce(
        rounds=rounds,
        noise_multiplier=noise,
        sampling=sampling,
        unit=unit,
        pooled=unit is Unit.INSTANCE,
    )
    reach = Reach(math.sqrt(rounds) / noise)
    threat = ThreatModel(unit=unit, relation=relation)

    def world():
        pair = release(sampling, some_groups(rng, size, crowd, reach, relation))
        return World(mechanism, threat, size, pair, f"{crowd} honest units")

    return world


def sampling_alone(rng, *, fixed=False):
    """Drawn once, trained on in any way: what happens with an adversary is the adversary's choice."""
    relation, size = relation_of(rng), some_adversaries(rng)
    sampling, crowd = sampled(rng, size, fixed=fixed)
    unit = Unit(rng.choice(list(Unit)))
    mechanism = Bagging(rounds=1, sampling=sampling, unit=unit, pooled=unit is Unit.INSTANCE)
    threat = ThreatModel(unit=unit, relation=relation)

    def world():
        outcomes = int(rng.integers(2, 30))
        honest, before, after = rng.dirichlet(np.full(outcomes, log_uniform(rng, 0.05, 2)), 3)
        if rng.random() < 0.5:  # one event that holds where an adversary was, and one that does not
            before, after = np.eye(outcomes)[rng.choice(outcomes, 2, replace=False)]
        among = none_drawn(sampling, size)
        if relation is Relation.REPLACE:
            pair = Pair(among * honest + (1 - among) * before, among * honest + (1 - among) * after)
        elif rng.random() < 0.5:
            joined = among
            if isinstance(sampling, FixedSize):
                joined = none_drawn(FixedSize(cohort=sampling.cohort, users=sampling.users + size), size)
            pair = Pair(honest, joined * honest + (1 - joined) * after)
        else:  # the adversaries are among those trained on, and then they are gone
            pair = Pair(among * honest + (1 - among) * before, honest)
        # Who joins a cohort of fixed size makes it one of N + k: a mechanism of its own.
        one_way = relation is Relation.JOIN and isinstance(sampling, FixedSize)
        return World(mechanism, threat, size, pair, f"{crowd} honest units, {outcomes} outcomes", one_way)

    return world


def none_drawn(sampling, size):
    if isinstance(sampling, Poisson):
        return (1 - sampling.probability) ** size
    return math.comb(sampling.users - size, sampling.cohort) / math.comb(sampling.users, sampling.cohort)


def allocations(rng, size, users):
    """`size` instances dealt out: `(number of users, instances each)`, a few kinds at most."""
    users = max(1, users)
    match int(rng.integers(4)):
        case 0:
            return [(1, size)]
        case 1:
            return [(size, 1)] if size <= users else [(1, size - users + 1), (users - 1, 1)]
        case 2:
            holders = int(rng.integers(1, min(size, users) + 1))
            each, more = divmod(size, holders)
            return [(holders - more, each), (more, each + 1)]
    first = int(rng.integers(0, min(size, users)))
    return [(first, 1), (1, size - first)]


def instance_fedsgd(rng):
    """Users drawn first, then their instances. Who is drawn is known: a large crowd in other directions."""
    relation, rounds, size = relation_of(rng), some_size(rng, 12), some_size(rng, 60)
    users = int(rng.choice([rng.integers(1, 8), rng.integers(1, 120)]))
    sampling, chance = some_cohort(rng, users), some_chance(rng)
    total = some_noise(rng, size, rounds, chance * sampling.probability)
    mechanism = InstanceFedSGD(
        rounds=rounds,
        noise_multiplier=total / math.sqrt(sampling.cohort),
        sampling=sampling,
        batch_probability=chance,
    )
    threat = ThreatModel(unit=Unit.INSTANCE, relation=relation)

    def world():
        plans = [allocations(rng, size, users) for _ in range(2)]
        made = []

        def make():
            plan = plans[len(made) % len(plans)]
            made.append(plan)
            return selected(mechanism.sampling, plan, chance, 1 / total, relation)

        pair, how = in_rounds(rng, make, rounds)
        return World(mechanism, threat, size, pair, f"instances {plans}, {how}")

    return world


def instance_fedavg(rng):
    """Noise inside every user: poisoned instances of several users are seen side by side."""
    relation, rounds, size = relation_of(rng), some_size(rng, 4), some_size(rng, 30)
    steps, users, chance = some_size(rng, 10), int(rng.integers(1, 30)), some_chance(rng)
    noise = some_noise(rng, size, rounds * steps, chance)
    taking_part = [Everyone(), Poisson(probability=some_chance(rng)), FixedSize(cohort=1, users=users)]
    sampling = taking_part[rng.integers(3)]
    mechanism = InstanceFedAvg(
        rounds=rounds,
        local_steps=steps,
        noise_multiplier=noise,
        batch_probability=chance,
        sampling=sampling,
    )
    threat = ThreatModel(unit=Unit.INSTANCE, relation=relation)

    def world():
        plan = [(holders, each) for holders, each in allocations(rng, size, users) if holders]
        pairs = [instances_of(each, chance, 1 / noise, relation) for _, each in plan]
        if isinstance(sampling, Everyone):
            pair = composed(pairs, [holders * rounds * steps for holders, _ in plan])
        else:  # it is known who took part; users drawn alone, which no joint draw tells more about
            laws = [composed([one], [steps]) for one in pairs]
            turns = [
                openly([(sampling.probability, law), (1 - sampling.probability, NOTHING)]) for law in laws
            ]
            if isinstance(sampling, FixedSize):  # one user in each round
                holders = sum(number for number, _ in plan)
                cases = [(number / users, law) for (number, _), law in zip(plan, laws, strict=True)]
                turns, plan = [openly([*cases, (1 - holders / users, NOTHING)])], [(1, size)]
            pair = composed(turns, [holders * rounds for holders, _ in plan])
        return World(mechanism, threat, size, pair, f"instances {plan}")

    return world


def queries(rng):
    """Another library's event: several kinds of queries, all on the same units."""
    relation, size = relation_of(rng), some_size(rng, 12)
    parts = []
    for _ in range(int(rng.integers(1, 4))):
        sampling = Poisson(probability=some_chance(rng)) if rng.random() < 0.8 else Everyone()
        count = some_size(rng, 8)
        noise = 1.5 * some_noise(rng, size, count, sampling.probability)
        parts.append(Query(noise_multiplier=noise, sampling=sampling, count=count))
    mechanism = Queries(queries=tuple(parts))
    threat = ThreatModel(relation=relation)

    def world():
        pairs = [
            release(part.sampling, some_groups(rng, size, 0, Reach(1 / part.noise_multiplier), relation))
            for part in parts
        ]
        pair = composed(pairs, [part.count for part in parts])
        return World(mechanism, threat, size, pair, "all queries")

    return world


KINDS = {
    "user poisson": user_fedavg,
    "user fixed": lambda rng: user_fedavg(rng, fixed=True),
    "user everyone": lambda rng: user_fedavg(rng, everyone=True),
    "user per layer": lambda rng: user_fedavg(rng, clipping="per-layer"),
    "user per layer fixed": lambda rng: user_fedavg(rng, fixed=True, clipping="per-layer"),
    "user quantile": lambda rng: user_fedavg(rng, clipping="quantile"),
    "once poisson": cohort_once,
    "once fixed": lambda rng: cohort_once(rng, fixed=True),
    "sampling alone poisson": sampling_alone,
    "sampling alone fixed": lambda rng: sampling_alone(rng, fixed=True),
    "instance fedsgd": instance_fedsgd,
    "instance fedavg": instance_fedavg,
    "queries": queries,
}
