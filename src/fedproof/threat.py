"""Who may poison what: the privacy unit and what the adversary may do with it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from fedproof import check


class Unit(StrEnum):
    """What one poisoned unit is: all data of one user, or one labelled instance."""

    USER = "user"
    INSTANCE = "instance"


class Relation(StrEnum):
    """What the adversary does with k units.

    JOIN: k adversarial units are added to an honest federation (or taken out of one that contains them).
    REPLACE: k honest units are corrupted; the federation keeps its size.
    """

    JOIN = "join"
    REPLACE = "replace"


def changed_in_words(relation: str) -> str:
    """What happens to the one unit that an ε for this relation is stated for.

    >>> changed_in_words(Relation.JOIN), changed_in_words("replace")
    ('added or removed', 'replaced')
    """
    return "added or removed" if relation == Relation.JOIN else "replaced"


def as_unit(value: str) -> Unit:
    """The unit of that name; ValueError says which there are."""
    return check.member(Unit, unit=value)


@dataclass(frozen=True, kw_only=True)
class ThreatModel:
    """The adversary of a certificate.

    >>> ThreatModel(unit="user", relation="replace")
    ThreatModel(unit=<Unit.USER: 'user'>, relation=<Relation.REPLACE: 'replace'>)
    """

    unit: Unit = Unit.USER
    relation: Relation = Relation.REPLACE
    kind: ClassVar[str] = "threat"

    def __post_init__(self) -> None:
        # Plain strings are welcome.
        object.__setattr__(self, "unit", as_unit(self.unit))
        object.__setattr__(self, "relation", check.member(Relation, relation=self.relation))
