"""A training that others described."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.caveats import Caveat
from fedproof.mechanisms.contract import DIVIDED, Mechanism, Query, counted, noise_in_words
from fedproof.threat import Relation, Unit


@dataclass(frozen=True, kw_only=True)
class Queries(Mechanism):
    """A mechanism of which only the Gaussian queries are known, as read from another library's event.

    `reasons` say why these queries do not cover what was executed.
    """

    queries: tuple[Query, ...]
    unit: Unit = Unit.USER
    reasons: tuple[str, ...] = ()
    kind: ClassVar[str] = "queries"

    def __post_init__(self) -> None:
        for query in self.queries:
            check.positive(noise_multiplier=query.noise_multiplier)

    def caveats(self, relation: Relation) -> tuple[Caveat, ...]:
        """As whoever described the queries says."""
        return tuple(Caveat(code="stated", sentence=sentence) for sentence in self.reasons)

    @property
    def assumptions(self) -> tuple[str, ...]:
        executed, divided = super().assumptions
        noise = (
            "a noise multiplier is the noise's standard deviation over the largest norm of what one "
            f"{self.unit} adds to a sum"
        )
        return executed, noise, divided

    def in_words(self) -> tuple[str, ...]:
        told = [
            f"{counted(query.count, 'release')} of a sum to which one {self.unit} adds a vector of norm S or "
            f"less, in each of which {query.sampling.in_words(self.unit)} and "
            f"{noise_in_words(query.noise_multiplier)} is added to the SUM"
            for query in self.queries
        ]
        return (*told, DIVIDED)
