"""One upload from every unit, one release: of a linear head, or of any model, with noisy copies of it."""

from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar, Self

from fedproof import check, exact
from fedproof.arrays import Integers
from fedproof.mechanisms.contract import DIVIDED, SOLVER_OPTIONS, Mechanism, Query, Releases, noise_in_words
from fedproof.mechanisms.sampling import Everyone
from fedproof.mechanisms.uploads import UPLOADS, AnyUpload, Sent, on_grid
from fedproof.statements import Statement
from fedproof.threat import Unit

_SILENT = "OneRound without noise has no privacy guarantee; its certificate is exact all the same"


class UploadedOnce(Mechanism):
    """What is common to all that release one sum of vectors, each of which a unit sends once."""

    upload: AnyUpload  # the public set that whatever a unit sends is put into before it is added
    uploads: ClassVar[tuple[str, ...]] = tuple(UPLOADS)  # kinds of sets that there may be
    releases: ClassVar[Releases] = Releases.MODEL
    executor: ClassVar[str] = "fedproof.ensemble.one_round"
    once: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    step_options: ClassVar[frozenset[str]] = SOLVER_OPTIONS
    rounds = 1
    sampling = Everyone()
    pooled = True

    @property
    def longest(self) -> float:
        """Norm of what one unit has to say, before any noise of its own."""
        return self.upload.norm

    @cached_property
    def grid(self) -> exact.Grid:
        """The grid of what is summed."""
        return exact.grid_of(self.noise_multiplier, self.longest)

    def check_grid(self) -> None:
        """Raise ValueError where rounding to the grid of so much noise would leave little of a vector."""
        width, classes = self.upload.shape
        exact.check_room(self.grid, self.longest, width * classes, noise_multiplier=self.noise_multiplier)

    @property
    def most_units(self) -> int:
        """How many vectors and their noise add up exactly."""
        return exact.most_units(self.grid, 1.0)  # no number of a vector is above one

    def noised(self, vectors: Sent, numbers: exact.Source) -> Sent:
        """What units send whose models are `vectors`, where they add noise of their own; else as they are."""
        return vectors

    def received(self, sent: Sent) -> Integers:
        """The vectors `(units, width, classes)` that enter the sum, whatever was sent, on the grid."""
        return on_grid(self.upload, self.upload.inside(sent), self.grid.step)

    def heard(self, replied: int, users: int) -> Self:
        """What was executed if so many of the users were heard: of no others can there be noise."""
        return self

    @property
    def queries(self) -> tuple[Query, ...]:
        """One Gaussian query of norm one."""
        return self._query(1.0)

    @property
    def replaced(self) -> tuple[Query, ...]:
        """The query for units that are replaced: two vectors of the set may be nearer than twice its norm."""
        return self._query(2 * self.upload.norm / self.upload.distance)

    def _query(self, factor: float) -> tuple[Query, ...]:
        if not self.noise_multiplier:
            return ()
        return (Query(noise_multiplier=self.noise_multiplier * factor, sampling=Everyone(), count=1),)

    @property
    def hands_in(self) -> bool:
        """Users send what they like; where units are instances, their users add up what follows from each."""
        return self.unit is Unit.USER

    @property
    def sends_labels(self) -> bool:
        return self.upload.labels

    def models(self, num_units: int) -> int:
        return 1

    def upload_bytes(self, dim: int, bytes_each: int) -> int:
        return self.upload.bytes


@dataclass(frozen=True, kw_only=True)
class OneRound(UploadedOnce):
    """Every unit sends one vector of a public set; the server releases their sum and noise, once.

    `noise_multiplier` is the noise's standard deviation over `upload.norm`, the largest norm of a vector.

    Guarantee, privacy: one Gaussian query. Whatever is computed from the release and public data costs
    nothing more.
    Guarantee, poisoning: the very model that is released answers the same for every input had k units sent
    anything else (`replace`), or been absent, or k more been there (`join`). Proof: sums are exact, so W' - W
    is the sum of what those units sent less what they sent before; the noise is the same draw and cancels; by
    `upload.weights` each moves the lead of one class over another by at most one (`join`) or two (`replace`).
    It is a statement about this release: what fresh noise would give is another question.
    Assumes: encoder, public data, set and noise level were chosen without the units' data; every unit is
    counted once; what an honest unit sends depends on no other; noise is drawn once, whoever takes part.

    Reference: theory.md, section 3, "One round, one release".
    """

    upload: AnyUpload
    noise_multiplier: float
    unit: Unit = Unit.USER
    kind: ClassVar[str] = "one-round"

    def __post_init__(self) -> None:
        check.not_negative(noise_multiplier=self.noise_multiplier)
        check.plain(self)
        object.__setattr__(self, "unit", Unit(self.unit))
        if self.unit is Unit.INSTANCE and self.upload.labels:
            raise ValueError(
                f"upload = '{self.upload.kind}' must be another for unit = 'instance': one instance trains "
                "no model that could label anything"
            )
        self.check_grid()

    @property
    def unaccounted(self) -> str:  # type: ignore[override]
        """Why there is no finite ε: without noise there is none."""
        return "" if self.noise_multiplier else _SILENT

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        unit = self.unit
        return (
            Statement.of("counted-once", unit=unit, upload=self.upload.kind),
            Statement.of("honest-alone", unit=unit),
            Statement.of("chosen-without-data"),
            Statement.of("sum-exact"),
            Statement.of("this-release", unit=unit),
        )

    def in_words(self) -> tuple[str, ...]:
        noise = noise_in_words(self.noise_multiplier) if self.noise_multiplier else "no noise"
        return (
            f"once, every {self.unit} sends {self.upload.in_words()}",
            f"{noise} is added to the SUM, S being the largest norm of what one {self.unit} sends",
            "the noisy sum is released once",
        )


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
        super().__post_init__()
        check.positive(smoothing=self.smoothing)

    @property
    def queries(self) -> tuple[Query, ...]:
        """The one release."""
        return (Query(noise_multiplier=self.noise_multiplier, sampling=Everyone(), count=1),)

    @property
    def certified_queries(self) -> tuple[Query, ...]:
        """What draws around the release hide of it."""
        return (Query(noise_multiplier=self.smoothing, sampling=Everyone(), count=1),)

    @property
    def assumptions(self) -> tuple[Statement, ...]:
        own = ("honest-whole", "noise-of-release", "this-release-smoothed")
        return (*super().assumptions, *map(Statement.of, own))

    def in_words(self) -> tuple[str, ...]:
        return (
            "once, every user sends one update, which is clipped to norm S as a whole",
            f"{noise_in_words(self.noise_multiplier)} is added to the SUM",
            "the noisy sum is released once",
            f"{noise_in_words(self.smoothing)} is added to it for each model that is served, anew",
            DIVIDED,
        )
