"""What an observer sees."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.sampling import Everyone, FixedSize, Sampling


@dataclass(frozen=True, kw_only=True)
class Query:
    """`count` adaptive Gaussian releases of a sum over sampled units, one unit contributing norm one.

    Noise 0 is a release in which whoever is drawn is seen, and who is not drawn leaves no trace: units must
    be sampled, and once.

    `selection_probability` is the chance that a unit's owner is drawn at all, the largest of all owners.
    Whether an owner was drawn must be taken as known to the observer, because its other instances give it
    away. Poisoned units may be spread over owners in any way; `fedproof.accounting.spread` counts the worst.
    """

    noise_multiplier: float
    sampling: Sampling
    count: int
    selection_probability: float = 1.0
    kind: ClassVar[str] = "query"

    def __post_init__(self) -> None:
        check.not_negative(noise_multiplier=self.noise_multiplier)
        check.count(count=self.count)
        check.probability(selection_probability=self.selection_probability)
        if self.selection_probability < 1 and isinstance(self.sampling, FixedSize):
            raise ValueError(
                f"sampling = {self.sampling!r} must be Poisson or Everyone where owners are drawn first: "
                "how many units of several owners a fixed size draws is not known"
            )
        alone = self.count == 1 and self.selection_probability == 1
        if not self.noise_multiplier and (isinstance(self.sampling, Everyone) or not alone):
            raise ValueError(
                f"noise_multiplier = {self.noise_multiplier!r} must be positive: without noise units must be "
                "sampled, and once"
            )
