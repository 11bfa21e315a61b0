"""Which mechanism certifies most for a federation, estimated before training from how well few users do.

Every option is an ensemble whose votes are certified. What its certificate needs is a share of the votes,
which is computed exactly; how many test inputs reach it is estimated from the shares of right votes that
models on so many users get. The ranking is therefore an estimate, never a guarantee.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial

import numpy as np
from numpy.typing import ArrayLike

from fedproof import check
from fedproof.accounting.tradeoff import tradeoff
from fedproof.arrays import Floats
from fedproof.certificates.confidence import Spending, binomial_lower, share
from fedproof.certificates.planning import noise_for_epsilon
from fedproof.mechanisms import (
    Bagging,
    CohortOnce,
    Everyone,
    FixedSize,
    Mechanism,
    OneRound,
    Partition,
    Poisson,
    Releases,
    UserFedAvg,
)
from fedproof.mechanisms.uploads import Anchors
from fedproof.threat import Relation, ThreatModel, Unit

ASSUMPTION = (
    "an estimate, not a guarantee: given an input, models vote right independently, each with the input's "
    "own chance; one rival gets all other votes"
)
SPREAD = (
    "chances differ between inputs as a Beta distribution whose mean is the accuracy given, with correlation "
    "{correlation:g} between two models' answers"
)
NOISE_IS_FREE = "at most: noise costs accuracy, which the accuracies given do not know of"
ONE_ROUND = (
    "one-round: every user's label of an input is taken to be that of anchors near it, one anchor in so many "
    "classes to be near; its noise is counted, and its ε is that of everything published"
)
_ANCHORS = 256  # as many as the configuration has unless it says otherwise
CORRELATION = 0.5  # measured on MNIST: 0.45 for two users of a thousand, 0.60 for five


@dataclass(frozen=True, kw_only=True)
class Known:
    """What is known before training."""

    units: int  # number of users, or of instances where they are the unit
    num_classes: int
    shares: Mapping[int, Floats]  # by units behind a model: the chance of a right vote, for some test inputs

    def __post_init__(self) -> None:
        check.count(units=self.units, num_classes=self.num_classes)
        if not self.shares:
            raise ValueError("shares are empty: say what a model reaches on some number of units")
        for cohort in self.shares:
            check.count(cohort=cohort)
            if cohort > self.units:
                raise ValueError(f"cohort = {cohort} must be at most the number of units = {self.units}")


@dataclass(frozen=True, kw_only=True)
class Question:
    """What is wanted."""

    size: int  # poisoned units to certify
    threat: ThreatModel  # what they are and may do
    replicas: int = 500  # models of an ensemble whose cohorts are drawn
    failure_probability: float = 0.01  # of each certificate whose cohorts are drawn
    epsilon: float | None = None  # the most ε of one model; None asks for no privacy
    delta: float = 1e-5  # at which ε is stated
    rounds: int = 1  # of the mechanisms with noise

    def __post_init__(self) -> None:
        check.count(size=self.size, replicas=self.replicas, rounds=self.rounds)
        check.open_probability(failure_probability=self.failure_probability)
        check.plain(self)


@dataclass(frozen=True, kw_only=True)
class Option:
    """One mechanism for the question."""

    mechanism: Mechanism  # what would be executed
    cohort: int  # users (or instances) behind one model
    models: int  # in the ensemble
    needed: float | None  # share of the votes that certifies; None: no share does
    estimate: float  # expected certified accuracy; for a mechanism with noise, if noise cost no accuracy

    @property
    def noisy(self) -> bool:
        """Whether the estimate is an upper one: noise costs accuracy; of one release that is counted."""
        return self.mechanism.noise_multiplier > 0 and self.mechanism.releases is not Releases.MODEL


def choose(known: Known, question: Question) -> tuple[Option, ...]:
    """All options for the question, the one that is expected to certify most first.

    >>> known = Known(units=1000, num_classes=10, shares={2: spread(0.7), 5: spread(0.85)})
    >>> best = choose(known, Question(size=20, threat=ThreatModel()))[0]
    >>> type(best.mechanism).__name__, best.cohort
    ('Partition', 5)
    """
    options = [_rated(mechanism, cohort, known, question) for mechanism, cohort in _all(known, question)]
    return tuple(sorted(options, key=lambda option: (-option.estimate, option.needed or math.inf)))


def spread(accuracy: float, correlation: float = CORRELATION, points: int = 400) -> Floats:
    """Chances of a right vote over the inputs, whose mean is `accuracy`, as evenly likely points.

    A Beta distribution with a + b = 1 / correlation - 1. With correlation 0 all inputs are alike, with
    correlation 1 every model answers an input as every other does.

    >>> round(float(spread(0.8).mean()), 2)
    0.8
    """
    from scipy.stats import beta  # here: it takes half a second

    if not 0 < accuracy < 1:
        raise ValueError(f"accuracy = {accuracy!r} must be in (0, 1)")
    check.open_probability(correlation=correlation)
    total = 1 / correlation - 1
    middles = (np.arange(points) + 0.5) / points
    return np.asarray(beta.ppf(middles, accuracy * total, (1 - accuracy) * total))


def votes_needed(mechanism: Mechanism, question: Question, models: int, num_classes: int) -> int | None:
    """Fewest votes of `models` that certify `question.size`, if one rival gets all others; None if no number.

    Guarantee: an input with so many votes is certified by method vote (Clopper-Pearson where cohorts are
    drawn). Where the top's share is at least l, the rival's is at most 1 - l, and L(l) > U(1 - l) says that
    L(l) > 1/2.

    >>> votes_needed(Partition(groups=100), Question(size=20, threat=ThreatModel()), 100, 10)
    71
    """
    if mechanism.releases is not Releases.REPLICAS:
        own = mechanism.apart or mechanism.releases is Releases.MODEL  # whoever joins moves nobody's vote
        moved = 1 if own and question.threat.relation is Relation.JOIN else 2
        fewest = (models + moved * question.size + 2) // 2  # n - (models - n) - 1 >= moved * size
        return fewest if fewest <= models else None
    each = share(question.failure_probability, num_classes, Spending.SOUND)
    lowest = tradeoff(mechanism, question.threat, question.size).lower(binomial_lower(models, each))
    enough = np.flatnonzero(lowest > 0.5 + 1e-12)
    return int(enough[0]) if enough.size else None


def expected_certified(shares: ArrayLike, votes: int | None, models: int, noise: float = 0.0) -> float:
    """Expected share of inputs with at least so many right votes, from each input's chance of one.

    `noise` is the standard deviation of the noise on the number of right votes.
    """
    from scipy.stats import binom, norm

    if votes is None:
        return 0.0
    drawn = norm.ppf((np.arange(64) + 0.5) / 64)[:, None] if noise else 0.0
    fewest = np.ceil(votes - noise * drawn)
    return float(np.mean(binom.sf(fewest - 1, models, np.asarray(shares, dtype=np.float64))))


def _rated(mechanism: Mechanism, cohort: int, known: Known, question: Question) -> Option:
    models = mechanism.models(known.units) or question.replicas
    released = mechanism.releases is Releases.MODEL
    voters = known.units if released else models  # of one release all users are
    noise = mechanism.noise_multiplier * math.sqrt((known.num_classes - 1) / 2) if released else 0.0
    votes = votes_needed(mechanism, question, voters, known.num_classes)
    return Option(
        mechanism=mechanism,
        cohort=cohort,
        models=models,
        needed=None if votes is None else votes / voters,
        estimate=expected_certified(known.shares[cohort], votes, voters, noise),
    )


def _all(known: Known, question: Question) -> Iterator[tuple[Mechanism, int]]:
    units, unit = known.units, question.threat.unit
    for cohort in sorted(known.shares):
        if question.epsilon is not None:
            if cohort == 1 and unit is Unit.USER:
                yield _one_round(known.num_classes, question), cohort
            for mechanism in _private(cohort / units, question):
                yield mechanism, cohort
            continue
        pooled = unit is Unit.INSTANCE
        sampling = FixedSize(cohort=cohort, users=units)
        if question.size <= units:
            yield Bagging(rounds=1, sampling=sampling, pooled=pooled, unit=unit), cohort
        if units // cohort >= 2:
            alone = cohort == 1 and unit is Unit.USER  # one user, one vote
            groups = None if alone else units // cohort
            yield Partition(groups=groups, pooled=pooled, unit=unit), cohort


def _one_round(num_classes: int, question: Question) -> OneRound:
    """Votes on anchors. Noise on a lead of even weights on M/C of M anchors has σ √(2 (C - 1))."""
    assert question.epsilon is not None
    noise = noise_for_epsilon(epsilon=question.epsilon, delta=question.delta, sampling=Everyone(), rounds=1)
    upload = Anchors(anchors=_ANCHORS, classes=num_classes)
    return OneRound(upload=upload, noise_multiplier=noise)


def _private(probability: float, question: Question) -> Iterator[CohortOnce | UserFedAvg]:
    """The hybrid, and for users DP-FedAvg, with the least noise for the ε that is asked for."""
    assert question.epsilon is not None
    sampling, rounds, unit = Poisson(probability=probability), question.rounds, question.threat.unit
    noise = partial(noise_for_epsilon, epsilon=question.epsilon, delta=question.delta, sampling=sampling)
    together = noise(rounds=1) * math.sqrt(rounds)
    pooled = unit is Unit.INSTANCE
    yield CohortOnce(rounds=rounds, sampling=sampling, noise_multiplier=together, pooled=pooled, unit=unit)
    if rounds > 1 and unit is Unit.USER:  # for one round the two are the same
        yield UserFedAvg(rounds=rounds, sampling=sampling, noise_multiplier=noise(rounds=rounds))
