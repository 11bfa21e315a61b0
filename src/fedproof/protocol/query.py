"""What an observer sees."""

from dataclasses import dataclass

from fedproof import check
from fedproof.protocol.sampling import Sampling


@dataclass(frozen=True, kw_only=True)
class Query:
    """`count` adaptive Gaussian releases of a sum over sampled units, one unit contributing norm one.

    `selection_probability` is the chance that the unit's owner is drawn at all. Whether it was drawn must be
    taken as known to the observer, because the owner's other instances give it away.
    """

    noise_multiplier: float
    sampling: Sampling
    count: int
    selection_probability: float = 1.0

    def __post_init__(self) -> None:
        check.positive(noise_multiplier=self.noise_multiplier)
        check.count(count=self.count)
        check.probability(selection_probability=self.selection_probability)
