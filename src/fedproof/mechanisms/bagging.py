"""Units drawn once, then trained on in any way, without noise."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import SOLVER_OPTIONS, Mechanism, check_drawn_unit, check_population
from fedproof.mechanisms.query import Query
from fedproof.mechanisms.sampling import FixedSize, Poisson
from fedproof.threat import Unit


@dataclass(frozen=True, kw_only=True)
class Bagging(Mechanism):
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
    executor: ClassVar[str] = "fedproof.rounds.members"
    once: ClassVar[bool] = True
    step_options: ClassVar[frozenset[str]] = SOLVER_OPTIONS
    unaccounted: ClassVar[str] = (
        "Bagging has no privacy guarantee, only one against poisoning: use CohortOnce with a "
        "noise_multiplier for both"
    )
    noise_multiplier = 0.0

    def __post_init__(self) -> None:
        check.count(rounds=self.rounds)
        check.not_negative_count(adversaries=self.adversaries)
        check_drawn_unit(self)
        check_population(self)
        check_drawn(self.sampling)

    @property
    def queries(self) -> tuple[Query, ...]:
        """One release without noise: whoever is drawn is seen."""
        return (Query(noise_multiplier=0.0, sampling=self.sampling, count=1),)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of who takes part."""
        drawn, others = (
            ("cohort was", "nobody else took part")
            if self.unit is Unit.USER
            else ("instances were", "no other was trained on")
        )
        return (
            super().assumptions[0],
            f"each replica's {drawn} drawn at random and {others}; no privacy is claimed",
        )

    def in_words(self) -> tuple[str, ...]:
        """Rounds, the cohort, that there is no noise."""
        return (*super().in_words(), "only who was drawn is trained on, and no noise is added")


def check_drawn(sampling: object) -> None:
    """Raise ValueError unless a cohort is drawn at all."""
    if not isinstance(sampling, Poisson | FixedSize):
        raise ValueError(
            f"sampling = {sampling!r} must be Poisson or FixedSize: drawing everyone protects nobody"
        )
