"""Who may poison what: the privacy unit and what the adversary may do with it."""

from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar


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


def as_unit(value: str) -> Unit:
    """The unit of that name; ValueError says which there are.

    >>> as_unit("instance")
    <Unit.INSTANCE: 'instance'>
    """
    if value not in list(Unit):
        raise ValueError(f"unit = {value!r} must be one of {', '.join(Unit)}")
    return Unit(value)


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
        for name, kind in (("unit", Unit), ("relation", Relation)):
            value = getattr(self, name)
            if value not in list(kind):
                raise ValueError(f"{name} = {value!r} must be one of {', '.join(kind)}")
            object.__setattr__(self, name, kind(value))  # plain strings are welcome
