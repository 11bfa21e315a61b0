"""One upload of any model from every user, one release, and as many noisy copies of it as anybody wants."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.mechanisms.contract import (
    DIVIDED,
    Mechanism,
    Query,
    check_population,
    noise_in_words,
)
from fedproof.mechanisms.sampling import Everyone


@dataclass(frozen=True, kw_only=True)
class Smoothed(Mechanism):
    """All users send one clipped update of a whole model; its noisy sum W is released, once, and smoothed.

    What is served are models `start + (W + smoothing * S * η) / population` for many draws of standard normal
    η, S being the clip norm. `noise_multiplier` times S is the standard deviation of the noise in W.

    Guarantee, privacy: one Gaussian query of noise `noise_multiplier`, whatever the number of draws: they are
    computed from W and numbers that depend on nobody (post-processing).
    Guarantee, poisoning: the mean answer over η is that of a Gaussian query of noise `smoothing`. Proof: let
    W be what is released, and W' what would be had k users sent anything else (`replace`), been absent, or k
    more been there (`join`), and all else, the noise in W included, been the same. Sums are exact, so W' - W
    is a sum of 2k vectors, or of k, of norm S or less. A class's score is a function, with values in [0, 1],
    of a Gaussian vector, W + smoothing S η, whose mean moves by at most 2k / smoothing, or k / smoothing,
    standard deviations; no such function changes its mean by more than the Neyman-Pearson test of the two.
    It is a statement about this release: what fresh noise in W would give is another question.
    Assumes: all that the model reads is in the update, its start and other constants are public; what an
    honest user sends depends on no other; noise is drawn once, whoever takes part.

    Reference: theory.md, section 3, "One round, one release"; Cohen, Rosenfeld, Kolter 2019, arXiv:1902.02918
    for smoothing by noise on an input, here on the sum of all uploads.

    >>> smoothed = Smoothed(noise_multiplier=5.0, smoothing=20.0, population=1000)
    >>> smoothed.queries[0].noise_multiplier, smoothed.certified_queries[0].noise_multiplier
    (5.0, 20.0)
    """

    noise_multiplier: float
    smoothing: float
    clip_norm: float = 1.0
    population: int | None = None
    kind: ClassVar[str] = "smoothed"
    executor: ClassVar[str] = "fedproof.rounds.smoothed"
    one_release: ClassVar[bool] = True
    rounds = 1
    sampling = Everyone()
    rule = "mean"
    parallel = 10**9

    def __post_init__(self) -> None:
        check.positive(
            noise_multiplier=self.noise_multiplier, smoothing=self.smoothing, clip_norm=self.clip_norm
        )
        check_population(self)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The one release."""
        return (Query(noise_multiplier=self.noise_multiplier, sampling=Everyone(), count=1),)

    @property
    def certified_queries(self) -> tuple[Query, ...]:
        """What draws around the release hide of it."""
        return (Query(noise_multiplier=self.smoothing, sampling=Everyone(), count=1),)

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the release and of the draws."""
        return (
            *super().assumptions,
            "what an honest user sent depends on its own data alone, and holds all that the model reads",
            "the noise of the release was drawn once, whoever takes part, and used for nothing else",
            "the statement is about this release: had the poisoned users sent anything else, and all else "
            "been the same, its noise included; fresh noise in the release may give another label",
        )

    def in_words(self) -> tuple[str, ...]:
        """What is sent, summed, noised, released and smoothed."""
        return (
            "once, every user sends one update, which is clipped to norm S as a whole",
            f"{noise_in_words(self.noise_multiplier)} is added to the SUM",
            "the noisy sum is released once",
            f"{noise_in_words(self.smoothing)} is added to it for each model that is served, anew",
            DIVIDED,
        )
