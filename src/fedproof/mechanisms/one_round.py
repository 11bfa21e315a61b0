"""One upload from every unit, one release."""

from dataclasses import dataclass
from typing import ClassVar

from fedproof import check
from fedproof.arrays import Integers
from fedproof.mechanisms.contract import SOLVER_OPTIONS, Mechanism, Query, Releases, noise_in_words
from fedproof.mechanisms.sampling import Everyone
from fedproof.mechanisms.uploads import UPLOADS, AnyUpload, Sent, on_grid
from fedproof.threat import Unit

_SILENT = "OneRound without noise has no privacy guarantee; its certificate is exact all the same"


class UploadedOnce(Mechanism):
    """What is common to all that release one sum of vectors, each of which a unit sends once.

    Attributes:
        upload: the public set that whatever a unit sends is put into before it is added.
        uploads: kinds of sets that there may be.
        own_noise: whether units add noise to what they send, instead of the server to the sum.
    """

    upload: AnyUpload
    uploads: ClassVar[tuple[str, ...]] = tuple(UPLOADS)
    own_noise: ClassVar[bool] = False
    releases: ClassVar[Releases] = Releases.MODEL
    executor: ClassVar[str] = "fedproof.ensemble.one_round"
    once: ClassVar[bool] = True
    divides: ClassVar[bool] = False
    step_options: ClassVar[frozenset[str]] = SOLVER_OPTIONS
    rounds = 1
    sampling = Everyone()
    pooled = True

    def received(self, sent: Sent) -> Integers:
        """The vectors `(units, width, classes)` that enter the sum, whatever was sent, on the grid."""
        return on_grid(self.upload.inside(sent))

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
        """As the set says."""
        return self.upload.labels

    def models(self, num_units: int) -> int:
        """One."""
        return 1

    def upload_bytes(self, dim: int, bytes_each: int) -> int:
        """Size of one upload."""
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
        object.__setattr__(self, "unit", Unit(self.unit))
        if self.unit is Unit.INSTANCE and self.upload.labels:
            raise ValueError(
                f"upload = '{self.upload.kind}' must be another for unit = 'instance': one instance trains "
                "no model that could label anything"
            )

    @property
    def unaccounted(self) -> str:  # type: ignore[override]
        """Why there is no finite ε: without noise there is none."""
        return "" if self.noise_multiplier else _SILENT

    @property
    def assumptions(self) -> tuple[str, ...]:
        """What is taken for granted of the release."""
        unit = self.unit
        return (
            f"every {unit} was counted once, and what it sent was put inside the set '{self.upload.kind}'",
            f"what an honest {unit} sent depends on its own data alone",
            "encoder, public data, set and noise level were chosen without the users' data",
            "the sum is exact; noise was drawn once, whoever takes part, and used for nothing else",
            f"the statement is about this release: had the poisoned {unit}s sent anything else, and all else "
            "been the same, the noise included; fresh noise may give another label",
        )

    def in_words(self) -> tuple[str, ...]:
        """What is sent, summed and noised."""
        noise = noise_in_words(self.noise_multiplier) if self.noise_multiplier else "no noise"
        return (
            f"once, every {self.unit} sends {self.upload.in_words()}",
            f"{noise} is added to the SUM, S being the largest norm of what one {self.unit} sends",
            "the noisy sum is released once",
        )
