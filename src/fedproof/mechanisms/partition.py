"""Disjoint groups, each with a model of its own."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import SOLVER_OPTIONS, Mechanism, Releases, check_drawn_unit
from fedproof.mechanisms.sampling import Groups
from fedproof.threat import Unit


@dataclass(frozen=True, kw_only=True)
class Partition(Mechanism):
    """Users split once into `groups` disjoint groups; replica g trains on group g alone, without noise.

    Which group a user belongs to depends on its identity and the seed, not on anybody's data nor on how many
    users there are. There is no privacy. `pooled` trains on a group's instances as one data set. With `unit`
    instance it is instances that are split, each by its own identity, which is deep partition aggregation.

    Guarantee: k poisoned units touch k models at most, under `join` and under `replace` alike. Proof: a unit
    that joins has an identity of its own, so it enters one group and leaves all others as they were. A unit
    that is replaced keeps its identity, hence its group: what it holds now is in the one model that what it
    held before was in. (Were groups chosen by content, as by a hash of the instance, a replaced unit could
    leave one group and enter another, and `replace` would cost two models for each unit.)
    Assumes: identities are given out once and not used again; no unit has two.

    Reference: Cao, Zhang, Jia, Gong 2022 (FLCert-D), arXiv:2210.00584; Levine, Feizi 2021 (DPA),
    arXiv:2006.14768.
    """

    groups: int
    rounds: int = 1
    pooled: bool = False
    unit: Unit = Unit.USER
    kind: ClassVar[str] = "partition"
    releases: ClassVar[Releases] = Releases.GROUPS
    executor: ClassVar[str] = "fedproof.rounds.members"
    once: ClassVar[bool] = True
    step_options: ClassVar[frozenset[str]] = SOLVER_OPTIONS
    unaccounted: ClassVar[str] = (
        "Partition adds no noise and has no privacy guarantee; its certificate counts votes (method vote)"
    )
    noise_multiplier = 0.0
    queries = ()

    def __post_init__(self) -> None:
        check.count(groups=self.groups, rounds=self.rounds)
        check_drawn_unit(self)
        if self.groups < 2:
            raise ValueError(f"groups = {self.groups} must be at least 2: one model has nobody to outvote it")

    @property
    def sampling(self) -> Groups:
        """Every unit is in one group."""
        return Groups(count=self.groups)

    @property
    def replicas(self) -> int:
        """One model for each group."""
        return self.groups

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the groups."""
        return (
            "every model was trained on its own group alone, and the same group gives the same model again",
            f"which group one {self.unit} belongs to depends on no data; no privacy is claimed",
        )

    def in_words(self) -> tuple[str, ...]:
        """Rounds, groups, that there is no noise."""
        return (*super().in_words(), "each model is trained on its own group alone, and no noise is added")
