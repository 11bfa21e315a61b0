"""Units drawn once: then trained on in any way, without noise, or with noise in every round."""

import math
from dataclasses import dataclass
from typing import ClassVar

from fedproof.mechanisms.contract import (
    SOLVER_OPTIONS,
    Members,
    Query,
    check_drawn_unit,
    check_pooled_noise,
    noisy_sum_in_words,
    unmet_by_rule,
)
from fedproof.mechanisms.sampling import FixedSize, Poisson
from fedproof.statements import Statement
from fedproof.threat import Relation, Unit


@dataclass(frozen=True, kw_only=True)
class Bagging(Members):
    """A cohort drawn once, then `rounds` rounds of training in which exactly its members take part.

    Nothing is clipped and there is no privacy; the model is robust because adversaries matter only when they
    are drawn, whatever the server's rule does with what they hand in. `pooled` trains on the instances of all
    members as one data set, each step being a round of FedSGD among them. With `unit` instance it is
    instances that are drawn, each by itself and whoever holds it; `sampling` then counts instances.

    Reference: theory.md, section 3, "Certificates from sampling alone"; Jia, Cao, Gong 2021 (bagging),
    arXiv:2008.04495; Cao, Jia, Gong 2021 (Ensemble-FL), arXiv:2102.01854.

    >>> Bagging(rounds=4, sampling=FixedSize(cohort=10, users=1000)).queries[0].noise_multiplier
    0.0
    """

    rounds: int
    sampling: Poisson | FixedSize
    pooled: bool = False
    rule: str = "mean"
    adversaries: int = 0
    unit: Unit = Unit.USER
    population: int | None = None
    kind: ClassVar[str] = "bagging"
    divides: ClassVar[bool] = False
    step_options: ClassVar[frozenset[str]] = SOLVER_OPTIONS
    unaccounted: ClassVar[str] = (
        "Bagging has no privacy guarantee, only one against poisoning: use CohortOnce with a "
        "noise_multiplier for both"
    )
    noise_multiplier = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_drawn_unit(self)
        check_drawn(self.sampling)

    @property
    def queries(self) -> tuple[Query, ...]:
        """One release without noise: whoever is drawn is seen."""
        return (Query(noise_multiplier=0.0, sampling=self.sampling, count=1),)

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        alone = "cohort-alone" if self.unit is Unit.USER else "instances-alone"
        return super().assumptions[0], Statement.of(alone)

    def in_words(self) -> tuple[str, ...]:
        return (*super().in_words(), "only who was drawn is trained on, and no noise is added")


def check_drawn(sampling: object) -> None:
    """Raise ValueError unless a cohort is drawn at all."""
    if not isinstance(sampling, Poisson | FixedSize):
        raise ValueError(
            f"sampling = {sampling!r} must be Poisson or FixedSize: drawing everyone protects nobody"
        )


@dataclass(frozen=True, kw_only=True)
class CohortOnce(Members):
    """A cohort drawn once, then `rounds` rounds of its clipped, noised sums: all on one and the same sample.

    Users' updates are summed as in `UserFedAvg`. With `unit` instance it is instances that are drawn, each by
    itself and whoever holds it (`pooled`), and `sampling` counts instances. A round then is one step of SGD
    on all drawn instances: the sum of their gradients, each clipped to `clip_norm`, noised and divided by the
    expected cohort. `population` is the declared number of units, which that divisor is made from.

    Guarantee: given the sample, `rounds` Gaussian queries compose to one with √rounds times the shift, so an
    observer sees one query of noise multiplier σ/√rounds on units sampled once. It holds for users and
    instances alike, because it asks three things of a unit alone: whether it is drawn does not depend on the
    others' data; if drawn it adds a vector of norm `clip_norm` or less to every sum, so j units that joined
    move a sum by j clip norms and j that were replaced by 2j; nothing else in a round, the divisor least of
    all, depends on the sample.
    Reference: theory.md, section 3, "Certificates from sampling alone, and the hybrid".

    Without noise this is `Bagging`.

    >>> once = CohortOnce(rounds=4, noise_multiplier=3.0, sampling=FixedSize(cohort=10, users=1000))
    >>> once.queries[0].noise_multiplier, once.queries[0].count
    (1.5, 1)
    """

    rounds: int
    noise_multiplier: float
    sampling: Poisson | FixedSize
    clip_norm: float = 1.0
    pooled: bool = False
    rule: str = "mean"
    adversaries: int = 0
    unit: Unit = Unit.USER
    population: int | None = None
    kind: ClassVar[str] = "cohort-once"

    def __post_init__(self) -> None:
        super().__post_init__()
        check_drawn_unit(self)
        check_drawn(self.sampling)
        check_pooled_noise(self)

    @property
    def queries(self) -> tuple[Query, ...]:
        """What an observer of the whole training sees."""
        together = self.noise_multiplier / math.sqrt(self.rounds)
        return (Query(noise_multiplier=together, sampling=self.sampling, count=1),)

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """A rule other than the mean may be used."""
        return unmet_by_rule(self.rule)

    def in_words(self) -> tuple[str, ...]:
        return (*super().in_words(), *noisy_sum_in_words(self))
