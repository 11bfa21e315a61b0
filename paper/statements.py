"""A conclusion of the paper as a statement that is computed from rows, true or not."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

_Item = TypeVar("_Item")

_NEARLY_ALL, _MOST = 0.95, 0.75  # of the pairs: costs are Monte-Carlo means


@dataclass(frozen=True, kw_only=True)
class Statement:
    """One conclusion: what is claimed, whether the rows bear it out, and the numbers it rests on.

    Attributes:
        claim: in the words of the paper where they are short.
        holds: None: open, because what is compared differs by less than it varies, was measured of one
            ensemble alone, or is so in most pairs and not in nearly all.
        evidence: numbers.
        beyond: names the models of a claim that is ours and not the paper's.
        own: whether it is about our bounds, or how far we agree, and no conclusion of the paper's.
        agreement: whether it is about how far we agree.
        follows: whether it follows from a formula, whatever is trained.
        note: what a reader of the verdict alone should know.
        untested: why our rows can say nothing about it, whatever they say; empty: they can.
    """

    claim: str
    holds: bool | None
    evidence: str
    beyond: str = ""
    own: bool = False
    agreement: bool = False
    follows: bool = False
    note: str = ""
    untested: str = ""

    @property
    def whose(self) -> str:
        """`paper` or `ours`."""
        return "ours" if self.own or self.beyond else "paper"

    @property
    def verdict(self) -> str:
        """`yes`, `no`, `open` or `not tested`."""
        return "not tested" if self.untested else {True: "yes", False: "no", None: "open"}[self.holds]


def counted(found: Iterable[_Item], holds: Callable[[_Item], bool]) -> tuple[int, int]:
    """How many of the items do what is claimed, and how many there are."""
    said = [holds(one) for one in found]
    return sum(said), len(said)


def nearly_all(count: tuple[int, int]) -> bool:
    """Whether a claim about all of them may be said to hold."""
    return count[1] > 0 and count[0] >= _NEARLY_ALL * count[1]


def judged(counts: Sequence[tuple[int, int]]) -> bool | None:
    """Whether a claim holds in nearly all of each; open where it does in most.

    >>> judged([(19, 20), (20, 20)]), judged([(16, 20), (20, 20)]), judged([(14, 20), (20, 20)])
    (True, None, False)
    """
    if all(map(nearly_all, counts)):
        return True
    return None if all(held >= _MOST * total for held, total in counts) else False


def at(values: Sequence[float], size: int) -> float:
    """The value of a curve that ends where it is zero."""
    return values[size] if size < len(values) else 0.0
