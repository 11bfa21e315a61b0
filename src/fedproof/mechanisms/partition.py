"""Disjoint groups, each with a model of its own."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import SOLVER_OPTIONS, Mechanism, Releases, check_drawn_unit
from fedproof.mechanisms.sampling import Groups
from fedproof.threat import Unit

_OWN = "is its own: no user has two identities, and whoever takes no part has no vote"


@dataclass(frozen=True, kw_only=True)
class Partition(Mechanism):
    """Users split once into `groups` disjoint groups; replica g trains on group g alone, without noise.

    Which group a user belongs to depends on its identity and the seed, not on anybody's data nor on how many
    users there are. Without `groups` every user is a group of its own: one user, one vote, and as many models
    as users, each known by the identity of its user. There is no privacy. `pooled` trains on a group's
    instances as one data set. With `unit` instance it is instances that are split, each by its own identity,
    which is deep partition aggregation.

    Guarantee: k poisoned units touch k models at most, under `join` and under `replace` alike. Proof: a unit
    that joins has an identity of its own, so it enters one group and leaves all others as they were. A unit
    that is replaced keeps its identity, hence its group: what it holds now is in the one model that what it
    held before was in. (Were groups chosen by content, as by a hash of the instance, a replaced unit could
    leave one group and enter another, and `replace` would cost two models for each unit.) Where every user is
    a group of its own, a user that joins adds a model, one that leaves takes its own away, and all others
    stay as they are.
    Assumes: identities are given out once and not used again; no unit has two.

    Reference: Cao, Zhang, Jia, Gong 2022 (FLCert-D), arXiv:2210.00584; Levine, Feizi 2021 (DPA),
    arXiv:2006.14768.
    """

    groups: int | None = None
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
        check.count(rounds=self.rounds)
        check_drawn_unit(self)
        check_groups(self.groups)
        if self.groups is None and self.unit is Unit.INSTANCE:
            raise ValueError("groups = None must be a number for unit = 'instance': one instance is no data")

    @property
    def sampling(self) -> Groups:
        """Every unit is in one group."""
        return Groups(count=self.groups)

    def models(self, num_units: int) -> int:
        """One for each group."""
        return num_units if self.groups is None else self.groups

    @property
    def apart(self) -> bool:
        """Whether nobody names a number of groups."""
        return self.groups is None

    @property
    def shares_first_round(self) -> bool:
        """A model of one user alone is trained alone."""
        return not self.pooled and not self.apart

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the groups."""
        whose = "depends on no data" if self.groups else _OWN
        return (
            "every model was trained on its own group alone, and the same group gives the same model again",
            f"which group one {self.unit} belongs to {whose}; no privacy is claimed",
        )

    def in_words(self) -> tuple[str, ...]:
        """Rounds, groups, that there is no noise."""
        return (*super().in_words(), "each model is trained on its own group alone, and no noise is added")


def check_groups(groups: int | None) -> None:
    """Raise ValueError unless several groups are asked for, or none."""
    if groups is None:
        return
    check.count(groups=groups)
    if groups < 2:
        raise ValueError(f"groups = {groups} must be at least 2: one model has nobody to outvote it")
