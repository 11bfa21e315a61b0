"""A training that others described."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import DIVIDED, Mechanism, Query, counted, noise_in_words
from fedproof.statements import Statement
from fedproof.threat import Relation, Unit


@dataclass(frozen=True, kw_only=True)
class Queries(Mechanism):
    """A mechanism of which only the Gaussian queries are known, as read from another library's event.

    `doubts` say why these queries do not cover what was executed.
    """

    queries: tuple[Query, ...]
    unit: Unit = Unit.USER
    doubts: tuple[Statement, ...] = ()
    kind: ClassVar[str] = "queries"

    def __post_init__(self) -> None:
        for query in self.queries:
            check.positive(noise_multiplier=query.noise_multiplier)

    def unmet(self, relation: Relation) -> tuple[Statement, ...]:
        """As whoever described the queries says."""
        return self.doubts

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        executed, divided = super().assumptions
        return executed, Statement.of("noise-multiplier", unit=self.unit), divided

    def in_words(self) -> tuple[str, ...]:
        told = [
            f"{counted(query.count, 'release')} of a sum to which one {self.unit} adds a vector of norm S or "
            f"less, in each of which {query.sampling.in_words(self.unit)} and "
            f"{noise_in_words(query.noise_multiplier)} is added to the SUM"
            for query in self.queries
        ]
        return (*told, DIVIDED)
